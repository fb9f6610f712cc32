"""`setgrad explain`: the sets that are asked about, files, and importance."""

import json
import re

import pytest

from setgrad.explain.explanation import TABLES


def test_first_sets_are_printed(run, model, table):
    done = run("explain", model, table, "--show", 2)
    assert done.code == 0 and done.err == ""
    assert [line for line in done.out.splitlines() if line.startswith("basket ")] == ["basket b0", "basket b1"]
    assert "price" in done.out
    for part in done.out.split("basket ")[1:]:
        chosen = re.findall(r"^ +(\w+) +yes ", part, re.M)
        new, old = re.search(r"nearest swap: (\w+) in place of (\w+), F [-+]", part).groups()
        assert old in chosen and new not in chosen


def test_one_set_with_the_prices_that_change_the_choice(run, model, table):
    done = run("explain", model, table, "--set", "b3", "--set", "b7", "--vary", "price", "--near", 1, "--json")
    assert set(done.data) == set(TABLES)
    items = done.data["items"]
    assert list(dict.fromkeys(items["basket"])) == ["b3", "b7"]
    assert set(done.data["changes"]["column"]) == {"price"}
    assert items["chosen"].count(False) == 2
    assert "instead of" in run("explain", model, table, "--set", "b3", "--vary", "price").out


def test_given_and_excluded_items_are_columns(run, model, rows, put, tmp_path):
    head, *body = rows
    marked = [
        [*head, "cart", "sold"],
        *([*row, str(row[1] == "p0").lower(), str(row[1] == "p1").lower()] for row in body),
    ]
    path = put(tmp_path / "carts.csv", marked)
    items = run("explain", model, path, "--given", "cart", "--excluded", "sold", "--json").data["items"]
    chosen = dict(zip(zip(items["basket"], items["product"], strict=True), items["chosen"], strict=True))
    assert all(chosen[basket, "p0"] for basket in ("b0", "b1", "b2"))
    assert not any(product == "p1" for _, product in chosen)


@pytest.mark.parametrize("ending", [".json", ".csv", ".parquet"])
def test_a_file_has_all_sets(run, model, table, tmp_path, ending):
    path = tmp_path / f"why{ending}"
    done = run("explain", model, table, "-o", path, "--show", 1)
    assert done.code == 0 and f"explanation written to {path}" in done.out and "not shown: 19 of 20 sets" in done.out
    if ending == ".json":
        items = json.loads(path.read_text())["items"]
    elif ending == ".csv":
        pd = pytest.importorskip("pandas")
        items = pd.read_csv(path).to_dict("list")
    else:
        import pyarrow.parquet as pq

        items = pq.read_table(path).to_pydict()
    assert len(set(items["basket"])) == 20
    assert {"product", "chosen", "gain", "shapley", "effect of price", "effect of stars"} <= set(items)


def test_importance_is_that_of_the_score_where_it_is_known(run, model, table, rows, put, tmp_path):
    found = run("explain", model, table, "--importance", "--repeats", 2, "--json").data
    assert found["score"] == run("evaluate", model, table, "--json").data["jaccard"]
    assert sorted(found["importance"]["column"]) == ["price", "stars"]
    unknown = put(tmp_path / "new.csv", [[*row[:4], *row[5:]] for row in rows])
    path = tmp_path / "importance.csv"
    done = run("explain", model, unknown, "--importance", "-o", path)
    assert "score of 100.00 loses" in done.out and path.read_text().startswith('"column","lost"')


def test_wrong_words_are_errors_of_one_line(run, model, table, tmp_path):
    for words, text in [
        (["--set", "b99"], "has no set 'b99'; its first sets are b0, b1"),
        (["--vary", "weight"], "--vary names 'weight', which the model does not read"),
        (["--importance", "--set", "b1"], "--importance is about all sets; leave out --set"),
        (["-o", tmp_path / "why.txt"], "why.txt"),
        (["-o", table], "is the input table and would be lost"),
        (["--importance", "--repeats", "0"], "--repeats must be a whole number of at least 1"),
    ]:
        done = run("explain", model, table, *words)
        assert done.code == 1 and text in done.err and len(done.err.splitlines()) == 1


def test_ids_that_a_spreadsheet_would_run_get_an_apostrophe(run, model, rows, put, tmp_path):
    head, *body = rows
    path = put(tmp_path / "odd.csv", [head, *([row[0], f"={row[1]}", *row[2:]] for row in body)])
    file = tmp_path / "why.csv"
    done = run("explain", model, path, "-o", file)
    assert done.code == 0 and "--formulas" in done.err and "'=p0" in file.read_text()
    assert run("explain", model, path, "-o", file, "--formulas").err == "" and "'=p0" not in file.read_text()

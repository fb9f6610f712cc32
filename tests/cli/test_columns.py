"""Kinds of columns on the command line, and what is understood of a table before a fit."""

import csv
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import setgrad as sg
from setgrad.cli import main
from setgrad.columns._kind_texts import KIND_TEXTS
from setgrad.columns._kinds import IGNORE, KINDS

ROLES = ["--set-id", "session", "--item-id", "product", "--chosen", "bought"]
NAMES: dict[str, Any] = {"set_id": "session", "item_id": "product", "chosen": "bought"}
HEADER = ["session", "product", "brand", "title", "day", "price", "bought"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixed table with gaps; the rows of a session are apart."""
    rng = np.random.default_rng(0)
    rows = []
    for session in range(30):
        price = rng.normal(size=5)
        for place in range(5):
            title = " ".join(rng.choice(["red", "blue", "old", "new", "hat", "shoe", "bag"], 4))
            day, gap = f"2025-01-{rng.integers(1, 29):02d}", place == session % 7
            cells = [f"s{session}", f"p{rng.integers(20)}-{place}", "ab"[place % 2], title, day]
            rows.append([*cells, "" if gap else f"{price[place]:.4f}", str(price[place] == price.max()).lower()])
    rng.shuffle(rows)
    path = tmp_path_factory.mktemp("shop") / "shop.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


@pytest.fixture(scope="module")
def model(shop: Path, tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "model"
    assert main(["fit", str(shop), *ROLES, "--ids", "product", "-o", str(folder), *tiny]) == 0
    return folder


def test_every_kind_has_a_flag(run: Callable) -> None:
    assert list(KIND_TEXTS) == [*KINDS, IGNORE]
    page = run("fit", "--help").out
    for kind, text in KIND_TEXTS.items():
        assert f"--{'ids' if kind == 'id' else kind} COL" in page
        assert " ".join(text.split()) in " ".join(page.split())


def test_a_dry_run_describes_the_table_and_stops(run: Callable, shop: Path, tmp_path: Path) -> None:
    words = ["fit", shop, *ROLES, "--ids", "product", "--ignore", "day", "--dry-run"]
    shown = run(*words, "-o", tmp_path / "m")
    assert (shown.code, shown.err) == (0, "")
    assert not (tmp_path / "m").exists()
    assert f"{shop}: 30 sets of 150 items, 30 chosen" in shown.out
    assert "warning: rows with the same 'session' are apart" in shown.out
    data = run(*words, "--json").data["description"]
    kinds = {column["name"]: column["kind"] for column in data["columns"] if column["kind"] not in NAMES}
    assert kinds == {
        "product": "id",
        "brand": "category",
        "title": "text",
        "day": "ignore",
        "price": "number",
    }
    assert [column["missing"] for column in data["columns"] if column["name"] == "price"] == [22]
    described = sg.describe(shop, **NAMES, embed=["product"], columns={"day": "ignore"})
    assert [column["name"] for column in data["columns"]] == [column.name for column in described.columns]
    assert data["warnings"] == list(described.warnings)
    for column in described.columns:
        assert column.name in shown.out


def test_kinds_are_those_of_python(run: Callable, shop: Path, tiny: list[str], tmp_path: Path) -> None:
    words = ["--category", "brand,day", "--text", "title", "--ids", "product", "--ignore", "price"]
    result = run("fit", shop, *ROLES, *words, "-o", tmp_path / "m", *tiny, "--json")
    assert result.code == 0, result.err
    assert sorted(result.data["features"]) == [
        "brand",
        "day",
        "product",
        "title",
    ]
    used = {column["name"]: column["kind"] for column in result.data["description"]["columns"] if column["used"]}
    assert (used["brand"], used["day"], used["title"]) == ("category", "category", "text")
    options: dict[str, Any] = {"dim": 16, "heads": 2, "max_epochs": 2, "random_state": 0, "verbose": 0, "device": "cpu"}
    kinds = {"brand": "category", "day": "category", "title": "text", "price": "ignore"}
    with pytest.warns(UserWarning, match="are apart"):
        selector = sg.SubsetSelector(**options).fit(shop, **NAMES, columns=kinds, embed=["product"])
    loaded = sg.load(tmp_path / "m", device="cpu")
    assert loaded.table_ == selector.table_
    with pytest.warns(UserWarning, match="are apart"):
        expected = selector.decision_function(shop)
    with pytest.warns(UserWarning, match="are apart"):
        assert loaded.decision_function(shop).values.equal(expected.values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--category", "brand", "--text", "brand"], "--category and --text both name the column 'brand'"),
        (["--ids", "product", "--ignore", "product"], "--ids and --ignore both name the column 'product'"),
        (
            ["--category", "brnd", "--ignore", "stock,day", "--number", "cost"],
            "there is no column 'cost' or 'brnd' (did you mean 'brand'?) or 'stock'; the columns are",
        ),
        (["--category", "bought"], "column 'bought' is used as --chosen and as --features; use it once"),
        (["--date", "title"], "column 'title'"),
        (["--start", "m"], "--start uses the columns of its model as they are"),
    ],
)
def test_columns_that_are_not_understood_raise(run: Callable, shop: Path, words: list[str], message: str) -> None:
    result = run("fit", shop, *ROLES, *words, "--dry-run")
    assert (result.code, result.out) == (1, "")
    assert message in result.err


def test_a_named_kind_is_used_beside_the_features(run: Callable, shop: Path) -> None:
    result = run("fit", shop, *ROLES, "--features", "price", "--category", "brand", "--dry-run", "--json")
    columns = result.data["description"]["columns"]
    assert [column["name"] for column in columns if column["kind"] not in NAMES] == ["price", "brand"]


def test_commands_gather_the_rows_of_a_set(run: Callable, shop: Path, model: Path, tmp_path: Path) -> None:
    with shop.open() as file:
        header, *rows = csv.reader(file)
    first = {row[0]: place for place, row in reversed(list(enumerate(rows)))}
    together = sorted(range(len(rows)), key=lambda place: (first[rows[place][0]], place))
    ordered = tmp_path / "ordered.csv"
    with ordered.open("w", newline="") as file:
        csv.writer(file).writerows([header, *(rows[place] for place in together)])
    limits = ["--budget", "9", "--cost", "cost", "--given", "bought"]
    for path in (shop, ordered):
        text = path.read_text().replace("bought", "bought,cost", 1).replace("true\n", "true,1\n")
        (tmp_path / f"cost_{path.name}").write_text(text.replace("false\n", "false,2\n"))
    picks = {}
    for name in ("shop.csv", "ordered.csv"):
        path, target = tmp_path / f"cost_{name}", tmp_path / f"picks_{name}"
        done = run("predict", model, path, "-o", target, "--carry", "price,brand", *limits, "--device", "cpu")
        assert done.code == 0, done.err
        assert done.err.count("are apart") == (name == "shop.csv")
        with target.open() as file:
            picks[name] = list(csv.reader(file))
        scores = run("evaluate", model, path, "--json", "--device", "cpu")
        assert scores.err.count("are apart") == (name == "shop.csv")
        picks[f"{name}, score"] = scores.data["jaccard"]
    assert picks["shop.csv"][0] == ["session", "product", "chosen", "probability", "rank", "price", "brand"]
    assert [row[:2] for row in picks["shop.csv"][1:]] == [row[:2] for row in rows]
    assert [picks["shop.csv"][1 + place] for place in together] == picks["ordered.csv"][1:]
    assert picks["shop.csv, score"] == picks["ordered.csv, score"]


def test_the_picks_of_a_few_sets_are_shown(run: Callable, shop: Path, model: Path, tmp_path: Path) -> None:
    words = ["predict", model, shop, "--carry", "title,price", "--device", "cpu"]
    alone = run(*words, "--show", "2")
    both = run(*words, "--show", "2", "-o", tmp_path / "p.csv")
    assert alone.code == both.code == 0
    assert "the first 2 of 30 sets" in alone.out
    assert "picks written" in both.out and "picks written" not in alone.out
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["session"] for row in rows))
    expected = []
    for name in names[:2]:
        mine = sorted((row for row in rows if row["session"] == name), key=lambda row: int(row["rank"]))
        count = sum(row["chosen"] == "true" for row in mine)
        assert [row["chosen"] for row in mine[:count]] == ["true"] * count
        fields = ("session", "product", "title", "price", "rank")
        expected += [tuple(row[field] for field in fields) for row in mine[: count + 3]]
    lines = alone.out.splitlines()
    assert any(all(word in line for word in ("session", "product", "title", "price", "rank")) for line in lines)
    shown = [line for line in lines if line.strip().startswith(("s", "t")) and " p" in line and "-" in line]
    shown = [line for line in shown if line.split()[0] in names]
    assert len(shown) == len(expected)
    for line, (session, product, title, price, rank) in zip(shown, expected, strict=True):
        assert line.split()[:2] == [session, product]
        assert title in line
        # Numbers of the table as they are there.
        assert not price or f"{float(price):.10g}" in line.split()
        assert line.split()[-1] == rank


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--carry", "tittle,cost"], "there is no column 'tittle' (did you mean 'title'?) or 'cost'"),
        (["--carry", "price", "--item-id", "rank"], "the table of picks has its own column 'rank'"),
    ],
)
def test_columns_that_cannot_be_carried_raise(
    run: Callable, shop: Path, model: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    result = run("predict", model, shop, "-o", tmp_path / "p.csv", *words)
    assert result.code == 1
    assert message in result.err
    assert not (tmp_path / "p.csv").exists()


def test_a_warning_of_a_command_is_one_line(
    run: Callable, model: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*warning: Any, **_: Any) -> None:
        sys.stderr.write(warnings.formatwarning(*warning[:4]))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        shown = run("evaluate", model, shop).err
    lines = [line for line in shown.splitlines() if "are apart" in line]
    assert lines and all(line.startswith("warning: ") for line in lines)

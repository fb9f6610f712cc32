"""The commands give the same models, picks and scores as the Python API."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch

import setgrad as sg
from setgrad.cli import main
from setgrad.cli._report import describe_table
from setgrad.selector._fitted_table import FittedTable
from tests.models import MODEL_FILES, rewrite_config

ROLES: dict[str, Any] = {"set_id": "basket", "item_id": "product", "features": ["price", "stars"]}


@pytest.fixture
def by_python(table: Path) -> tuple[sg.SubsetSelector, sg.Choices]:
    choices = sg.read_table(table, **ROLES, chosen="bought")
    options: dict[str, Any] = {
        "dim": 16,
        "heads": 2,
        "max_epochs": 2,
        "random_state": 0,
        "verbose": 0,
        "device": "cpu",
    }
    return sg.SubsetSelector(**options).fit(*choices), choices


def test_fit_gives_the_model_of_the_python_api(model: Path, by_python: Any) -> None:
    selector, choices = by_python
    loaded = sg.load(model, device="cpu")
    assert torch.equal(loaded.decision_function(choices.sets).values, selector.decision_function(choices.sets).values)
    assert loaded.get_params() == selector.get_params() | {"device": "cpu"}


def test_fit_reports_its_result(run: Callable, table: Path, tiny: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought", "--sample-weight", "load"]
    result = run("fit", table, *words, "--validation", table, "-o", folder, "--json", *tiny)
    assert (result.code, result.err) == (0, "")
    selector = sg.load(folder)
    data = result.data
    assert data["model"] == str(folder)
    # Features are the numeric columns without another role, so not the sample weights.
    assert data["features"] == ["price", "stars"]
    assert data["sets"] == 20
    assert data["epochs"] == 2
    assert data["validation_jaccard_true_size"] == selector.validation_score_
    assert data["validation_jaccard"] == max(data["size_scores"].values())


def test_fit_prints_the_next_command(run: Callable, table: Path, tiny: list[str], tmp_path: Path) -> None:
    result = run("fit", table, "--set-id", "basket", "--chosen", "bought", "-o", tmp_path / "m", *tiny)
    assert result.code == 0
    assert f"saved to {tmp_path / 'm'}" in result.out
    assert f"setgrad predict {tmp_path / 'm'}" in result.out
    # A mean of two, which is no estimate of the score of `evaluate`.
    assert "true size given, and one right item in half of the choices" in result.out


def test_sample_weights_change_the_loss(
    run: Callable, rows: list[list[str]], put: Callable, tiny: list[str], tmp_path: Path
) -> None:
    uneven = [rows[0], *([*row[:-1], str(number % 3)] for number, row in enumerate(rows[1:]))]
    path = put(tmp_path / "t.csv", uneven)
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought", "--features", "price,stars"]
    for folder, extra in (("with", ["--weights", "load"]), ("without", [])):
        assert run("fit", path, *words, *extra, "-o", tmp_path / folder, *tiny).code == 0
    losses = [sg.load(tmp_path / folder).history_[0]["loss"] for folder in ("with", "without")]
    assert losses[0] != losses[1]


def test_a_checkpoint_is_written_and_resumed(run: Callable, table: Path, tiny: list[str], tmp_path: Path) -> None:
    words = ["fit", table, "--set-id", "basket", "--chosen", "bought", "--checkpoint", tmp_path / "run.ckpt"]
    assert run(*words, "-o", tmp_path / "a", *tiny).code == 0
    assert (tmp_path / "run.ckpt").is_file()
    longer = run(*words, "-o", tmp_path / "b", *tiny, "--max-epochs", "3", "--json")
    assert longer.data["epochs"] == 3
    first, second = (sg.load(tmp_path / name).history_ for name in "ab")
    # The first epochs were not repeated: their times are the same.
    assert second[:2] == first


@pytest.mark.parametrize("ending", ["parquet", "csv", "feather"])
def test_picks_are_those_of_the_python_api(
    run: Callable, model: Path, table: Path, by_python: Any, tmp_path: Path, ending: str
) -> None:
    selector, choices = by_python
    path = tmp_path / f"picks.{ending}"
    result = run("predict", model, table, "-o", path, "--json", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    read = {"parquet": pyarrow.parquet.read_table, "csv": pyarrow.csv.read_csv, "feather": pyarrow.feather.read_table}
    picks = read[ending](path)
    assert picks.column_names == ["basket", "product", "chosen", "probability", "rank"]
    lengths = choices.sets.layout.host_lengths
    assert picks["basket"].to_pylist() == np.repeat(choices.set_ids, lengths).tolist()
    assert picks["product"].to_pylist() == list(choices.item_ids)
    expected = selector.predict(choices.sets)
    assert picks["chosen"].to_pylist() == expected.values.tolist()
    np.testing.assert_allclose(picks["probability"].to_numpy(), selector.predict_proba(choices.sets).values, rtol=1e-6)
    assert result.data["chosen"] == int(expected.values.sum())
    assert result.data["sets"] == 20


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["--size", "3"], {"size": 3}),
        (["--threshold", "0.5"], {"threshold": 0.5}),
        (["--search", "greedy"], {"search": "greedy"}),
        (["--search", "local", "--size", "2"], {"search": "local", "size": 2}),
    ],
)
def test_sizes_thresholds_and_searches(
    run: Callable, model: Path, table: Path, by_python: Any, tmp_path: Path, words: list[str], arguments: dict[str, Any]
) -> None:
    selector, choices = by_python
    assert run("predict", model, table, "-o", tmp_path / "p.parquet", *words, "--device", "cpu").code == 0
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")["chosen"].to_pylist()
    assert picks == selector.predict(choices.sets, **arguments).values.tolist()


def test_a_size_above_that_of_a_set_is_told(run: Callable, model: Path, table: Path) -> None:
    lengths = sg.read_table(table, set_id="basket", features=["price"]).sets.lengths
    small = int((lengths < 6).sum())
    assert 0 < small < len(lengths)
    told = f"{small} of {len(lengths)} sets have fewer than 6 items to pick; all of theirs are picked"
    assert told in run("predict", model, table, "--show", 1, "--size", 6).out
    assert "fewer than" not in run("predict", model, table, "--show", 1, "--size", int(lengths.min())).out


def test_features_are_read_by_name(
    run: Callable, model: Path, table: Path, rows: list[list[str]], put: Callable, tmp_path: Path
) -> None:
    # Another order, one more column, and no column that tells what was chosen.
    order = [3, 0, 2, 1]
    other = [[*(row[place] for place in order), "7" if number else "extra"] for number, row in enumerate(rows)]
    shuffled = put(tmp_path / "other.csv", other)
    for name, path in (("a", table), ("b", shuffled)):
        assert run("predict", model, path, "-o", tmp_path / f"{name}.csv").code == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_features_of_the_model_can_be_named_in_any_order(
    run: Callable, model: Path, table: Path, rows: list[list[str]], put: Callable, tmp_path: Path
) -> None:
    plain = run("evaluate", model, table, "--json").data
    assert run("evaluate", model, table, "--features", "stars,price", "--json").data == plain
    for name, words in (("a", []), ("b", ["--features", "stars,price"])):
        assert run("predict", model, table, "-o", tmp_path / f"{name}.csv", *words).code == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    # Columns with other names replace those of the model one by one.
    renamed = put(tmp_path / "other.csv", [["basket", "product", "cost", "rank", "bought", "load"], *rows[1:]])
    assert run("evaluate", model, renamed, "--features", "cost,rank", "--json").data == plain
    assert run("evaluate", model, renamed, "--features", "rank,cost", "--json").data != plain


@pytest.fixture(scope="module")
def times(table: Path, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a model of times, which need float64, its table, and a table of its first set, which fits into float32."""
    folder = tmp_path_factory.mktemp("times")
    lines = ["basket,product,time,bought"]
    for basket in range(12):
        for place in range(5):
            # In this range float32 has steps of 128.
            time = 1_700_000_000 // 128 * 128 + 128 * place + (0 if basket == 0 else 37 * basket)
            lines.append(f"b{basket},p{place},{time},{'true' if place > 2 else 'false'}")
    whole, alone = folder / "whole.csv", folder / "alone.csv"
    whole.write_text("\n".join(lines) + "\n")
    alone.write_text("\n".join(lines[:6]) + "\n")
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought"]
    assert main(["fit", str(whole), "--validation", str(alone), *words, "-o", str(folder / "m"), *tiny]) == 0
    return folder / "m", whole, alone


def test_picks_of_a_set_do_not_depend_on_the_rest_of_the_table(run: Callable, times: Any, tmp_path: Path) -> None:
    model, whole, alone = times
    for path in (whole, alone):
        assert run("predict", model, path, "-o", tmp_path / path.name, "--device", "cpu").code == 0
    together, apart = (pyarrow.csv.read_csv(tmp_path / path.name) for path in (whole, alone))
    assert apart["chosen"].to_pylist() == together["chosen"].to_pylist()[:5]
    np.testing.assert_allclose(apart["probability"], together["probability"][:5], rtol=1e-12)


def test_tables_are_read_in_the_dtype_of_the_fit(
    run: Callable, times: Any, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole, alone = times
    calls = []
    read = FittedTable.read_choices

    def recorded(table: FittedTable) -> Any:
        result = read(table)
        calls.append((table.source.name, result.sets.dtype))
        return result

    monkeypatch.setattr(FittedTable, "read_choices", recorded)
    assert run("evaluate", model, alone).code == 0
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought"]
    assert run("fit", whole, "--validation", alone, *words, "-o", tmp_path / "m", *tiny).code == 0
    assert calls == [(str(alone), torch.float64)] * 2
    # A model of an older setgrad does not know the dtype, which then depends on the table.
    assert sg.load(tmp_path / "m").table_.dtype == "float64"
    rewrite_config(tmp_path / "m", lambda config: config["table"].pop("dtype"))
    assert run("evaluate", tmp_path / "m", alone).code == 0
    assert calls[-1] == (str(alone), torch.float32)


def test_items_are_numbered_if_the_id_column_of_the_model_is_missing(
    run: Callable, model: Path, rows: list[list[str]], put: Callable, tmp_path: Path
) -> None:
    path = put(tmp_path / "t.csv", [[row[0], *row[2:]] for row in rows])
    assert run("predict", model, path, "-o", tmp_path / "p.parquet").code == 0
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert picks.column_names == ["basket", "item", "chosen", "probability", "rank"]
    assert picks["item"].to_pylist()[:3] == [0, 1, 2]
    assert run("evaluate", model, path).code == 0
    # A column that the command line names must exist.
    assert "no column 'product'" in run("predict", model, path, "-o", tmp_path / "q.csv", "--item-id", "product").err


def test_a_model_from_python_needs_the_columns(run: Callable, table: Path, by_python: Any, tmp_path: Path) -> None:
    selector, choices = by_python
    selector.save(tmp_path / "m")
    error = run("evaluate", tmp_path / "m", table)
    assert error.code == 1
    assert "was saved from Python" in error.err
    assert "--set-id and --features" in error.err
    words = ["--set-id", "basket", "--features", "price,stars"]
    assert "--chosen" in run("evaluate", tmp_path / "m", table, *words).err
    result = run("evaluate", tmp_path / "m", table, *words, "--chosen", "bought", "--json", "--device", "cpu")
    assert result.data["jaccard"] == selector.score(*choices)


def test_evaluate_gives_the_scores_of_the_python_api(run: Callable, model: Path, table: Path, by_python: Any) -> None:
    selector, choices = by_python
    result = run("evaluate", model, table, "--json", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    data = result.data
    assert data["jaccard"] == selector.score(*choices)
    assert data["jaccard_true_size"] == selector.score_true_size(*choices)
    assert data["mean_true_size"] == 2
    assert data["size_scores"] == selector.size_scores_
    shown = run("evaluate", model, table, "--device", "cpu").out
    assert f"{100 * data['jaccard']:.2f}" in shown
    assert all(rule in shown for rule in selector.size_scores_)


def test_report_with_and_without_a_table(run: Callable, model: Path, table: Path, tmp_path: Path) -> None:
    alone = run("report", model, "-o", tmp_path / "a.html", "--json")
    assert (alone.code, alone.data) == (0, {"report": str(tmp_path / "a.html")})
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("<img") == 2
    full = run("report", model, table, "-o", tmp_path / "b.html", "--sets", "3", "--json")
    assert full.data["scores"]["sets"] == 20
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    # Two curves and two charts; the sets are lists.
    assert (page.count("<img"), page.count('<ol class="items">')) == (4, 3)
    assert "The baselines learn from 16 of these sets" in page
    assert re.search(r"<td>price</td><td>number</td>.*<td>yes</td>", page)
    assert re.search(r"<td>product</td><td>item_id</td>.*<td></td></tr>", page)


def test_a_report_describes_a_vector_of_numbered_columns(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((160, 8))
    table = pyarrow.table({f"x{n}": values[:, n] for n in range(8)})
    table = table.append_column("set", [np.arange(160) // 4]).append_column("chosen", [values[:, :2].sum(1) > 1])
    pyarrow.parquet.write_table(table, tmp_path / "vectors.parquet")
    selector = sg.SubsetSelector(dim=8, heads=1, max_epochs=1, verbose=0).fit(table, set_id="set", chosen="chosen")
    described = describe_table(tmp_path / "vectors.parquet", selector.table_)
    assert ("x0 ... x7", "vector") in [(column.name, column.kind) for column in described.columns]


def test_baselines_of_a_report_learn_from_the_training_table(
    run: Callable, model: Path, table: Path, tmp_path: Path
) -> None:
    page = tmp_path / "b.html"
    assert run("report", model, table, "--train", table, "-o", page).code == 0
    assert "The baselines learn from 20 training sets" in page.read_text(encoding="utf-8")
    alone = run("report", model, "--train", table, "-o", page)
    assert (alone.code, "name the table too" in alone.err) == (1, True)
    lost = run("report", model, table, "--train", table, "-o", table)
    assert lost.code == 1 and "is the input table and would be lost" in lost.err


def test_the_model_knows_the_columns(model: Path) -> None:
    table = sg.load(model).table_
    assert (table.set_id, table.features, table.item_id, table.chosen) == (
        "basket",
        ("price", "stars"),
        "product",
        "bought",
    )
    assert [type(column).__name__ for column in table.columns.columns] == ["NumberColumn", "NumberColumn"]
    assert {path.name for path in model.iterdir()} == MODEL_FILES


def test_a_preset_has_the_options_of_the_published_method(run: Callable, table: Path, tmp_path: Path) -> None:
    words = ["--set-id", "basket", "--chosen", "bought", "--features", "price,stars", "--preset", "paper"]
    small = ["--hidden", "8,8", "--max-epochs", "1", "--verbose", "0"]
    assert run("fit", table, *words, *small, "-o", tmp_path / "m").code == 0
    params = sg.load(tmp_path / "m").get_params()
    paper = sg.SubsetSelector.preset("diffmf").get_params()
    changed = {name for name in params if params[name] != paper[name]}
    assert changed == {"hidden", "max_epochs", "verbose"}
    assert params["hidden"] == (8, 8)

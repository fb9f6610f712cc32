"""What is known about a subset on the command line: picks, probabilities and scores are those of the Python API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

import setgrad as sg
from setgrad.cli import main
from setgrad.report import evaluate

Rows = list[list[str]]


@pytest.fixture(scope="module")
def learned(table: Path, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fit a model that completes."""
    folder = tmp_path_factory.mktemp("known") / "model"
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought", "--features", "price,stars"]
    assert main(["fit", str(table), *words, "--method", "conditional", "-o", str(folder), *tiny]) == 0
    return folder


@pytest.fixture
def carts(rows: Rows, put: Callable, tmp_path: Path) -> Path:
    """Return a table in which the second item of a basket is in the cart, the third is sold out, and one costs much."""
    extra = [
        [*row, str(int(row[1] == "p1")), str(row[1] == "p2").lower(), str(1 + len(row[3]) % 3)] for row in rows[1:]
    ]
    path: Path = put(tmp_path / "carts.csv", [[*rows[0], "in_cart", "sold_out", "cost"], *extra])
    return path


@pytest.fixture
def choices(carts: Path) -> sg.Choices:
    return sg.read_table(carts, set_id="basket", item_id="product", features=["price", "stars"], chosen="bought")


def masks(choices: sg.Choices, place: int) -> list[list[bool]]:
    return [[position == place for position in range(int(length))] for length in choices.sets.lengths]


WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "alone": ([], {}),
    "size": (["--size", "3"], {"size": 3}),
    "threshold": (["--threshold", "0.3"], {"threshold": 0.3}),
    "local": (["--search", "local", "--size", "3"], {"search": "local", "size": 3}),
    "completion": (["--search", "completion", "--size", "3"], {"search": "completion", "size": 3}),
    "decide": (["--decide", "expected-jaccard"], {"decide": "expected-jaccard"}),
    "limit": (["--min-size", "2", "--max-size", "3"], {"constraint": sg.SizeRange(2, 3)}),
}


@pytest.mark.parametrize("way", WAYS)
def test_picks_complete_what_is_given(
    run: Callable, learned: Path, carts: Path, choices: sg.Choices, tmp_path: Path, way: str
) -> None:
    words, arguments = WAYS[way]
    known = ["--given", "in_cart", "--excluded", "sold_out"]
    result = run("predict", learned, carts, "-o", tmp_path / "p.parquet", *known, *words, "--json", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    assert (result.data["given"], result.data["excluded"]) == (20, 20)
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    selector = sg.load(learned, device="cpu")
    given, excluded = masks(choices, 1), masks(choices, 2)
    expected = selector.predict(choices.sets, given=given, excluded=excluded, **arguments)
    assert picks["chosen"].to_pylist() == expected.values.tolist()
    chosen = np.array(picks["chosen"])
    assert chosen[np.concatenate(given)].all()
    assert not chosen[np.concatenate(excluded)].any()
    # Probabilities are those given what is known.
    probabilities = selector.predict_proba(choices.sets, given=given, excluded=excluded).values
    np.testing.assert_allclose(picks["probability"].to_numpy(), probabilities, rtol=1e-6)
    assert not np.allclose(picks["probability"].to_numpy(), selector.predict_proba(choices.sets).values)


def test_given_items_and_a_column_with_two_roles(
    run: Callable, learned: Path, carts: Path, choices: sg.Choices, tmp_path: Path
) -> None:
    words = ["--given", "in_cart", "--must-have", "in_cart", "--must-not", "sold_out", "--max-size", "2"]
    assert run("predict", learned, carts, "-o", tmp_path / "p.parquet", *words, "--device", "cpu").code == 0
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")["chosen"].to_pylist()
    limits = [sg.MustHave(masks(choices, 1)), sg.MustNot(masks(choices, 2)), sg.SizeRange(0, 2)]
    expected = sg.load(learned, device="cpu").predict(choices.sets, given=masks(choices, 1), constraint=limits)
    assert picks == expected.values.tolist()


def test_recall(run: Callable, learned: Path, carts: Path, choices: sg.Choices, tmp_path: Path) -> None:
    assert run("predict", learned, carts, "-o", tmp_path / "p.parquet", "--recall", "0.5", "--device", "cpu").code == 0
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")["chosen"].to_pylist()
    assert picks == sg.load(learned, device="cpu").predict(choices.sets, recall=0.5).values.tolist()


def test_too_few_calibration_sets_are_one_warning(run: Callable, learned: Path, carts: Path, tmp_path: Path) -> None:
    result = run("predict", learned, carts, "-o", tmp_path / "p.csv", "--recall", "0.99", "--json")
    assert result.code == 0
    assert result.err.startswith(
        "warning: 4 calibration sets are too few to promise recall=0.99, so every item is chosen"
    )
    assert len(result.err.splitlines()) == 1
    assert result.data["chosen"] == result.data["items"]


def test_columns_are_read_in_one_pass(
    run: Callable, learned: Path, carts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from setgrad.sets import _read

    calls, read_columns = [], _read.read_columns

    def record(path: Path, **columns: Any) -> Any:
        calls.append(columns)
        return read_columns(path, **columns)

    monkeypatch.setattr(_read, "read_columns", record)
    words = ["--given", "in_cart", "--excluded", "sold_out", "--budget", "9", "--cost", "cost"]
    assert run("predict", learned, carts, "-o", tmp_path / "p.csv", *words).code == 0
    assert [(call["numbers"], call["booleans"]) for call in calls] == [(["cost"], ["in_cart", "sold_out"])]


# Options, and parts of the message.
WRONG: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no column": (["--given", "in_carts"], ("did you mean 'in_cart'?",)),
    "not boolean": (["--given", "stars"], ("column 'stars', row 1", "is neither true nor false")),
    "missing value": (["--excluded", "gap"], ("column 'gap', row 3", "missing")),
    "both": (
        ["--given", "in_cart", "--excluded", "bought"],
        ("is true in column 'in_cart' (--given) and in column 'bought' (--excluded)", "item 'p1' of set 'b"),
    ),
    "more than the size": (
        ["--given", "bought", "--size", "1"],
        ("set 'b0' has 2 items that are true in column 'bought', more than --size 1",),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_columns_raise_before_any_inference(
    run: Callable, learned: Path, carts: Path, put: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    words, parts = WRONG[case]
    lines = [line.split(",") for line in carts.read_text().splitlines()]
    gaps = [[*line, "gap" if n == 0 else "" if n == 3 else "true"] for n, line in enumerate(lines)]
    monkeypatch.setattr(sg.SubsetSelector, "decision_function", None)
    result = run("predict", learned, put(tmp_path / "t.csv", gaps), "-o", tmp_path / "p.csv", *words)
    assert (result.code, result.out) == (1, "")
    assert len(result.err.splitlines()) == 1
    for part in parts:
        assert part in result.err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--given", "a", "--excluded", "a"], "--given and --excluded are both a"),
        (["--recall", "0.9", "--given", "a"], "--recall is calibrated for sets of which nothing is known"),
        (["--recall", "0.9", "--excluded", "a"], "leave out --excluded"),
        (["--recall", "1"], "--recall must be a number above 0 and below 1, not 1.0"),
        (["--recall", "0.9", "--size", "2"], "--recall determines the whole subset; leave out --size"),
        (["--recall", "0.9", "--max-size", "2"], "--recall determines the whole subset; leave out --max-size"),
        (["--decide", "expected-jaccard", "--threshold", "0.5"], "leave out --threshold"),
        (["--decide", "expected-jaccard", "--budget", "5", "--cost", "c"], "leave out --budget"),
        (["--decide", "expected-jacard"], "unknown --decide 'expected-jacard'"),
        (["--search", "completion", "--max-size", "2"], "--search completion does not support limits"),
    ],
)
def test_options_that_do_not_go_together_raise_before_any_work(
    run: Callable, tmp_path: Path, words: list[str], message: str
) -> None:
    # Neither the model nor the table exists, so the message shows that the options are checked first.
    result = run("predict", tmp_path / "m", tmp_path / "no.csv", "-o", tmp_path / "p.csv", *words)
    assert (result.code, result.out) == (1, "")
    assert message in result.err


def test_recall_needs_a_calibration(run: Callable, learned: Path, carts: Path, tmp_path: Path) -> None:
    old = sg.load(learned, device="cpu")
    old.recall_ = None
    old.save(tmp_path / "m")
    result = run("predict", tmp_path / "m", carts, "-o", tmp_path / "p.csv", "--recall", "0.5")
    assert result.code == 1
    assert "--recall needs a calibration, which models of earlier versions do not have" in result.err


def test_evaluate_scores_completion(
    run: Callable, learned: Path, rows: Rows, put: Callable, choices: sg.Choices, tmp_path: Path
) -> None:
    """The first chosen item of a basket is given."""
    first, seen = [], set()
    for row in rows[1:]:
        is_first = row[4] == "true" and row[0] not in seen
        seen |= {row[0]} if is_first else set()
        first.append(str(is_first).lower())
    path = put(tmp_path / "t.csv", [[*row, flag] for row, flag in zip(rows, ["first", *first], strict=True)])
    result = run("evaluate", learned, path, "--given", "first", "--json", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    selector = sg.load(learned, device="cpu")
    given = choices.sets.with_values(torch.tensor([flag == "true" for flag in first]))
    assert result.data["jaccard"] == selector.score(*choices, given=given)
    picks = evaluate(selector, choices, given=given).picks.values
    rest = choices.subsets.values & ~given.values
    # Every basket has two chosen items, so one is left.
    assert result.data["found"] == pytest.approx(float((picks & rest).sum() / rest.sum()))
    # By chance one of the other items is picked: 1 in (n - 1) is right, else a third is.
    n = choices.sets.lengths.double() - 1
    assert result.data["chance"] == pytest.approx(float((1 / n + (1 - 1 / n) / 3).mean()))
    shown = run("evaluate", learned, path, "--given", "first", "--device", "cpu").out
    assert "found, of the right items that were not given" in shown
    assert run("evaluate", learned, path, "--json", "--device", "cpu").data["found"] is None
    wrong = run(
        "evaluate",
        learned,
        put(tmp_path / "u.csv", [[*row, "odd" if n == 0 else "1"] for n, row in enumerate(rows)]),
        "--given",
        "odd",
    )
    assert wrong.code == 1
    assert "is true in column 'odd', but was not chosen" in wrong.err

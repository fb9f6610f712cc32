"""Limits on the command line: the picks respect them and are those of the Python API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import setgrad as sg
from setgrad.cli._limits import read_limits
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.selector import AllOf, Budget, Groups, SizeRange

Rows = list[list[str]]


@pytest.fixture
def shop(rows: Rows, put: Callable, tmp_path: Path) -> Path:
    """Return a table with a cost and a brand for each product."""
    brands = ["acme", "bolt", "7"]
    extra = [[*row, str(1 + 3 * number % 5), brands[number % 3]] for number, row in enumerate(rows[1:])]
    path: Path = put(tmp_path / "shop.csv", [[*rows[0], "cost", "brand"], *extra])
    return path


def by_column(shop: Path, name: str) -> list[list[str]]:
    lines = [line.split(",") for line in shop.read_text().splitlines()]
    place, baskets = lines[0].index(name), dict.fromkeys(line[0] for line in lines[1:])
    return [[line[place] for line in lines[1:] if line[0] == basket] for basket in baskets]


LIMITS: dict[str, list[str]] = {
    "budget": ["--budget", "4", "--cost", "cost"],
    "groups": ["--at-most", "1", "--group", "brand"],
    "sizes": ["--min-size", "1", "--max-size", "2"],
    "all": ["--budget", "6", "--cost", "cost", "--at-most", "1", "--group", "brand", "--max-size", "2"],
}


@pytest.mark.parametrize("case", LIMITS)
def test_picks_respect_the_limits(run: Callable, model: Path, shop: Path, tmp_path: Path, case: str) -> None:
    costs = [[int(cost) for cost in part] for part in by_column(shop, "cost")]
    brands = by_column(shop, "brand")
    constraint = {
        "budget": Budget(costs, budget=4),
        "groups": Groups(brands, at_most=1),
        "sizes": SizeRange(1, 2),
        "all": AllOf([Budget(costs, budget=6), Groups(brands, at_most=1), SizeRange(0, 2)]),
    }[case]
    # A low threshold, so that the limits matter.
    result = run("predict", model, shop, "-o", tmp_path / "p.parquet", *LIMITS[case], "--threshold", "0.01", "--json")
    assert (result.code, result.err) == (0, "")
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")["chosen"].to_pylist()
    table = sg.read_table(shop, set_id="basket", features=["price", "stars"])
    selector = sg.load(model)
    expected = selector.predict(table.sets, constraint=constraint, threshold=0.01)
    assert picks == expected.values.tolist()
    assert picks != selector.predict(table.sets, threshold=0.01).values.tolist()
    if case in ("budget", "all"):
        spent = [
            sum(c for c, m in zip(cost, mask, strict=True) if m) for cost, mask in zip(costs, expected, strict=True)
        ]
        assert max(spent) <= (4 if case == "budget" else 6)


def test_a_feature_can_be_the_cost(run: Callable, model: Path, shop: Path, rows: Rows, tmp_path: Path) -> None:
    words = ["--budget", "9", "--cost", "load", "--features", "price,stars"]
    assert run("predict", model, shop, "-o", tmp_path / "p.parquet", *words).code == 0
    error = run("predict", model, shop, "-o", tmp_path / "p.parquet", "--budget", "9", "--cost", "price")
    assert error.code == 1
    assert "--cost price: " in error.err
    assert "costs are finite numbers of at least 0" in error.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "4"], "--budget N --cost COL"),
        (["--group", "brand"], "--at-most N --group COL"),
        (["--budget", "4", "--cost", "costs"], "did you mean 'cost'?"),
        (["--at-most", "1", "--group", "brands"], "did you mean 'brand'?"),
        (["--budget", "-1", "--cost", "cost"], "set 0 (counted from 0) has no solution"),
        (["--min-size", "99"], "cannot choose 99 of"),
        (["--min-size", "99"], "lower --min-size"),
        (["--min-size", "1", "--size", "1"], "instead of --size"),
    ],
)
def test_wrong_limits_raise(
    run: Callable, model: Path, shop: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    result = run("predict", model, shop, "-o", tmp_path / "p.parquet", *words)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert not (tmp_path / "p.parquet").exists()


@pytest.mark.parametrize("words", [["--at-most", "1", "--group", "brands"], ["--budget", "9", "--cost", "price"]])
def test_wrong_columns_of_limits_raise_before_any_work(
    run: Callable, model: Path, shop: Path, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sg.SubsetSelector, "decision_function", None)
    assert run("predict", model, shop, "-o", tmp_path / "p.parquet", *words).code == 1


@pytest.mark.parametrize("group", [["a", None], [1.0, float("nan")]], ids=["text", "number"])
def test_missing_groups_raise(run: Callable, model: Path, tmp_path: Path, group: list[object]) -> None:
    columns = {"basket": ["b", "b"], "price": [1.0, 2.0], "stars": [1.0, 2.0], "brand": pa.array(group)}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    words = ["--at-most", "1", "--group", "brand"]
    result = run("predict", model, tmp_path / "t.parquet", "-o", tmp_path / "p.csv", *words)
    assert result.code == 1
    assert "column 'brand', row 2" in result.err
    assert "the group is missing; name the group of every item" in result.err


def test_help_tells_which_budgets_need_scipy(run: Callable) -> None:
    page = " ".join(run("predict", "--help").out.split())
    assert f"whole ones where a budget above {MOST_STEPS:,} times their common divisor can be spent" in page
    assert f"{MOST_STEPS:,} times their common divisor" in " ".join((Budget.__doc__ or "").split())


def test_fit_within_limits(run: Callable, shop: Path, tiny: list[str], tmp_path: Path) -> None:
    words = ["--set-id", "basket", "--chosen", "bought", "--features", "price,stars", "--max-size", "2", *tiny]
    result = run("fit", shop, *words, "-o", tmp_path / "a", "--json")
    assert (result.code, result.err) == (0, "")
    assert "validation_jaccard_limited" in result.data
    costs = ["--budget", "99", "--cost", "cost"]
    assert run("fit", shop, *words, *costs, "--validation", shop, "-o", tmp_path / "b").code == 0
    error = run("fit", shop, *words, "--max-size", "1", "-o", tmp_path / "c")
    assert error.code == 1
    assert "the constraint does not allow the subset chosen from set 0 (counted from 0" in error.err
    assert (
        "lower --min-size" in run("fit", shop, *words, "--min-size", "9", "--max-size", "9", "-o", tmp_path / "d").err
    )


def test_groups_are_read_as_text(shop: Path) -> None:
    from argparse import Namespace

    sets = sg.read_table(shop, set_id="basket", features=["price"]).sets
    limits = Namespace(budget=None, cost=None, at_most=1, group="brand", min_size=None, max_size=None)
    result = read_limits(shop, sets, limits)
    assert isinstance(result, Groups)
    assert [list(part) for part in result.labels] == by_column(shop, "brand")


def test_costs_and_groups_are_read_in_one_pass(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import Namespace

    from setgrad.sets import _read

    sets = sg.read_table(shop, set_id="basket", features=["price"]).sets
    calls, read_chunks = [], _read.read_chunks

    def record(path: Path, file_format: Any, columns: list[str]) -> Any:
        calls.append((path, columns))
        return read_chunks(path, file_format, columns)

    monkeypatch.setattr(_read, "read_chunks", record)
    limits = Namespace(budget=5.0, cost="cost", at_most=1, group="brand", min_size=None, max_size=None)
    result = read_limits(shop, sets, limits)
    assert isinstance(result, AllOf)
    assert [type(part) for part in result.parts] == [Budget, Groups]
    assert calls == [(shop, ["cost", "brand"])]


def test_fit_through_the_choice(run: Callable, shop: Path, tiny: list[str], tmp_path: Path) -> None:
    words = ["--set-id", "basket", "--chosen", "bought", "--features", "price,stars", *tiny]
    limits = ["--max-size", "2", "--gradient", "imle", "--choice-loss", "jaccard"]
    assert run("fit", shop, *words, *limits, "--random-state", "0", "-o", tmp_path / "a").code == 0
    choices = sg.read_table(shop, set_id="basket", features=["price", "stars"], chosen="bought")
    again = sg.SubsetSelector(**{**sg.load(tmp_path / "a").get_params(), "device": "cpu"}).fit(
        *choices, constraint=SizeRange(0, 2), gradient="imle", choice_loss="jaccard"
    )
    assert again.history_[-1]["loss"] == sg.load(tmp_path / "a").history_[-1]["loss"]
    for wrong, message in (
        (["--gradient", "imle"], "--gradient and --choice-loss are about choices under a constraint"),
        (["--max-size", "2", "--choice-loss", "jaccard"], "leave out --choice-loss"),
        (["--max-size", "2", "--gradient", "magic"], "unknown --gradient 'magic'"),
    ):
        error = run("fit", shop, *words, *wrong, "-o", tmp_path / "b")
        assert error.code == 1
        assert message in error.err

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
from setgrad.selector import AllOf, Budget, Conflicts, Groups, MustHave, MustNot, SizeRange
from setgrad.sets._sources import open_table

Rows = list[list[str]]


@pytest.fixture
def shop(rows: Rows, put: Callable, tmp_path: Path) -> Path:
    """Return a table with a cost, a brand and more for each product."""
    brands = ["acme", "bolt", "7"]
    # Every fifth product is rare; two of three have a slot, of which a basket uses each only once.
    extra = [
        [*row, str(1 + 3 * number % 5), brands[number % 3], str(number % 5 == 0).lower(), ["x", "", "y"][number % 3]]
        for number, row in enumerate(rows[1:])
    ]
    path: Path = put(tmp_path / "shop.csv", [[*rows[0], "cost", "brand", "rare", "slot"], *extra])
    return path


def by_column(shop: Path, name: str) -> list[list[str]]:
    lines = [line.split(",") for line in shop.read_text().splitlines()]
    place, baskets = lines[0].index(name), dict.fromkeys(line[0] for line in lines[1:])
    return [[line[place] for line in lines[1:] if line[0] == basket] for basket in baskets]


NO_LIMITS: dict[str, Any] = dict.fromkeys(
    ("budget", "cost", "at_most", "at_least", "group", "min_size", "max_size", "must_have", "must_not", "conflict")
)
LIMITS: dict[str, list[str]] = {
    "budget": ["--budget", "4", "--cost", "cost"],
    "groups": ["--at-most", "1", "--group", "brand"],
    "sizes": ["--min-size", "1", "--max-size", "2"],
    "two budgets": ["--budget", "4", "--cost", "cost", "--budget", "3", "--cost", "load"],
    "group minimum": ["--at-least", "1", "--at-most", "2", "--group", "brand"],
    "must have": ["--must-have", "rare"],
    "must not": ["--must-not", "rare"],
    "conflict": ["--conflict", "slot"],
    "all": ["--budget", "6", "--cost", "cost", "--at-most", "1", "--group", "brand", "--max-size", "2"],
}


# Limits that leave out the items of low probability matter at a low threshold, a minimum at a high one.
THRESHOLDS = {"must have": "0.99", "group minimum": "0.99"}


@pytest.mark.parametrize("case", LIMITS)
def test_picks_respect_the_limits(run: Callable, model: Path, shop: Path, tmp_path: Path, case: str) -> None:
    costs = [[int(cost) for cost in part] for part in by_column(shop, "cost")]
    brands = by_column(shop, "brand")
    rare = [[value == "true" for value in part] for part in by_column(shop, "rare")]
    slots = [[[k for k, v in enumerate(part) if v == label] for label in "xy"] for part in by_column(shop, "slot")]
    constraint: Any = {
        "budget": Budget(costs, budget=4),
        "groups": Groups(brands, at_most=1),
        "sizes": SizeRange(1, 2),
        "two budgets": [Budget(costs, budget=4), Budget([[1.5] * len(part) for part in costs], budget=3)],
        "group minimum": Groups(brands, at_most=2, at_least=1),
        "must have": MustHave(rare),
        "must not": MustNot(rare),
        "conflict": Conflicts(slots),
        "all": AllOf([Budget(costs, budget=6), Groups(brands, at_most=1), SizeRange(0, 2)]),
    }[case]
    # A threshold at which the limits matter.
    threshold = THRESHOLDS.get(case, "0.01")
    words = [*LIMITS[case], "--threshold", threshold, "--json"]
    result = run("predict", model, shop, "-o", tmp_path / "p.parquet", *words)
    assert (result.code, result.err) == (0, "")
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")["chosen"].to_pylist()
    table = sg.read_table(shop, set_id="basket", features=["price", "stars"])
    selector = sg.load(model)
    expected = selector.predict(table.sets, constraint=constraint, threshold=float(threshold))
    assert picks == expected.values.tolist()
    assert picks != selector.predict(table.sets, threshold=float(threshold)).values.tolist()
    if case in ("budget", "all"):
        spent = [
            sum(c for c, m in zip(cost, mask, strict=True) if m) for cost, mask in zip(costs, expected, strict=True)
        ]
        assert max(spent) <= (4 if case == "budget" else 6)


def test_sets_outside_the_limits_are_skipped(run: Callable, model: Path, shop: Path, tmp_path: Path) -> None:
    """The error and the warning name the ids of the table, and the other sets are picked as if alone."""
    sizes = [len(part) for part in by_column(shop, "cost")]
    least = max(sizes)
    small = [f"'b{number}'" for number, size in enumerate(sizes) if size < least]
    words = ["predict", model, shop, "-o", tmp_path / "p.parquet", "--min-size", least]
    error = run(*words)
    assert error.code == 1
    assert f"set {small[0]} has no allowed subset: it needs at least {least} items" in error.err
    assert f"; {len(small)} of {len(sizes)} sets have none" in error.err
    assert not (tmp_path / "p.parquet").exists()
    result = run(*words, "--on-failure", "skip", "--json")
    assert result.code == 0
    assert [repr(entry["set"]) for entry in result.data["skipped"]] == small
    assert all(f"at least {least} items" in entry["reason"] for entry in result.data["skipped"])
    assert result.err.startswith(f"warning: {len(small)} of {len(sizes)} sets have no allowed subset and stay empty: ")
    assert f"set {small[0]}: it needs at least {least} items and has " in result.err
    picks = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    counts = {basket: 0 for basket in picks["basket"].to_pylist()}
    for basket, chosen in zip(picks["basket"].to_pylist(), picks["chosen"].to_pylist(), strict=True):
        counts[basket] += chosen
    assert list(counts.values()) == [size if size == least else 0 for size in sizes]


def test_a_size_beside_limits(run: Callable, model: Path, shop: Path, tmp_path: Path) -> None:
    words = ["--size", "2", "--must-not", "rare", "--json"]
    result = run("predict", model, shop, "-o", tmp_path / "p.parquet", *words)
    assert (result.data["smallest_size"], result.data["largest_size"]) == (2, 2)


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
        (["--budget", "4", "--budget", "5", "--cost", "cost"], "each as often as the other"),
        (["--at-least", "1"], "--at-least N --group COL"),
        (["--at-least", "-1", "--group", "brand"], "--at-least must be a whole number"),
        (["--at-least", "2", "--at-most", "1", "--group", "brand"], "--at-least 2 is more than --at-most 1"),
        (["--must-have", "bough"], "did you mean 'bought'?"),
        (["--must-not", "brand"], "column 'brand', row 1 (counted from 1, without the header): 'acme' is neither"),
        (["--conflict", "brands"], "did you mean 'brand'?"),
        (["--on-failure", "stop"], "unknown --on-failure 'stop'"),
        (["--max-size", "1", "--search", "greedy"], "--search greedy does not support limits"),
        (["--budget", "-1", "--cost", "cost"], "set 'b0' has no allowed subset: the budget -1 is below 0; 20 of 20"),
        (["--min-size", "99"], "it needs at least 99 items and has"),
        (["--min-size", "99"], "--on-failure='skip'"),
        (["--must-have", "bought", "--max-size", "1"], "2 items must be chosen, more than the largest size 1"),
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
    assert f"the constraint does not allow the subset chosen from set 'b0' of {shop}; 20 of 20 sets" in error.err
    limits = ["--min-size", "1", "--must-have", "bought"]
    assert run("fit", shop, *words, *limits, "-o", tmp_path / "d").code == 0


def test_groups_are_read_as_text(shop: Path) -> None:
    from argparse import Namespace

    sets = sg.read_table(shop, set_id="basket", features=["price"]).sets
    (result,) = read_limits(open_table(shop), sets, Namespace(**NO_LIMITS | {"at_most": 1, "group": "brand"})) or []
    assert isinstance(result, Groups)
    assert [list(part) for part in result.labels] == by_column(shop, "brand")


def test_costs_and_groups_are_read_in_one_pass(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import Namespace

    from setgrad.sets._sources import TableSource

    sets = sg.read_table(shop, set_id="basket", features=["price"]).sets
    calls, read_chunks = [], TableSource.read_chunks

    def record(source: TableSource, columns: list[str]) -> Any:
        calls.append((source.name, columns))
        return read_chunks(source, columns)

    monkeypatch.setattr(TableSource, "read_chunks", record)
    limits = {"budget": [5.0, 9.0], "cost": ["cost", "load"], "at_most": 1, "group": "brand", "must_not": "bought"}
    result = read_limits(open_table(shop), sets, Namespace(**NO_LIMITS | limits)) or []
    assert [type(part) for part in result] == [Budget, Budget, Groups, MustNot]
    assert calls == [(str(shop), ["cost", "load", "bought", "brand"])]


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

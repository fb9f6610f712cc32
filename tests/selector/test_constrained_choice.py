"""Constraints agree with the choice without them, for every method; one infeasible set leaves the others alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from setgrad import discrete
from setgrad.errors import InfeasibleError, ShapeError, SolverError
from setgrad.selector import (
    AllOf,
    Budget,
    Conflicts,
    Constraint,
    Groups,
    LinearConstraint,
    MustHave,
    MustNot,
    SizeRange,
    SubsetSelector,
)
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._constrained_choice import choose_allowed, worths
from setgrad.sets import Sets, subset_sizes
from tests.selector.conftest import TINY, make_choices


class NoLimit(Constraint):
    """A constraint of a user."""

    def solver(self, indices: np.ndarray, size: int) -> discrete.CombinatorialSolver:
        return discrete.CardinalityRange()


class NoRow(LinearConstraint):
    """A linear constraint of a user, as a plain tuple."""

    def solver(self, indices: np.ndarray, size: int) -> discrete.CombinatorialSolver:
        return discrete.CardinalityRange()

    def rows(self, indices: np.ndarray, size: int) -> Any:
        bound = np.ones((len(indices), 1))
        return np.ones((len(indices), 1, size)), -np.inf * bound, np.inf * bound


def each(sets: Sets, value: Any) -> list[list[Any]]:
    return [[value] * len(part) for part in sets]


# Constraints that exclude nothing, of every kind.
VACUOUS: dict[str, Callable[[Sets], Any]] = {
    "budget without a limit": lambda sets: Budget(each(sets, 1.5), budget=np.inf),
    "whole budget": lambda sets: Budget(each(sets, 1), budget=sets.layout.host_lengths),
    "fractional budget": lambda sets: Budget(each(sets, 0.1), budget=0.1 * sets.layout.host_lengths),
    "no cost": lambda sets: Budget(each(sets, 0), budget=0),
    "groups": lambda sets: Groups(each(sets, "a"), at_most=99),
    "groups by label": lambda sets: Groups(each(sets, "a"), at_most={}),
    "group minimum": lambda sets: Groups(each(sets, "a"), at_most={}, at_least={}),
    "sizes": lambda sets: SizeRange(),
    "sizes up to all": lambda sets: SizeRange(0, sets.layout.host_lengths.tolist()),
    "must have": lambda sets: MustHave([[]] * len(sets)),
    "must not": lambda sets: MustNot(each(sets, False)),
    "conflicts": lambda sets: Conflicts([[]] * len(sets)),
    "conflicts of one": lambda sets: Conflicts([[[k] for k in range(len(part))] for part in sets]),
    "all of": lambda sets: AllOf([SizeRange(), Budget(each(sets, 1.0), budget=99), Groups(each(sets, 1), at_most=99)]),
    "list": lambda sets: [MustHave([[]] * len(sets)), SizeRange(0, 99)],
    "empty list": lambda sets: [],
    "solver": lambda sets: discrete.CardinalityRange(),
    "linear constraint of a user": lambda sets: NoRow(),
    "constraint of a user": lambda sets: NoLimit(),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"threshold": 0.4},
    {"threshold": 0.0},
    {"threshold": 1.0},
    {"search": "local"},
    {"search": "local", "threshold": 0.6},
]


@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    kind=st.sampled_from(sorted(VACUOUS)),
    options=st.sampled_from(OPTIONS),
)
@settings(max_examples=60)
def test_a_vacuous_constraint_changes_nothing(
    quick: SubsetSelector, seed: int, sizes: list[int], kind: str, options: dict[str, Any]
) -> None:
    sets = Sets.from_lengths(torch.randn(sum(sizes), 2, generator=torch.Generator().manual_seed(seed)), sizes)
    free = quick.predict(sets, **options)
    assert torch.equal(quick.predict(sets, constraint=VACUOUS[kind](sets), **options).values, free.values)


@pytest.mark.parametrize("kind", VACUOUS)
def test_every_kind_of_vacuous_constraint_changes_nothing(quick: SubsetSelector, kind: str) -> None:
    sets = make_choices(12, seed=5).sets
    assert torch.equal(quick.predict(sets, constraint=VACUOUS[kind](sets)).values, quick.predict(sets).values)
    if kind not in ("solver", "constraint of a user"):
        given_size = quick.predict(sets, size=2, constraint=VACUOUS[kind](sets))
        assert torch.equal(given_size.values, quick.predict(sets, size=2).values)


@given(
    values=st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.0, 1.0, 3.0]), min_size=1, max_size=7),
    bits=st.integers(0, 127),
    cut=st.sampled_from([None, -1.0, 0.0, 2.0]),
)
def test_no_subset_is_worth_more_than_the_free_one(values: list[float], bits: int, cut: float | None) -> None:
    """Also with ties, and with scores by which the subset is not the best."""
    free = torch.tensor([bits >> k & 1 for k in range(len(values))], dtype=torch.bool)
    result = worths(torch.tensor(values), Sets.from_list([free]), cut)
    assert torch.equal(result > 0, free)
    assert torch.equal(result < 0, ~free)
    inside, outside = torch.tensor(values)[free], torch.tensor(values)[~free]
    if cut is None and len(inside) and len(outside) and inside.min() > outside.max():
        torch.testing.assert_close(result, (torch.tensor(values) - (inside.min() + outside.max()) / 2).double())


def test_the_cut_has_a_place_if_all_or_nothing_is_chosen() -> None:
    free = Sets.from_list(
        [torch.tensor([False, False])] * 2 + [torch.tensor([True, True])] * 2 + [torch.zeros(0).bool()]
    )
    scores = torch.tensor([-1.0, -3.0, 2.0, 1.0, 2.0, 3.0, -1.0, 0.0])
    assert worths(scores, free).tolist() == [-1, -3, -1, -2, 2, 3, 1, 2]
    levels = torch.tensor([0.0, 9.0, -9.0, -9.0, 0.0])
    assert worths(scores, free, levels).tolist() == [-1, -3, -7, -8, 11, 12, 8, 9]


def test_a_threshold_is_the_cut(unrolled: SubsetSelector) -> None:
    """Two weak items against one strong one: what a low threshold makes of them is more than the strong one."""
    sets = Sets.from_lengths(torch.zeros(3, 2), [3])
    scores = sets.with_values(torch.tensor([2.0, 1.2, 1.1]))
    for threshold, expected in ((0.5, [False, True, True]), (0.7, [True, False, False])):
        picks = unrolled.predict(sets, constraint=Budget([[2, 1, 1]], 2), threshold=threshold, scores=scores)
        assert picks.values.tolist() == expected


def test_a_size_beside_a_constraint(unrolled: SubsetSelector) -> None:
    sets = make_choices(12, seed=3).sets
    costs = [[1 + k % 3 for k in range(len(part))] for part in sets]
    scores = unrolled.decision_function(sets)
    wanted = [1 + number % 3 for number in range(len(sets))]
    for size in (2, wanted):
        picks = unrolled.predict(sets, size=size, constraint=Budget(costs, budget=6), scores=scores)
        assert subset_sizes(picks).tolist() == np.broadcast_to(size, len(sets)).tolist()
        both = AllOf([Budget(costs, budget=6), SizeRange(size, size)])
        best = BatchConstraint.of(both, sets).choose(scores.values.double(), sets)
        assert torch.equal(picks.values, best.values)


def test_local_search_visits_allowed_subsets_only(quick: SubsetSelector) -> None:
    sets = make_choices(12, seed=3).sets
    constraint = [MustHave([[0]] * len(sets)), Conflicts([[(1, 2)]] * len(sets)), SizeRange(1, 2)]
    allowed, bound = BatchConstraint.of(constraint, sets), quick.function_.bind(sets)
    plain, better = (quick.predict(sets, constraint=constraint, search=search) for search in (None, "local"))
    assert bool(allowed.allows(torch.stack([plain.values, better.values]), sets).all())
    free = quick.predict(sets, search="local")
    value = bound.value(torch.stack([plain.values, better.values]))
    is_free = allowed.allows(free.values[None], sets)[0]
    assert torch.equal(better.values[is_free[sets.layout.ids]], free.values[is_free[sets.layout.ids]])
    assert bool((value[1] >= value[0] - 1e-5)[~is_free].all())


def test_wrong_constraints_raise_before_any_work(unrolled: SubsetSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SubsetSelector, "_infer", None)
    with pytest.raises(ShapeError, match="belongs to 1 sets"):
        unrolled.predict(make_choices(3).sets, constraint=MustHave([[0]]))


def test_fit_takes_a_list_of_constraints() -> None:
    choices = make_choices(20)
    empty = [np.flatnonzero(~mask.numpy())[:1].tolist() for mask in choices.subsets]
    limits = [MustNot(empty), SizeRange(0, 7)]
    selector = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, constraint=limits)
    picks = selector.predict(choices.sets, constraint=limits)
    assert not any(bool(mask[part].any()) for mask, part in zip(picks, empty, strict=True))
    assert selector.score(*choices, constraint=limits) > 0
    separate = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(
        *choices, validation=(*choices, limits), constraint=limits
    )
    assert len(separate.history_) == 1


# ---- infeasible sets

BAD = 617


def thousand() -> tuple[Sets, list[list[int]], list[list[int]]]:
    """Return a thousand sets, costs, and items that must be chosen; those of one set cost too much."""
    sets = make_choices(1000, seed=9).sets
    costs = [[1 + k % 3 for k in range(len(part))] for part in sets]
    items: list[list[int]] = [[number % 2] for number in range(1000)]
    items[BAD], costs[BAD][:3] = [0, 2], [30, 1, 30]
    return sets, costs, items


@pytest.mark.parametrize("options", [{}, {"search": "local"}, {"size": 2}])
def test_one_infeasible_set_among_a_thousand(unrolled: SubsetSelector, options: dict[str, Any]) -> None:
    sets, costs, items = thousand()
    limits = [Budget(costs, budget=5), MustHave(items)]
    reason = "the items that must be chosen cost 60, more than the budget 5"
    with pytest.raises(
        SolverError, match=rf"set {BAD} \(counted from 0\) has no allowed subset: {reason}\. Loosen"
    ) as e:
        unrolled.predict(sets, constraint=limits, **options)
    assert isinstance(e.value, InfeasibleError)
    assert e.value.reasons == {BAD: reason}
    with pytest.warns(RuntimeWarning, match=rf"1 of 1000 sets have no .*empty: set {BAD} \(counted from 0\): {reason}"):
        picks = unrolled.predict(sets, constraint=limits, on_failure="skip", **options)
    assert not picks[BAD].any()
    rest = np.flatnonzero(np.arange(1000) != BAD)
    alone = [Budget([costs[k] for k in rest], budget=5), MustHave([items[k] for k in rest])]
    assert torch.equal(picks.take(rest).values, unrolled.predict(sets.take(rest), constraint=alone, **options).values)


def test_score_skips_infeasible_sets(unrolled: SubsetSelector) -> None:
    choices = make_choices(6, seed=3)
    limit = SizeRange(0, 4), SizeRange([0, 0, 9, 0, 0, 0])
    with pytest.raises(SolverError, match=r"set 2 .*it needs at least 9 items and has 5"):
        unrolled.score(*choices, constraint=limit)
    with pytest.warns(RuntimeWarning, match="1 of 6 sets"):
        result = unrolled.score(*choices, constraint=limit, on_failure="skip")
    assert 0 < result < 1


def test_many_infeasible_sets_are_counted(unrolled: SubsetSelector) -> None:
    sets = make_choices(30, seed=3).sets
    with pytest.warns(RuntimeWarning, match="30 of 30 sets .*; and 20 more$"):
        assert not unrolled.predict(sets, constraint=SizeRange(9), on_failure="skip").values.any()


def test_a_solver_of_the_user_fails_for_one_set() -> None:
    """A plain solver has a status for each instance; a failure of one is not a failure of all."""
    sets = Sets.from_lengths(torch.zeros(6, 1), [2, 2, 2])
    free = sets.with_values(torch.ones(6, dtype=torch.bool))
    solver = discrete.Knapsack([[1, 1]] * 3, budget=[1, -1, 2])
    constraint = BatchConstraint.of(solver, sets)
    scores = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    with pytest.raises(InfeasibleError, match=r"set 1 .*INFEASIBLE"):
        choose_allowed(constraint, sets, scores=scores, free=free)
    with pytest.warns(RuntimeWarning, match="set 1 "):
        picks = choose_allowed(constraint, sets, scores=scores, free=free, on_failure="skip")
    assert picks.values.tolist() == [False, True, False, False, True, True]

"""Every combination of two kinds of constraints, compared with the enumeration of all subsets."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.errors import DataError, InfeasibleError, OptionError, ShapeError
from setgrad.selector import AllOf, Budget, Conflicts, Groups, MustHave, MustNot, SizeRange
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._constrained_choice import choose_allowed, worths
from setgrad.selector.constraints._exact import ExactBackend
from setgrad.sets import Sets

SIZES = [5, 0, 1, 4, 6, 3, 5, 4]
# Whether a subset of a set, a list of positions, is allowed.
Rule = Callable[[int, list[int]], bool]


def numbers(seed: int, high: int, low: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(low, high, size).tolist() for size in SIZES]


def whole_budget(seed: int) -> tuple[Any, Rule]:
    costs = numbers(seed, 9, 1)
    return Budget(costs, budget=12), lambda i, z: sum(costs[i][k] for k in z) <= 12


def fractional_budgets(seed: int) -> tuple[Any, Rule]:
    costs = [[c / 4 for c in part] for part in numbers(seed, 19, 1)]
    limits = [3.0, 1.0, 0.25, 4.0, 5.5, 2.0, np.inf, 6.25]
    return Budget(costs, budget=limits), lambda i, z: sum(costs[i][k] for k in z) <= limits[i]


def groups_at_most(seed: int) -> tuple[Any, Rule]:
    labels = numbers(seed, 3)
    return Groups(labels, at_most=1), lambda i, z: all(sum(labels[i][k] == g for k in z) <= 1 for g in range(3))


def groups_at_least(seed: int) -> tuple[Any, Rule]:
    labels = numbers(seed, 3)
    return (
        Groups(labels, at_least=1),
        lambda i, z: all(sum(labels[i][k] == g for k in z) >= 1 for g in set(labels[i])),
    )


def groups_by_label(seed: int) -> tuple[Any, Rule]:
    labels = [["abc"[k] for k in part] for part in numbers(seed, 3)]
    return (
        Groups(labels, at_most={"a": 1, "b": 2}, at_least={"b": 1}),
        lambda i, z: sum(labels[i][k] == "a" for k in z) <= 1 and 1 <= sum(labels[i][k] == "b" for k in z) <= 2,
    )


def size_range(seed: int) -> tuple[Any, Rule]:
    return SizeRange(seed, seed + 1), lambda i, z: seed <= len(z) <= seed + 1


def sizes_by_set(seed: int) -> tuple[Any, Rule]:
    least = [(seed + number) % 3 for number in range(len(SIZES))]
    return SizeRange(least, [n + 1 for n in least]), lambda i, z: least[i] <= len(z) <= least[i] + 1


def some_items(seed: int) -> list[list[int]]:
    return [[k for k, draw in enumerate(part) if draw == 0] for part in numbers(seed, 4)]


def must_have(seed: int) -> tuple[Any, Rule]:
    items = some_items(seed)
    return MustHave(items), lambda i, z: set(items[i]) <= set(z)


def must_not(seed: int) -> tuple[Any, Rule]:
    items = some_items(seed + 5)
    masks = [[k in part for k in range(size)] for part, size in zip(items, SIZES, strict=True)]
    return MustNot(masks), lambda i, z: not set(items[i]) & set(z)


def conflicts(seed: int) -> tuple[Any, Rule]:
    pairs = [list(itertools.combinations(range(size), 2))[seed::3] for size in SIZES]
    return Conflicts(pairs), lambda i, z: all(not set(pair) <= set(z) for pair in pairs[i])


def disjoint_conflicts(seed: int) -> tuple[Any, Rule]:
    labels = [[None if k == 0 else k for k in part] for part in numbers(seed, 3)]
    return (
        Conflicts.from_labels(labels),
        lambda i, z: all(sum(labels[i][k] == label for k in z) <= 1 for label in (1, 2)),
    )


KINDS = [
    whole_budget,
    fractional_budgets,
    groups_at_most,
    groups_at_least,
    groups_by_label,
    size_range,
    sizes_by_set,
    must_have,
    must_not,
    conflicts,
    disjoint_conflicts,
]
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


def subsets_of(n: int) -> list[list[int]]:
    return [[k for k in range(n) if bits >> k & 1] for bits in range(2**n)]


@pytest.mark.parametrize(
    "kinds", [*((kind,) for kind in KINDS), *PAIRS], ids=lambda ks: " and ".join(k.__name__ for k in ks)
)
def test_the_choice_is_the_best_allowed_subset(kinds: tuple[Callable[[int], tuple[Any, Rule]], ...]) -> None:
    constraints, rules = zip(*(kind(seed) for seed, kind in enumerate(kinds, 1)), strict=True)
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(sum(SIZES), generator=random, dtype=torch.float64)
    free = Sets.from_lengths(scores > 0.2, SIZES)
    sets = Sets.from_lengths(torch.zeros(sum(SIZES), 1), SIZES)
    values = Sets.from_lengths(worths(scores, free), SIZES)
    constraint = BatchConstraint.of(list(constraints), sets)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        picks = choose_allowed(constraint, sets, scores=scores, free=free, on_failure="skip")
    infeasible = []
    for index, size in enumerate(SIZES):
        everything = subsets_of(size)
        allowed = [z for z in everything if all(rule(index, z) for rule in rules) or not size]
        masks = torch.zeros(len(everything), size, dtype=torch.bool)
        for mask, z in zip(masks, everything, strict=True):
            mask[z] = True
        found = constraint.take(np.array([index])).allows(masks, sets.take([index]))[:, 0].tolist()
        assert found == [z in allowed for z in everything]
        z, own = picks[index].nonzero().flatten().tolist(), free[index].nonzero().flatten().tolist()
        if not allowed:
            assert z == []
            infeasible.append(index)
        elif own in allowed:
            assert z == own
        else:
            assert z in allowed
            best = max(float(values[index][other].sum()) for other in allowed)
            assert float(values[index][z].sum()) == pytest.approx(best, abs=1e-9)
    text = str(caught[0].message) if caught else "0 of"
    assert len(caught) == bool(infeasible)
    assert text.startswith(f"{len(infeasible)} of")
    assert all(f"set {index} (counted from 0): " in text for index in infeasible)


def reasons(constraint: Any, sizes: list[int]) -> dict[int, str]:
    sets = Sets.from_lengths(torch.zeros(sum(sizes), 1), sizes)
    free = sets.with_values(torch.zeros(sum(sizes), dtype=torch.bool))
    with pytest.raises(InfeasibleError) as caught:
        choose_allowed(BatchConstraint.of(constraint, sets), sets, scores=torch.zeros(sum(sizes)), free=free)
    return caught.value.reasons


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (
            [Budget([[30, 30, 1]], 50), MustHave([[0, 1]])],
            "the items that must be chosen cost 60, more than the budget 50",
        ),
        ([Budget([[30.5, 30, 1]], 50), MustHave([[0, 1]])], "the items that must be chosen cost 60.5, more than"),
        (Budget([[1, 1, 1]], -2), "the budget -2 is below 0"),
        (Groups([["tea", "milk", "milk"]], at_least={"tea": 2}), "group 'tea' needs at least 2 items and has 1"),
        (
            [Groups([["a", "a", "b"]], at_least={"a": 2}), MustNot([[0]])],
            "at least 2 items, and only 1 of its 2 may be",
        ),
        ([Groups([["a", "a", "b"]], at_most=1), MustHave([[0, 1]])], "2 items of group 'a' must be chosen, and it may"),
        (SizeRange(4), "it needs at least 4 items and has 3"),
        ([SizeRange(3), MustNot([[1]])], "it needs at least 3 items, and only 2 of its 3 may be chosen"),
        ([SizeRange(0, 1), MustHave([[0, 2]])], "2 items must be chosen, more than the largest size 1"),
        ([MustHave([[1]]), MustNot([[1]])], "item 1 (counted from 0) must be chosen, and must not"),
        (
            [MustHave([[0, 2]]), Conflicts([[(0, 1, 2)]])],
            "items 0 and 2 (counted from 0) must be chosen, and they exclude each other",
        ),
        ([SizeRange(2), Budget([[5, 5, 4]], 8)], "its cheapest subset of 2 items costs 9, more than the budget 8"),
        ([SizeRange(2), Budget([[9, 5, 4]], 9), MustNot([[2]])], "its cheapest subset of 2 items costs 14, more than"),
        ([SizeRange(2), Conflicts([[(0, 1, 2)]])], "the constraints exclude each other"),
    ],
)
def test_reasons_say_what_is_wrong(constraint: Any, reason: str) -> None:
    found = reasons(constraint, [3])
    assert list(found) == [0]
    assert reason in found[0]


def test_a_named_group_that_a_set_lacks_is_missed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tea = Groups([["tea"], ["milk"]], at_least={"tea": 1})
    assert reasons(tea, [1, 1]) == {1: "group 'tea' needs at least 1 items and has 0"}
    with pytest.warns(UserWarning, match="at_least has a limit for group 'te'.*spelling"):
        Groups([["tea"]], at_least={"te": 1})


@pytest.mark.parametrize(
    "constraint",
    [
        [Budget([[3, 4, 5]], 8), MustHave([[1]]), MustNot([[0]])],
        [Groups([["a", "a", "b"]], at_most=1), MustHave([[1]])],
        [SizeRange(0, 2), MustHave([[1]])],
        [Conflicts([[(0, 2)]]), MustHave([[1]]), MustNot([[0]])],
        Conflicts([[(0, 2), (1,)]]),
        [MustHave([[1]]), MustNot([[0]])],
        [Budget([[3, 4, 5]], 8)],
    ],
)
def test_fixed_items_beside_one_constraint_need_no_integer_program(
    constraint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExactBackend, "find", None)
    sets = Sets.from_lengths(torch.zeros(3, 1), [3])
    assert len(BatchConstraint.of(constraint, sets).choose(torch.ones(3), sets)) == 1


def test_lists_are_flat_and_an_empty_one_allows_everything() -> None:
    first, second, third = SizeRange(1), SizeRange(2), SizeRange(0, 3)
    assert AllOf([first, AllOf([second, third])]).parts == [first, second, third]
    sets = Sets.from_lengths(torch.zeros(3, 1), [3])
    assert BatchConstraint.of([], sets).choose(torch.tensor([1.0, -1.0, 2.0]), sets).values.tolist() == [
        True,
        False,
        True,
    ]


def test_conflicts_of_labels() -> None:
    labels = [["a", None, "a", "b"], ["b", "b", None]]
    assert Conflicts.from_labels(labels).groups == [[[0, 2], [3]], [[0, 1]]]


def test_sets_of_booleans_name_items() -> None:
    masks = Sets.from_list([torch.tensor([True, False]), torch.tensor([False, True, True])])
    sets = Sets.from_lengths(torch.zeros(5, 1), [2, 3])
    scores = torch.tensor([-1.0, 1.0, 1.0, -1.0, -1.0])
    for constraint, expected in ((MustHave(masks), [1, 1, 1, 1, 1]), (MustNot(masks), [0, 1, 1, 0, 0])):
        assert BatchConstraint.of(constraint, sets).choose(scores, sets).values.long().tolist() == expected


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MustHave(3), ShapeError, "items must be one list for each set"),
        (lambda: MustHave([[0.5]]), DataError, "items of set 0 must be positions"),
        (lambda: MustNot([[], [-1]]), DataError, "items of set 1 must be positions"),
        (lambda: Conflicts([[0, 1]]), DataError, r"write \[\(0, 1\)\] for one pair"),
        (lambda: Groups([["a"]], at_least=-1), OptionError, "at_least must be a whole number of at least 0"),
        (lambda: Groups([["a"]], at_most=1, at_least=2), OptionError, "needs at least 2 and at most 1 items"),
        (lambda: SizeRange([1, 2], [3]), ShapeError, "min_size has 2 numbers and max_size has 1"),
        (lambda: SizeRange(1.5), OptionError, "min_size must be a whole number"),  # type: ignore[arg-type]
        (lambda: SizeRange([[1], [1, 2]]), OptionError, "min_size must be a whole number"),  # type: ignore[list-item]
        (lambda: AllOf([MustHave([[]]), SizeRange([1, 2])]), ShapeError, "different sets"),
    ],
)
def test_wrong_arguments_raise(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("constraint", "error", "message"),
    [
        (MustHave([[3], []]), DataError, "MustHave names item 3 of set 0, but that set has 3 items"),
        (MustNot([[True], []]), ShapeError, "MustNot has a mask of 1 items for set 0, which has 3 items"),
        (MustNot([[]]), ShapeError, "belongs to 1 sets, but there are 2"),
        (Conflicts([[], [(0, 1)]]), DataError, "Conflicts names item 1 of set 1, but that set has 1 items"),
        (SizeRange([1, 2, 3]), ShapeError, "SizeRange belongs to 3 sets, but there are 2"),
        ([MustHave([[3], []]), SizeRange()], DataError, "MustHave names item 3"),
    ],
)
def test_constraints_on_other_sets_raise(constraint: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BatchConstraint.of(constraint, Sets.from_lengths(torch.zeros(4, 1), [3, 1]))

"""Prediction and training under constraints, compared with the enumeration of all subsets."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from setgrad import discrete
from setgrad.errors import DataError, OptionError, ShapeError, SolverError
from setgrad.inference import AllItems
from setgrad.selector import (
    AllOf,
    Budget,
    Conflicts,
    Constraint,
    Groups,
    MustHave,
    MustNot,
    SizeRange,
    SubsetSelector,
    load,
)
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._choice_loss import FenchelYoungLoss
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY, make_choices

SIZES = [5, 0, 1, 8, 3, 5, 6]


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def scores():
    return Sets.from_lengths(torch.randn(sum(SIZES), generator=generator(0), dtype=torch.float64), SIZES)


def of_items(values):
    return Sets.from_lengths(values, SIZES)


COSTS = of_items(torch.randint(1, 9, (sum(SIZES),), generator=generator(1)))
# Costs of several kinds side by side: whole, multiples of ten, and fractions.
PRICES = COSTS.with_values(
    torch.where(COSTS.layout.ids == 3, COSTS.values * 10.0, COSTS.values + 0.25 * (COSTS.layout.ids == 5)).double()
)
LABELS = of_items(torch.randint(0, 3, (sum(SIZES),), generator=generator(2)))
BUDGETS = [9.0, 1.0, 0.0, 80.0, 4.0, 9.5, np.inf]


def within(costs, budgets):
    budgets = np.broadcast_to(budgets, (len(SIZES),))
    return lambda number, mask: costs[number][mask].sum().item() <= budgets[number]


def at_most_of_each(most):
    return lambda number, mask: all((LABELS[number][mask] == g).sum() <= most for g in range(3))


CASES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "budget": (Budget(COSTS, budget=9), within(COSTS, 9)),
    "budgets of every kind": (Budget(PRICES, budget=BUDGETS), within(PRICES, BUDGETS)),
    "groups": (Groups(LABELS, at_most=1), at_most_of_each(1)),
    "groups by label": (Groups(LABELS, at_most={2: 0}), lambda number, mask: (LABELS[number][mask] != 2).all()),
    "sizes": (SizeRange(1, 2), lambda number, mask: 1 <= mask.sum() <= 2 or not len(mask)),
    "all of them": (
        AllOf([Budget(PRICES, budget=BUDGETS), Groups(LABELS, at_most=2), SizeRange(0, 3)]),
        lambda number, mask: (
            within(PRICES, BUDGETS)(number, mask) and at_most_of_each(2)(number, mask) and mask.sum() <= 3
        ),
    ),
    "groups with a minimum": (
        Groups(LABELS, at_least=1),
        lambda number, mask: all((LABELS[number][mask] == g).any() for g in LABELS[number].unique()),
    ),
    "sizes of each set": (
        SizeRange([2, 0, 1, 3, 0, 1, 2], [3, 0, 1, 5, 1, 1, 6]),
        lambda number, mask: [2, 0, 1, 3, 0, 1, 2][number] <= mask.sum() <= [3, 0, 1, 5, 1, 1, 6][number],
    ),
    "items that must be chosen": (
        MustHave(LABELS.with_values(LABELS.values == 0)),
        lambda number, mask: mask[LABELS[number] == 0].all(),
    ),
    "items that must not": (
        MustNot(LABELS.with_values(LABELS.values == 0)),
        lambda number, mask: not mask[LABELS[number] == 0].any(),
    ),
    "conflicts": (
        Conflicts([[(0, size - 1)] if size > 1 else [] for size in SIZES]),
        lambda number, mask: len(mask) < 2 or not (mask[0] and mask[-1]),
    ),
    "conflicts that overlap": (
        Conflicts([[(k, k + 1) for k in range(size - 1)] for size in SIZES]),
        lambda number, mask: not (mask[1:] & mask[:-1]).any(),
    ),
    "fixed items beside a budget": (
        AllOf(
            [
                Budget(COSTS, budget=20),
                MustHave([[0][:size] for size in SIZES]),
                MustNot([[1] if size > 1 else [] for size in SIZES]),
            ]
        ),
        lambda number, mask: mask[0] and not mask[1:2].any() and within(COSTS, 20)(number, mask),
    ),
    "a solver": (discrete.TopK(1), lambda number, mask: mask.sum() == 1),
    "a solver that minimises": (discrete.CardinalityRange(1, sense="min"), lambda number, mask: mask.sum() >= 1),
}


def subsets_of(n):
    return [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product([False, True], repeat=n)]


@pytest.mark.parametrize("case", CASES)
def test_choose_returns_the_best_feasible_subset(case, scores):
    constraint, allows = CASES[case]
    picks = BatchConstraint.of(constraint, scores).choose(scores.values, scores)
    for number, mask in enumerate(picks):
        if not len(mask):
            continue
        assert allows(number, mask)
        values = [scores[number][other].sum().item() for other in subsets_of(len(mask)) if allows(number, other)]
        assert scores[number][mask].sum().item() == pytest.approx(max(values), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_choice_does_not_depend_on_the_batch(case, scores):
    allowed = BatchConstraint.of(CASES[case][0], scores)
    # Many ties, which must be broken in the same way in every batch.
    coarse = scores.with_values(scores.values.round())
    together = allowed.choose(coarse.values, scores)
    for number in range(len(scores)):
        alone = coarse.take([number])
        assert torch.equal(allowed.take(np.array([number])).choose(alone.values, alone).values, together[number])


@pytest.mark.parametrize("case", CASES)
def test_check_feasible_rejects_exactly_the_infeasible_subsets(case, scores):
    constraint, allows = CASES[case]
    allowed = BatchConstraint.of(constraint, scores)
    for number in (0, 3, 4, 5):
        for mask in subsets_of(SIZES[number])[::3]:
            one = Sets.from_list([mask])
            if allows(number, mask):
                allowed.take(np.array([number])).check_feasible(one)
            else:
                with pytest.raises(DataError, match=f"does not allow the subset chosen from set {number} "):
                    allowed.take(np.array([number])).check_feasible(one)


def test_sets_of_one_size_accept_any_solver(unrolled):
    sets = Sets.from_lengths(torch.randn(40, 2, generator=generator(4)), [5] * 8)
    weights = torch.randint(1, 9, (8, 5), generator=generator(5))
    solver = discrete.Knapsack(weights, budget=9)
    by_solver = unrolled.predict(sets, constraint=solver)
    # Once to tell whether the choice without the constraint is allowed, once to choose.
    assert solver.counter.instances == 16
    assert torch.equal(by_solver.values, unrolled.predict(sets, constraint=Budget(weights, budget=9)).values)
    assert all(int(w[mask].sum()) <= 9 for w, mask in zip(weights, by_solver, strict=True))
    scores = unrolled.decision_function(sets)
    again = unrolled.predict(sets, constraint=discrete.Knapsack(weights[0], budget=9), scores=scores)
    assert torch.equal(again[0], by_solver[0])
    at_most_two = discrete.Matroid(lambda masks: masks.sum(-1) <= 2)
    up_to_two = unrolled.predict(sets, constraint=SizeRange(max_size=2))
    assert torch.equal(unrolled.predict(sets, constraint=at_most_two).values, up_to_two.values)


def test_a_constraint_of_the_user(unrolled):
    class NotTheFirst(Constraint):
        def solver(self, indices, size):
            return discrete.PartitionMatroid([0] + [1] * (size - 1), at_most=[0, size])

    sets = make_choices(12, seed=3).sets
    free, tied = unrolled.predict(sets), unrolled.predict(sets, constraint=NotTheFirst())
    first = sets.layout.positions == 0
    assert not tied.values[first].any()
    assert torch.equal(tied.values[~first], free.values[~first])


@pytest.mark.parametrize("case", ["groups", "sizes", "all of them"])
def test_local_search_stays_feasible_and_improves_f(fitted, case):
    constraint, allows = CASES[case]
    sets = of_items(torch.randn(sum(SIZES), 2, generator=generator(6)))
    bound = fitted.function_.bind(sets)
    plain, better = (fitted.predict(sets, constraint=constraint, search=s) for s in (None, "local"))
    assert all(allows(number, mask) for number, mask in enumerate(better) if len(mask))
    gain = bound.value(better.values[None])[0] - bound.value(plain.values[None])[0]
    assert bool((gain >= -1e-5).all())


def test_constrained_search_finds_the_best_subset_of_a_modular_function(scores):
    from setgrad.functions import Modular
    from setgrad.selector.search import constrained_search

    bound = Modular().bind(scores.with_values(scores.values[:, None]))
    allowed = BatchConstraint.of(CASES["all of them"][0], scores)
    nothing = scores.with_values(torch.zeros(sum(SIZES), dtype=torch.bool))
    result = constrained_search(bound, nothing, lambda w: allowed.solve(w, scores))
    assert torch.equal(result.values, allowed.choose(scores.values, scores).values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget("price", 50),
        lambda: Groups("price", at_most=1),
        lambda: Conflicts("price"),
        lambda: MustHave("price"),
    ],
)
def test_the_name_of_a_column_is_no_constraint(make):
    with pytest.raises(
        ShapeError, match=r"not the name of a column; of a data frame: \[rows\['price'\]\.tolist\(\) for"
    ):
        make()


def test_errors_name_the_set_without_a_solution(unrolled):
    sets = make_choices(6, seed=3).sets
    costs = [[1.0] * len(x) for x in sets]
    with pytest.raises(SolverError, match=r"set 4 \(counted from 0\) has no allowed subset: the budget -1 is below 0"):
        unrolled.predict(sets, constraint=Budget(costs, budget=[1, 1, 1, 1, -1, 1]))
    with pytest.raises(
        SolverError, match=r"set 0 .*2 items costs 2, more than the budget 1; 6 of 6 sets have none.*on_failure='skip'"
    ):
        unrolled.predict(sets, constraint=AllOf([Budget(costs, budget=1), SizeRange(2)]))
    with pytest.raises(SolverError, match=r"set 0 .*: it needs at least 4 items and has 3; 2 of 6"):
        unrolled.predict(sets, constraint=SizeRange(4))
    with pytest.raises(ShapeError, match=r"Budget and Groups of setgrad\.selector fit sets of any sizes"):
        unrolled.predict(sets, constraint=discrete.Knapsack([1.0] * 4, budget=1))
    masked = discrete.CallableSolver(lambda theta: torch.full_like(theta, torch.nan), on_failure="mask")
    assert not unrolled.predict(sets, constraint=masked).values.any()
    warned = discrete.CallableSolver(lambda theta: torch.full_like(theta, torch.nan), on_failure="warn")
    with pytest.warns(RuntimeWarning, match="set 0"):
        unrolled.predict(sets[:1], constraint=warned)


def test_wrong_constraints_raise(unrolled):
    sets = make_choices(6, seed=3).sets
    ones = [[1.0] * len(x) for x in sets]
    for constraint, error, message in [
        ("cheap", OptionError, "must be a Constraint, a list of them, or a solver of setgrad.discrete, not str"),
        (discrete.Assignment(), OptionError, "arrays of 2 axes"),
        (discrete.Ranking(), SolverError, "other than 0 and 1"),
        (Budget(ones[:-1], budget=1), ShapeError, "belongs to 5 sets, but there are 6"),
        (Groups([*ones[:3], [1.0], *ones[4:]]), ShapeError, "has 1 numbers for set 3, which has 6 items"),
    ]:
        with pytest.raises(error, match=message):
            unrolled.predict(sets, constraint=constraint)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": 2, "constraint": discrete.TopK(1)}, "size goes with linear constraints"),
        ({"search": "greedy"}, "search='local'"),
        ({"threshold": 1.5}, "between 0 and 1"),
        ({"on_failure": "stop"}, "unknown on_failure 'stop'"),
        ({"constraint": [SizeRange(), discrete.TopK(1)]}, "not TopK; a solver of setgrad.discrete stands alone"),
    ]
    for options, message in wrong:
        with pytest.raises(OptionError, match=message):
            unrolled.predict(sets, **{"constraint": SizeRange(), **options})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Budget([[1.0, -1.0]], budget=1), DataError, "item 1 of set 0 is -1"),
        (lambda: Budget([[1.0], [float("nan")]], budget=1), DataError, "item 0 of set 1 is nan"),
        (lambda: Budget([[1.0]], budget=[1, 2]), ShapeError, "one for each of 1 sets"),
        (lambda: Budget([[1.0]], budget=float("nan")), DataError, "NaN"),
        (lambda: Budget([[[1.0, 2.0]]], budget=1), ShapeError, "one number for each item"),
        (lambda: Groups([["a"]], at_most=-1), OptionError, "at least 0"),
        (lambda: Groups([["a", None]]), DataError, "missing value"),
        (lambda: Groups([[1.0, float("nan")]]), DataError, "missing value"),
        (lambda: Groups([1, 2]), ShapeError, "labels must be one list for each set"),
        (lambda: Budget(None, 1), ShapeError, "costs must be one list for each set"),
        (lambda: Budget([[1.0]], "much"), ShapeError, "budget must be one number"),
        (lambda: AllOf(3), OptionError, "at least one constraint"),  # type: ignore[arg-type]
        (lambda: SizeRange(3, 2), OptionError, "min_size <= max_size"),
        (lambda: AllOf([]), OptionError, "at least one constraint"),
        (lambda: AllOf([discrete.TopK(1)]), OptionError, "Groups or SizeRange"),  # type: ignore[list-item]
        (lambda: AllOf([Budget([[1]], budget=1), Groups([[1, 2]])]), ShapeError, "different sets"),
    ],
)
def test_wrong_arguments_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_limit_for_an_unknown_group_warns():
    with pytest.warns(UserWarning, match=r"group 'b', which no item of these sets.*spelling"):
        groups = Groups([["a", "a"]], at_most={"a": 1, "b": 1})
    assert groups.solver(np.array([0]), 2)(torch.ones(1, 2)).tolist() == [[1, 0]]


# ---- training


def test_the_loss_without_a_limit_is_the_cross_entropy(scores):
    """Under logistic noise an item is chosen in a share of sigmoid(logit) of the draws."""
    subsets = scores.with_values(scores.values > 0.3)
    logits = scores.values.clone().requires_grad_()
    for allowed in (BatchConstraint.of(SizeRange(), scores), BatchConstraint.of(Budget(COSTS, budget=np.inf), scores)):
        many = FenchelYoungLoss(allowed, 10_000, 7)(logits, subsets, None, None)
        plain = AllItems()(logits, subsets, None, None)
        (result,), (right,) = torch.autograd.grad(many, logits), torch.autograd.grad(plain, logits)
        torch.testing.assert_close(many, plain, rtol=0, atol=0.02)
        torch.testing.assert_close(result, right, rtol=0, atol=3e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_excess_frequency_of_an_item(case, scores):
    constraint, _ = CASES[case]
    allowed = BatchConstraint.of(constraint, scores)
    target = allowed.choose(-scores.values, scores)
    logits = scores.values.clone().requires_grad_()
    samples = 40
    loss = FenchelYoungLoss(allowed, samples, 8)(logits, target, None, None)
    (result,) = torch.autograd.grad(loss, logits)
    scaled = result * scores.lengths[scores.layout.ids] * sum(size > 0 for size in SIZES) + target.values.double()
    # Shares of draws are multiples of 1 / samples between 0 and 1.
    assert bool(((scaled > -1e-9) & (scaled < 1 + 1e-9)).all())
    torch.testing.assert_close(scaled * samples, (scaled * samples).round(), rtol=0, atol=1e-6)
    if case == "a solver":
        assert torch.allclose(
            torch.stack([part.sum() for part in scores.with_values(scaled) if len(part)]), scaled[:1] * 0 + 1
        )


def choices_within_budget(count, seed):
    """Return choices within a budget; good items are expensive, so a rarely chosen item may be good."""
    random = generator(seed)
    sizes = [4 + number % 5 for number in range(count)]
    x = torch.randn(sum(sizes), 2, generator=random)
    price = (3 + 2 * x[:, 0] + torch.randn(len(x), generator=random)).clamp(1, 9).round()
    sets = Sets.from_lengths(x, sizes)
    budget = Budget(sets.with_values(price), budget=8)
    return Choices(sets, BatchConstraint.of(budget, sets).choose(x[:, 0] + 0.5, sets)), budget


LEARN = {**TINY, "method": "unrolled", "max_epochs": 25, "learning_rate": 1e-2, "batch_size": 32}


def test_training_under_the_constraint_learns_the_preference():
    (choices, budget), (new, other) = choices_within_budget(200, 0), choices_within_budget(100, 1)
    without = SubsetSelector(**LEARN).fit(*choices)
    within = SubsetSelector(**LEARN).fit(*choices, constraint=budget)
    assert within.score(*new, constraint=other) > 0.85
    assert within.score(*new, constraint=other) > without.score(*new, constraint=other) + 0.2
    assert within.history_[-1]["loss"] < within.history_[0]["loss"]


def test_fit_under_a_constraint_is_reproducible_resumable_and_saved(tmp_path):
    (choices, budget), (held, other) = choices_within_budget(30, 0), choices_within_budget(12, 1)
    options = {**LEARN, "max_epochs": 2}

    def fit(constraint=budget, **more):
        return SubsetSelector(**{**options, **more}).fit(*choices, validation=(*held, other), constraint=constraint)

    first = fit()
    assert [row["loss"] for row in first.history_] == [row["loss"] for row in fit().history_]
    assert first.history_[-1]["validation_jaccard"] <= 1
    ones = SubsetSelector(**options).fit(
        *choices, validation=(*held, other), constraint=budget, sample_weight=np.ones(len(choices))
    )
    assert torch.equal(ones.predict_proba(held.sets).values, first.predict_proba(held.sets).values)
    # An interrupted run resumes; a run under another constraint is another run.
    path = tmp_path / "run.ckpt"
    fit(max_epochs=1, checkpoint=path)
    resumed = fit(checkpoint=path)
    assert torch.equal(resumed.predict_proba(held.sets).values, first.predict_proba(held.sets).values)
    with pytest.raises(DataError, match="the constraint does not allow"):
        fit(Budget(budget.costs, budget=4), checkpoint=path)
    with pytest.raises(ValueError, match="other data or other options"):
        fit(Budget(budget.costs, budget=800), checkpoint=path)
    with pytest.raises(ValueError, match="other data or other options"):
        SubsetSelector(**options, checkpoint=path).fit(
            *choices, validation=(*held, Budget(other.costs, budget=800)), constraint=budget
        )
    first.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(
        again.predict(held.sets, constraint=other).values, first.predict(held.sets, constraint=other).values
    )


def test_wrong_arguments_of_fit_raise():
    choices, budget = choices_within_budget(20, 0)
    selector = SubsetSelector(**{**LEARN, "max_epochs": 1})
    with pytest.raises(OptionError, match=r"validation=\(sets, subsets, constraint\)"):
        selector.fit(*choices, validation=choices, constraint=budget)
    with pytest.raises(OptionError, match="pass constraint too"):
        selector.fit(*choices, validation=(*choices, budget))
    with pytest.raises(ShapeError, match=r"a pair \(sets, subsets\), rows \(X, y, groups\), or"):
        selector.fit(*choices, validation=(*choices, "cheap"), constraint=budget)
    with pytest.raises(OptionError, match="has its own loss"):
        SubsetSelector(**LEARN, loss="negatives").fit(*choices, constraint=budget)
    # A solver with one row for each set would use the rows of other sets once batches are shuffled.
    even = Choices(choices.sets.take([0, 5, 10, 15]), choices.subsets.take([0, 5, 10, 15]))
    rows = budget.costs.take([0, 5, 10, 15]).padded()[0]
    with pytest.raises(ShapeError, match="also in fit"):
        selector.fit(*even, validation=even, constraint=discrete.Knapsack(rows, budget=8))
    selector.fit(*even, validation=even, constraint=discrete.CardinalityRange(0, 4))


def test_lists_as_labels_raise():
    with pytest.raises(DataError, match="a list in place of a string"):
        Groups([[["a"], ["b"]]], 1)

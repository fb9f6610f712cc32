"""Choosing and learning under constraints, against enumeration of all subsets."""

import itertools

import numpy as np
import pytest
import torch

from setgrad import discrete
from setgrad.errors import DataError, OptionError, ShapeError, SolverError
from setgrad.inference import AllItems
from setgrad.selector import AllOf, Budget, Constraint, Groups, SizeRange, SubsetSelector, load
from setgrad.selector._allowed import Allowed
from setgrad.selector._constrained import ConstrainedLoss
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY, make_choices

SIZES = [5, 0, 1, 8, 3, 5, 6]


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def worth():
    return Sets.from_lengths(torch.randn(sum(SIZES), generator=generator(0), dtype=torch.float64), SIZES)


def of_items(values):
    return Sets.from_lengths(values, SIZES)


COSTS = of_items(torch.randint(1, 9, (sum(SIZES),), generator=generator(1)))
# Sets of several kinds side by side: whole, in tens, and with a broken price.
PRICES = COSTS.with_values(
    torch.where(COSTS.layout.ids == 3, COSTS.values * 10.0, COSTS.values + 0.25 * (COSTS.layout.ids == 5)).double()
)
LABELS = of_items(torch.randint(0, 3, (sum(SIZES),), generator=generator(2)))
ROOMS = [9.0, 1.0, 0.0, 80.0, 4.0, 9.5, np.inf]


def within(costs, rooms):
    rooms = np.broadcast_to(rooms, (len(SIZES),))
    return lambda number, mask: costs[number][mask].sum().item() <= rooms[number]


def few_of_each(most):
    return lambda number, mask: all((LABELS[number][mask] == g).sum() <= most for g in range(3))


CASES = {
    "budget": (Budget(COSTS, budget=9), within(COSTS, 9)),
    "budgets of every kind": (Budget(PRICES, budget=ROOMS), within(PRICES, ROOMS)),
    "groups": (Groups(LABELS, at_most=1), few_of_each(1)),
    "groups by label": (Groups(LABELS, at_most={2: 0}), lambda number, mask: (LABELS[number][mask] != 2).all()),
    "sizes": (SizeRange(1, 2), lambda number, mask: 1 <= mask.sum() <= 2 or not len(mask)),
    "all of them": (
        AllOf([Budget(PRICES, budget=ROOMS), Groups(LABELS, at_most=2), SizeRange(0, 3)]),
        lambda number, mask: within(PRICES, ROOMS)(number, mask) and few_of_each(2)(number, mask) and mask.sum() <= 3,
    ),
    "a solver": (discrete.TopK(1), lambda number, mask: mask.sum() == 1),
    "a solver that minimises": (discrete.CardinalityRange(1, sense="min"), lambda number, mask: mask.sum() >= 1),
}


def subsets_of(n):
    return [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product([False, True], repeat=n)]


@pytest.mark.parametrize("case", CASES)
def test_the_best_of_all_allowed_subsets(case, worth):
    constraint, allows = CASES[case]
    picks = Allowed.of(constraint, worth).choose(worth.values, worth)
    for number, mask in enumerate(picks):
        if not len(mask):
            continue
        assert allows(number, mask)
        values = [worth[number][other].sum().item() for other in subsets_of(len(mask)) if allows(number, other)]
        assert worth[number][mask].sum().item() == pytest.approx(max(values), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_a_set_is_chosen_from_alike_alone_and_in_any_batch(case, worth):
    allowed = Allowed.of(CASES[case][0], worth)
    # Ties everywhere: what breaks them must not depend on the company.
    coarse = worth.with_values(worth.values.round())
    together = allowed.choose(coarse.values, worth)
    for number in range(len(worth)):
        alone = coarse.take([number])
        assert torch.equal(allowed.take(np.array([number])).choose(alone.values, alone).values, together[number])


@pytest.mark.parametrize("case", CASES)
def test_subsets_that_are_not_allowed_are_known(case, worth):
    constraint, allows = CASES[case]
    allowed = Allowed.of(constraint, worth)
    for number in (0, 3, 4, 5):
        for mask in subsets_of(SIZES[number])[::3]:
            one = Sets.from_list([mask])
            if allows(number, mask):
                allowed.take(np.array([number])).refuse_others(one)
            else:
                with pytest.raises(
                    DataError, match=f"chosen from set {number} .* is not one that the constraint allows"
                ):
                    allowed.take(np.array([number])).refuse_others(one)


def test_without_a_bound_the_rule_is_the_threshold(default):
    sets = make_choices(12, seed=3).sets
    p = default.predict_proba(sets).values
    assert torch.equal(default.predict(sets, constraint=SizeRange()).values, p > 0.5)
    assert torch.equal(default.predict(sets, constraint=SizeRange(), threshold=0.8).values, p > 0.8)
    free = Budget([[1.0] * len(x) for x in sets], budget=np.inf)
    assert torch.equal(default.predict(sets, constraint=free).values, p > 0.5)
    assert torch.equal(default.predict(sets, constraint=discrete.TopK(2)).values, default.predict(sets, size=2).values)


def test_sets_of_one_size_take_any_solver(default):
    sets = Sets.from_lengths(torch.randn(40, 2, generator=generator(4)), [5] * 8)
    weights = torch.randint(1, 9, (8, 5), generator=generator(5))
    solver = discrete.Knapsack(weights, budget=9)
    by_solver = default.predict(sets, constraint=solver)
    assert solver.counter.instances == 8
    assert torch.equal(by_solver.values, default.predict(sets, constraint=Budget(weights, budget=9)).values)
    assert all(int(w[mask].sum()) <= 9 for w, mask in zip(weights, by_solver, strict=True))
    scores = default.decision_function(sets)
    again = default.predict(sets, constraint=discrete.Knapsack(weights[0], budget=9), scores=scores)
    assert torch.equal(again[0], by_solver[0])
    at_most_two = discrete.Matroid(lambda masks: masks.sum(-1) <= 2)
    up_to_two = default.predict(sets, constraint=SizeRange(max_size=2))
    assert torch.equal(default.predict(sets, constraint=at_most_two).values, up_to_two.values)


def test_a_constraint_of_ones_own(default):
    class NotTheFirst(Constraint):
        def solver(self, numbers, size):
            return discrete.PartitionMatroid([0] + [1] * (size - 1), at_most=[0, size])

    sets = make_choices(12, seed=3).sets
    free, tied = default.predict(sets, constraint=SizeRange()), default.predict(sets, constraint=NotTheFirst())
    first = sets.layout.positions == 0
    assert not tied.values[first].any()
    assert torch.equal(tied.values[~first], free.values[~first])


@pytest.mark.parametrize("case", ["groups", "sizes", "all of them"])
def test_search_stays_allowed_and_improves_f(fitted, case):
    constraint, allows = CASES[case]
    sets = of_items(torch.randn(sum(SIZES), 2, generator=generator(6)))
    bound = fitted.function_.bind(sets)
    plain, better = (fitted.predict(sets, constraint=constraint, search=s) for s in (None, "local"))
    assert all(allows(number, mask) for number, mask in enumerate(better) if len(mask))
    gain = bound.value(better.values[None])[0] - bound.value(plain.values[None])[0]
    assert bool((gain >= -1e-5).all())


def test_search_finds_the_best_subset_of_an_easy_function(worth):
    from setgrad.functions import Modular
    from setgrad.selector.search import constrained_search

    bound = Modular().bind(worth.with_values(worth.values[:, None]))
    allowed = Allowed.of(CASES["all of them"][0], worth)
    nothing = worth.with_values(torch.zeros(sum(SIZES), dtype=torch.bool))
    found = constrained_search(bound, nothing, lambda w: allowed.solve(w, worth))
    assert torch.equal(found.values, allowed.choose(worth.values, worth).values)


def test_sets_without_an_answer_are_named(default):
    sets = make_choices(6, seed=3).sets
    costs = [[1.0] * len(x) for x in sets]
    with pytest.raises(SolverError, match=r"set 4 \(counted from 0\) has no answer .*INFEASIBLE"):
        default.predict(sets, constraint=Budget(costs, budget=[1, 1, 1, 1, -1, 1]))
    with pytest.raises(SolverError, match=r"set 0 \(counted from 0\) has no answer .*INFEASIBLE"):
        default.predict(sets, constraint=AllOf([Budget(costs, budget=1), SizeRange(2)]))
    with pytest.raises(OptionError, match=r"set 0 \(counted from 0\), of 3 items: .* cannot choose 4 of 3"):
        default.predict(sets, constraint=SizeRange(4))
    with pytest.raises(ShapeError, match=r"Budget and Groups of setgrad\.selector fit sets of any sizes"):
        default.predict(sets, constraint=discrete.Knapsack([1.0] * 4, budget=1))
    masked = discrete.CallableSolver(lambda theta: torch.full_like(theta, torch.nan), on_failure="mask")
    assert not default.predict(sets, constraint=masked).values.any()
    warned = discrete.CallableSolver(lambda theta: torch.full_like(theta, torch.nan), on_failure="warn")
    with pytest.warns(RuntimeWarning, match="set 0"):
        default.predict(sets[:1], constraint=warned)


def test_wrong_constraints_are_refused(default):
    sets = make_choices(6, seed=3).sets
    ones = [[1.0] * len(x) for x in sets]
    for constraint, error, message in [
        ("cheap", OptionError, "must be a solver of setgrad.discrete or a Constraint, not str"),
        (discrete.Assignment(), OptionError, "arrays of 2 axes"),
        (discrete.Ranking(), SolverError, "other than 0 and 1"),
        (Budget(ones[:-1], budget=1), ShapeError, "made for 5 sets, these are 6"),
        (Groups([*ones[:3], [1.0], *ones[4:]]), ShapeError, "has 1 numbers for set 3, which has 6 items"),
    ]:
        with pytest.raises(error, match=message):
            default.predict(sets, constraint=constraint)
    for options, message in [
        ({"size": 2}, "instead of size"),
        ({"search": "greedy"}, "search='local'"),
        ({"threshold": 1.0}, "between 0 and 1"),
    ]:
        with pytest.raises(OptionError, match=message):
            default.predict(sets, constraint=SizeRange(), **options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Budget([[1.0, -1.0]], budget=1), DataError, "item 1 of set 0 is -1"),
        (lambda: Budget([[1.0], [float("nan")]], budget=1), DataError, "item 0 of set 1 is nan"),
        (lambda: Budget([[1.0]], budget=[1, 2]), ShapeError, "one for each of 1 sets"),
        (lambda: Budget([[1.0]], budget=float("nan")), DataError, "NaN"),
        (lambda: Budget([[[1.0, 2.0]]], budget=1), ShapeError, "one number for each item"),
        (lambda: Groups([["a"]], at_most=-1), OptionError, "0 or more"),
        (lambda: Groups([["a", None]]), DataError, "missing value"),
        (lambda: Groups([[1.0, float("nan")]]), DataError, "missing value"),
        (lambda: Groups([1, 2]), ShapeError, "labels must be one list for each set"),
        (lambda: Budget(None, 1), ShapeError, "weights must be one list for each set"),
        (lambda: Budget([[1.0]], "much"), ShapeError, "budget must be one number"),
        (lambda: AllOf(3), OptionError, "one or more"),
        (lambda: SizeRange(3, 2), OptionError, "min_size <= max_size"),
        (lambda: AllOf([]), OptionError, "one or more"),
        (lambda: AllOf([discrete.TopK(1)]), OptionError, "Budget, Groups and SizeRange"),
        (lambda: AllOf([Budget([[1]], budget=1), Groups([[1, 2]])]), ShapeError, "different sets"),
    ],
)
def test_wrong_parameters_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_group_that_these_sets_lack_is_spoken_of():
    with pytest.warns(UserWarning, match=r"group 'b', which no item of these sets.*spelling"):
        groups = Groups([["a", "a"]], at_most={"a": 1, "b": 1})
    assert groups.solver(np.array([0]), 2)(torch.ones(1, 2)).tolist() == [[1, 0]]


def test_a_sum_that_only_rounding_makes_too_large_fits():
    worth = Sets.from_list([torch.ones(3, dtype=torch.float64)])
    for constraint in (Budget([[0.1, 0.1, 0.1]], budget=0.3), AllOf([Budget([[0.1, 0.1, 0.1]], budget=0.3)])):
        assert Allowed.of(constraint, worth).choose(worth.values, worth).values.all()
    # A hundred-millionth too much is too much, though the program's tolerance is a millionth.
    heavy = [[1.0 + 1e-8, 1.0, 1.0]]
    for constraint in (Budget(heavy, budget=3.0), AllOf([Budget(heavy, budget=3.0)])):
        assert int(Allowed.of(constraint, worth).choose(worth.values, worth).values.sum()) == 2


# ---- learning


def test_the_loss_without_a_bound_is_the_cross_entropy(worth):
    """Logistic noise makes the share of draws in which an item is chosen sigmoid(logit)."""
    subsets = worth.with_values(worth.values > 0.3)
    logits = worth.values.clone().requires_grad_()
    for allowed in (Allowed.of(SizeRange(), worth), Allowed.of(Budget(COSTS, budget=np.inf), worth)):
        many = ConstrainedLoss(allowed, 10_000, 7)(logits, subsets, None, None)
        plain = AllItems()(logits, subsets, None, None)
        (found,), (right,) = torch.autograd.grad(many, logits), torch.autograd.grad(plain, logits)
        torch.testing.assert_close(many, plain, rtol=0, atol=0.02)
        torch.testing.assert_close(found, right, rtol=0, atol=3e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_how_often_an_item_is_chosen_too_much(case, worth):
    constraint, _ = CASES[case]
    allowed = Allowed.of(constraint, worth)
    target = allowed.choose(-worth.values, worth)
    logits = worth.values.clone().requires_grad_()
    samples = 40
    loss = ConstrainedLoss(allowed, samples, 8)(logits, target, None, None)
    (found,) = torch.autograd.grad(loss, logits)
    scaled = found * worth.lengths[worth.layout.ids] * sum(size > 0 for size in SIZES) + target.values.double()
    # Shares of draws, whole numbers of them, in the convex hull of what is allowed.
    assert bool(((scaled > -1e-9) & (scaled < 1 + 1e-9)).all())
    torch.testing.assert_close(scaled * samples, (scaled * samples).round(), rtol=0, atol=1e-6)
    if case == "a solver":
        assert torch.allclose(
            torch.stack([part.sum() for part in worth.with_values(scaled) if len(part)]), scaled[:1] * 0 + 1
        )


def bought(count, seed):
    """Good items are dear, and the basket is the best that the purse allows: what is seldom bought may be good."""
    lot = generator(seed)
    sizes = [4 + number % 5 for number in range(count)]
    x = torch.randn(sum(sizes), 2, generator=lot)
    price = (3 + 2 * x[:, 0] + torch.randn(len(x), generator=lot)).clamp(1, 9).round()
    sets = Sets.from_lengths(x, sizes)
    purse = Budget(sets.with_values(price), budget=8)
    return Choices(sets, Allowed.of(purse, sets).choose(x[:, 0] + 0.5, sets)), purse


LEARN = {**TINY, "max_epochs": 25, "learning_rate": 1e-2, "batch_size": 32}


def test_learning_through_the_constraint_finds_what_was_wanted():
    (choices, purse), (new, other) = bought(200, 0), bought(100, 1)
    blind = SubsetSelector(**LEARN).fit(*choices)
    seeing = SubsetSelector(**LEARN).fit(*choices, constraint=purse)
    assert seeing.score(*new, constraint=other) > 0.85
    assert seeing.score(*new, constraint=other) > blind.score(*new, constraint=other) + 0.2
    assert seeing.history_[-1]["loss"] < seeing.history_[0]["loss"]


def test_fit_under_a_constraint_keeps_its_promises(tmp_path):
    (choices, purse), (held, other) = bought(30, 0), bought(12, 1)
    options = {**LEARN, "max_epochs": 2}

    def fit(constraint=purse, **more):
        return SubsetSelector(**{**options, **more}).fit(*choices, validation=(*held, other), constraint=constraint)

    first = fit()
    assert [row["loss"] for row in first.history_] == [row["loss"] for row in fit().history_]
    assert first.history_[-1]["validation_jaccard"] <= 1
    ones = SubsetSelector(**options).fit(
        *choices, validation=(*held, other), constraint=purse, sample_weight=np.ones(len(choices))
    )
    assert torch.equal(ones.predict_proba(held.sets).values, first.predict_proba(held.sets).values)
    # A run that was killed goes on, and one under another constraint is another run.
    path = tmp_path / "run.ckpt"
    fit(max_epochs=1, checkpoint=path)
    resumed = fit(checkpoint=path)
    assert torch.equal(resumed.predict_proba(held.sets).values, first.predict_proba(held.sets).values)
    with pytest.raises(DataError, match="not one that the constraint allows"):
        fit(Budget(purse.weights, budget=4), checkpoint=path)
    with pytest.raises(ValueError, match="other data or other options"):
        fit(Budget(purse.weights, budget=800), checkpoint=path)
    with pytest.raises(ValueError, match="other data or other options"):
        SubsetSelector(**options, checkpoint=path).fit(
            *choices, validation=(*held, Budget(other.weights, budget=800)), constraint=purse
        )
    first.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(
        again.predict(held.sets, constraint=other).values, first.predict(held.sets, constraint=other).values
    )


def test_wrong_training_is_refused():
    choices, purse = bought(20, 0)
    selector = SubsetSelector(**{**LEARN, "max_epochs": 1})
    with pytest.raises(OptionError, match=r"validation=\(sets, subsets, constraint\)"):
        selector.fit(*choices, validation=choices, constraint=purse)
    with pytest.raises(OptionError, match="give fit constraint= too"):
        selector.fit(*choices, validation=(*choices, purse))
    with pytest.raises(ShapeError, match=r"a pair \(sets, subsets\), or"):
        selector.fit(*choices, validation=(*choices, "cheap"), constraint=purse)
    with pytest.raises(OptionError, match="brings its own loss"):
        SubsetSelector(**LEARN, loss="negatives").fit(*choices, constraint=purse)
    # Sizes in a row of a solver would be taken for those of other sets once the batches are shuffled.
    even = Choices(choices.sets.take([0, 5, 10, 15]), choices.subsets.take([0, 5, 10, 15]))
    rows = purse.weights.take([0, 5, 10, 15]).padded()[0]
    with pytest.raises(ShapeError, match="also in fit"):
        selector.fit(*even, validation=even, constraint=discrete.Knapsack(rows, budget=8))
    selector.fit(*even, validation=even, constraint=discrete.CardinalityRange(0, 4))


def test_lists_as_labels_are_refused():
    with pytest.raises(DataError, match="a list in place of a word"):
        Groups([[["a"], ["b"]]], 1)

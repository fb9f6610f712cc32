"""Training through the choice: gradients against `setgrad.discrete` by hand, learning, resuming, wrong arguments."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from setgrad import discrete
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError
from setgrad.selector import Budget, ChoiceLoss, Regret, SizeRange, SubsetSelector, jaccard
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._choice_gradient import ESTIMATORS, EstimatorGradient, make_gradient
from setgrad.selector.choice_losses import CHOICE_LOSSES, FunctionLoss, HammingDistance
from setgrad.sets import Choices, Sets
from tests.selector.test_constraints import CASES, COSTS, LEARN, SIZES, choices_within_budget, generator, of_items

SAMPLES = 3


@pytest.fixture
def scores():
    return of_items(torch.randn(sum(SIZES), generator=generator(0), dtype=torch.float64))


def gradient_of(loss, logits, subsets, weights=None):
    logits = logits.clone().requires_grad_()
    loss(logits, subsets, None, weights).backward()
    return logits.grad


def one_by_one(name, constraint, scores, target, choice_loss, noise):
    """Return the gradient of the mean loss over the sets, each set alone, without padding, by `setgrad.discrete`."""
    logits = scores.values.clone().requires_grad_()
    allowed, total = BatchConstraint.of(constraint, scores), logits.new_zeros(())
    for number, size in enumerate(SIZES):
        if not size:
            continue
        items = slice(int(scores.layout.host_offsets[number]), int(scores.layout.host_offsets[number + 1]))
        solver = allowed.constraint.solver(np.array([number]), size)
        sign = 1 if solver.sense == "max" else -1
        layer = ESTIMATORS[name](solver, FixedNoise(noise[number]), SAMPLES, generator(0))
        z = layer(sign * logits[items][None])
        rows = z.reshape(-1, size)
        total = total + choice_loss(rows, target[number].to(rows).expand_as(rows), np.full(len(rows), number)).mean()
    (total / sum(size > 0 for size in SIZES)).backward()
    return logits.grad


class FixedNoise(discrete.Noise):
    """Noise that was drawn before, in terms of a maximisation."""

    def __init__(self, values):
        self.values = values

    def draw(self, empty, generator):
        return self.values.to(empty).reshape(empty.shape)


@pytest.mark.parametrize("loss", [*CHOICE_LOSSES, "regret"])
@pytest.mark.parametrize("case", ["budget", "groups", "sizes", "a solver", "a solver that minimises"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_gradient_is_that_of_the_estimator_on_each_set_alone(name, case, loss, scores, monkeypatch):
    constraint, _ = CASES[case]
    allowed = BatchConstraint.of(constraint, scores)
    target = allowed.choose(-scores.values, scores)
    worth = of_items(torch.randn(sum(SIZES), generator=generator(3), dtype=torch.float64))
    choice_loss = Regret(worth) if loss == "regret" else CHOICE_LOSSES[loss]
    noise = [torch.randn(SAMPLES, 1, size, generator=generator(size), dtype=torch.float64) for size in SIZES]

    def padded_noise(call):
        longest = call.sets.layout.longest
        # Noise on the padding, which must not count.
        rows = [torch.nn.functional.pad(noise[place], (0, longest - SIZES[place]), value=5.0) for place in call.places]
        return torch.cat(rows, 1)

    # The step of AIMLE would change from call to call.
    monkeypatch.setattr(discrete.AIMLE, "_adapt", lambda *args: None)
    expected = one_by_one(name, constraint, scores, target, choice_loss, noise)
    calls = iter([padded_noise(call) for call in allowed.calls(scores)])
    monkeypatch.setattr(discrete.Antithetic, "draw", lambda self, empty, generator: next(calls).to(empty))
    gradient = EstimatorGradient(name, ESTIMATORS[name], choice_loss)
    result = gradient_of(gradient.loss(allowed, SAMPLES, 0), scores.values, target)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)
    # The steps of IMLE may be too short to change a choice of one item.
    assert bool(result.any()) or (name, case) == ("imle", "a solver")


def test_losses_of_zeros_and_ones_are_the_usual_numbers():
    pairs = list(itertools.product(itertools.product([0.0, 1.0], repeat=4), repeat=2))
    chosen, target = (torch.tensor([pair[i] for pair in pairs], requires_grad=i == 0) for i in range(2))
    indices = np.arange(len(pairs))
    picks, truth = (Sets.from_list(list(part.detach().bool())) for part in (chosen, target))
    distance = CHOICE_LOSSES["jaccard"](chosen, target, indices)
    torch.testing.assert_close(distance.detach().double(), 1 - jaccard(picks, truth), rtol=0, atol=1e-6)
    wrong = CHOICE_LOSSES["hamming"](chosen, target, indices)
    assert torch.equal(wrong, (chosen != target).sum(-1).float())
    # There is no gradient where the choice is right, and it points to the target elsewhere.
    for loss in (distance, wrong):
        (gradient,) = torch.autograd.grad(loss.sum(), chosen)
        assert not gradient[(chosen == target).all(-1)].any()
        assert bool((gradient * (chosen.detach() - target) >= 0).all())


def test_regret_finds_the_values_of_each_set():
    values = [torch.tensor([1.0, 5.0, 3.0]), torch.tensor([2.0]), torch.tensor([4.0, 7.0])]
    chosen = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    target = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    for given in (values, Sets.from_list(values), [part.tolist() for part in values]):
        assert Regret(given)(chosen, target, np.array([2, 1, 2])).tolist() == [3.0, -2.0, 0.0]
    solver = discrete.Knapsack([2, 3, 2], budget=4)
    best = solver(values[0])
    full = Regret(values)(torch.tensor([[0.0, 1.0, 0.0]]), best[None], np.array([0]))
    assert full == discrete.regret(torch.tensor([0.0, 1.0, 0.0]), values[0], solver=solver)


def test_weights_of_sets_scale_their_losses(scores):
    allowed = BatchConstraint.of(Budget(COSTS, budget=9), scores)
    target = allowed.choose(-scores.values, scores)
    loss = make_gradient("imle", None, constrained=True).loss(allowed, SAMPLES, 1)
    whole = gradient_of(loss, scores.values, target)
    by_set = of_items(torch.ones(sum(SIZES), dtype=torch.float64))
    weights = torch.where(by_set.layout.ids == 3, 2.0, by_set.values)
    weighted = gradient_of(loss, scores.values, target, weights)
    assert torch.equal(weighted, weights * whole)


def test_steps_of_aimle_adapt_and_belong_to_one_fit(scores):
    allowed = BatchConstraint.of(Budget(COSTS, budget=9), scores)
    target = allowed.choose(-scores.values, scores)
    gradient = make_gradient("aimle", None, constrained=True)
    assert gradient.state() == {}
    for seed in range(3):
        gradient_of(gradient.loss(allowed, SAMPLES, seed), scores.values, target)
    calls = len(list(allowed.calls(scores)))
    state = gradient.state()
    assert (int(state["updates"]), calls) == (3 * calls, 3)
    assert float(state["alpha"]) != 1
    # Trying the loss does not adapt anything.
    gradient.check(allowed, Choices(scores, target))
    assert int(gradient.state()["updates"]) == 3 * calls


BUDGETED = choices_within_budget(200, 0), choices_within_budget(100, 1)


@pytest.fixture(scope="module")
def untrained_score():
    (choices, budget), (new, other) = BUDGETED
    untrained = SubsetSelector(**{**LEARN, "max_epochs": 1, "learning_rate": 1e-9}).fit(*choices, constraint=budget)
    return untrained.score(*new, constraint=other)


@pytest.mark.parametrize("loss", CHOICE_LOSSES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_gradient_learns_the_preference(untrained_score, name, loss):
    (choices, budget), (new, other) = BUDGETED
    selector = SubsetSelector(**LEARN).fit(*choices, constraint=budget, gradient=name, choice_loss=loss)
    score = selector.score(*new, constraint=other)
    assert score > 0.85
    assert score > untrained_score + 0.25


def test_without_limits_any_subset_can_be_learned():
    choices = Choices(BUDGETED[0][0].sets, BUDGETED[0][0].sets.with_values(BUDGETED[0][0].sets.values[:, 0] > 0))
    selector = SubsetSelector(**LEARN).fit(*choices, constraint=SizeRange(), gradient="imle", choice_loss="jaccard")
    assert selector.score(*choices, constraint=SizeRange()) > 0.9


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_resumed_run_equals_one_that_was_not_interrupted(name, tmp_path):
    (choices, budget), (held, other) = choices_within_budget(40, 0), choices_within_budget(12, 1)
    path = tmp_path / "run.ckpt"

    def fit(choice_loss: Any = "jaccard", gradient=name, **options):
        selector = SubsetSelector(**{**LEARN, "max_epochs": 4, "members": 2, **options})
        validation = (*held, other)
        return selector.fit(
            *choices, validation=validation, constraint=budget, gradient=gradient, choice_loss=choice_loss
        )

    whole = fit()
    fit(max_epochs=2, checkpoint=path)
    for other_run in ({"gradient": "fenchel-young", "choice_loss": None}, {"choice_loss": "hamming"}):
        with pytest.raises(FileFormatError, match="other data or other options"):
            fit(checkpoint=path, **other_run)
    resumed = fit(checkpoint=path)
    assert torch.equal(resumed.decision_function(held.sets).values, whole.decision_function(held.sets).values)
    assert [row["loss"] for row in resumed.history_] == [row["loss"] for row in whole.history_]
    assert bool(np.isfinite([row["loss"] for row in whole.history_]).all())


def test_empty_sets_and_numbers_for_the_sets_of_fit():
    choices, budget = choices_within_budget(30, 0)
    sets = [*choices.sets.to_list(), torch.zeros(0, 2)]
    subsets = [*choices.subsets.to_list(), torch.zeros(0, dtype=torch.bool)]
    costs = Budget([*budget.costs.to_list(), torch.zeros(0)], budget=8)
    values = [x[:, 0] + 0.5 for x in sets]
    seen = []

    class Recording(ChoiceLoss):
        def __call__(self, chosen, target, indices):
            seen.append(indices)
            expected = torch.stack(
                [torch.nn.functional.pad(subsets[i].float(), (0, target.shape[1] - len(subsets[i]))) for i in indices]
            )
            assert torch.equal(target, expected)
            return HammingDistance()(chosen, target, indices)

    options = {**LEARN, "max_epochs": 2}
    SubsetSelector(**options).fit(sets, subsets, constraint=costs, gradient="aimle", choice_loss=Recording())
    assert len(np.unique(np.concatenate(seen))) == 24
    selector = SubsetSelector(**options).fit(
        sets, subsets, constraint=costs, gradient="imle", choice_loss=Regret(values)
    )
    assert selector.history_[0]["loss"] > 0


def test_wrong_arguments_raise():
    choices, budget = choices_within_budget(20, 0)
    selector = SubsetSelector(**{**LEARN, "max_epochs": 1})
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"gradient": "imle"}, OptionError, r"pass constraint too, such as SizeRange\(\)"),
        ({"choice_loss": "jaccard"}, OptionError, "pass constraint too"),
        (
            {"constraint": budget, "gradient": "magic"},
            OptionError,
            "unknown gradient 'magic'; choose one of: fenchel-y",
        ),
        ({"constraint": budget, "choice_loss": "jaccard"}, OptionError, "is a loss by itself; leave out choice_loss"),
        ({"constraint": budget, "gradient": "imle", "choice_loss": "recall"}, OptionError, "unknown choice_loss"),
        (
            {"constraint": budget, "gradient": "imle", "choice_loss": lambda chosen, target: chosen - target},
            ShapeError,
            r"choice_loss returned a result of shape \(\d+, \d\) .* one loss for each row",
        ),
        (
            {"constraint": budget, "gradient": "aimle", "choice_loss": lambda chosen, target: 0.0},
            ShapeError,
            "a result of type float",
        ),
        (
            {"constraint": budget, "gradient": "identity", "choice_loss": lambda c, t: (c.round() > t).sum(-1).float()},
            OptionError,
            "choice_loss has no gradient",
        ),
        (
            {"constraint": budget, "gradient": "imle", "choice_loss": Regret([[1.0]])},
            ShapeError,
            "the numbers of choice_loss do not fit the sets",
        ),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            selector.fit(*choices, **arguments)
    for values, error, message in [
        ([[1.0, float("nan")]], DataError, "finite"),
        ([1.0], ShapeError, "one list for each set"),
        ([[[1.0, 2.0]]], ShapeError, "one number for each item"),
    ]:
        with pytest.raises(error, match=message):
            Regret(values)


def test_a_function_may_be_the_loss():
    choices, budget = BUDGETED[0]
    selector = SubsetSelector(**{**LEARN, "max_epochs": 4})
    squared = selector.fit(
        *choices, constraint=budget, gradient="imle", choice_loss=lambda c, t: (c - t).square().sum(-1)
    )
    losses = [row["loss"] for row in squared.history_]
    named = selector.fit(*choices, constraint=budget, gradient="imle", choice_loss="hamming")
    assert [row["loss"] for row in named.history_] == losses
    gradient = make_gradient("imle", len, constrained=True)
    assert isinstance(gradient, EstimatorGradient) and isinstance(gradient.choice_loss, FunctionLoss)

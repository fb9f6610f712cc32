"""Relaxed choices against their definitions and finite differences."""

import pytest
import torch

from setgrad.discrete._estimator import GradientEstimator
from setgrad.discrete.estimators import GumbelSoftmax, RelaxedSpanningTree, RelaxedTopK, SoftSub, StraightThrough
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers.spanning_tree import SpanningTree
from setgrad.discrete.solvers.top_k import ArgMax, TopK
from setgrad.errors import OptionError, ShapeError
from tests.discrete.oracles import Fixed, draws
from tests.discrete.problems import trees

LAYERS = [RelaxedTopK(2, temperature=0.7), SoftSub(3, temperature=0.7, noise=None), SoftSub(1, noise=None)]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_derivatives(layer: GradientEstimator, seeded) -> None:
    with seeded():
        theta = draws(3, 5).requires_grad_()
        assert torch.autograd.gradcheck(layer, theta)
        assert torch.autograd.gradgradcheck(layer, theta)


def test_derivative_of_gumbel_softmax(seeded) -> None:
    layer = GumbelSoftmax(temperature=0.7, samples=2)
    with seeded():
        assert torch.autograd.gradcheck(
            lambda t: layer(t, generator=torch.Generator().manual_seed(0)), draws(3, 5).requires_grad_()
        )


@pytest.mark.parametrize(("n", "k"), [(6, 2), (50, 49), (1000, 100), (5, 5)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_relaxed_top_k_is_optimal(n: int, k: int, scale: float) -> None:
    theta = scale * draws(20, n)
    x = RelaxedTopK(k)(theta)
    torch.testing.assert_close(x.sum(-1), torch.full((20,), k, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    # Stationary: the log-odds minus theta are equal for all items that are not 0 or 1.
    free = (x > 1e-6) & (x < 1 - 1e-6)
    shift = torch.where(free, torch.logit(x) - theta, torch.nan)
    middle = shift.nanmedian(-1, keepdim=True).values
    assert ((shift - middle).abs() <= 1e-6 * max(scale, 1))[free].all()


def test_relaxed_top_k_with_excluded_items() -> None:
    theta = torch.tensor([[1.0, 2.0, 3.0, -torch.inf], [1.0, 2.0, -torch.inf, -torch.inf]]).requires_grad_()
    x = RelaxedTopK(2)(theta)
    torch.testing.assert_close(x.sum(-1), torch.tensor([2.0, 2.0]))
    assert not x[:, 3].any()
    x[:, 0].sum().backward()
    assert theta.grad.isfinite().all()


@pytest.mark.parametrize("make", [RelaxedTopK, SoftSub])
def test_low_temperature_gives_the_top_k(make: type) -> None:
    theta, noise = draws(4, 8), draws(3, 4, 8, seed=1)
    cold = make(3, temperature=1e-3, noise=Fixed(noise), samples=3)(theta)
    torch.testing.assert_close(cold, TopK(3)(theta + noise), atol=1e-3, rtol=0)
    assert torch.equal(make(3, noise=Fixed(noise), samples=3, hard=True)(theta), TopK(3)(theta + noise))


def test_soft_sub_masks_every_earlier_pick() -> None:
    theta = draws(5)
    logits, total = theta.clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(4):
        picked = torch.softmax(logits / 0.5, -1)
        total += picked
        logits += torch.log(1 - picked)
    torch.testing.assert_close(SoftSub(4, temperature=0.5, noise=None)(theta), total)


def test_relaxed_trees_are_means_of_all_trees() -> None:
    theta, noise, points = draws(3, 5, 5), draws(2, 3, 5, 5, seed=1), trees(5)
    # One draw for each edge, the one in the upper half, although an edge has two entries of theta.
    scores = torch.einsum("sbij,pij->sbp", (theta + noise.triu(1)) / 0.7, points)
    truth = torch.einsum("sbp,pij->sbij", scores.softmax(-1), points)
    soft = RelaxedSpanningTree(temperature=0.7, noise=Fixed(noise), samples=2)(theta)
    torch.testing.assert_close(soft, truth)
    hard = RelaxedSpanningTree(temperature=0.7, hard=True, noise=Fixed(noise), samples=2)(theta)
    assert torch.equal(hard, points[scores.argmax(-1)])


def test_relaxed_best_tree_and_its_derivatives(seeded) -> None:
    theta = draws(2, 4, 4)
    cold = RelaxedSpanningTree(temperature=1e-3, noise=None)(theta)
    torch.testing.assert_close(cold, SpanningTree()(theta), atol=1e-3, rtol=0)
    layer = RelaxedSpanningTree(temperature=0.7, noise=None)
    with seeded():
        assert torch.autograd.gradcheck(layer, theta.requires_grad_())
        assert torch.autograd.gradgradcheck(layer, theta)


def test_straight_through_is_hard_forward_and_soft_backward() -> None:
    theta, noise, grads = draws(4, 5), draws(3, 4, 5, seed=1), draws(3, 4, 5, seed=2)
    layer = StraightThrough(ArgMax(), soft=lambda t: t.softmax(-1), noise=Fixed(noise), samples=3)
    leaf = theta.clone().requires_grad_()
    z = layer(leaf)
    assert torch.equal(z, ArgMax()(theta + noise))
    (actual,) = torch.autograd.grad((z * grads).sum(), leaf)
    (truth,) = torch.autograd.grad(((leaf + noise).softmax(-1) * grads).sum(), leaf)
    torch.testing.assert_close(actual, truth)
    with pytest.raises(ShapeError, match="soft function"):
        StraightThrough(ArgMax(), soft=lambda t: t.sum(-1, keepdim=True))(theta)


@pytest.mark.parametrize(
    "build",
    [
        lambda: GumbelSoftmax(temperature=0.0),
        lambda: SoftSub(0),
        lambda: RelaxedTopK(2, temperature=-1.0),
        lambda: RelaxedTopK(6, noise=Gumbel())(torch.zeros(5)),
    ],
)
def test_invalid_options_raise(build) -> None:
    with pytest.raises(OptionError, match=r"temperature must be above 0|k must be 1 or more|lower k"):
        build()

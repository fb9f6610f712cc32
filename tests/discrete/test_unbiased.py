"""Unbiased estimators against exact gradients, within 4 standard errors."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.discrete.distributions.k_subset import KSubset
from setgrad.discrete.estimators import (
    SFESS,
    SIMPLE,
    FenchelYoung,
    GumbelSoftmax,
    Perturbed,
    ReinMax,
    ScoreFunction,
    SoftSub,
    reinforce,
    rloo,
)
from setgrad.discrete.noise import Antithetic, Gumbel, Noise, Normal, Tempered
from setgrad.discrete.solvers.top_k import ArgMax, TopK
from setgrad.errors import DerivativeError, OptionError, ShapeError
from tests.discrete.oracles import (
    assert_mean,
    assert_unbiased,
    draws,
    exact_gradient,
    generator,
    per_copy,
    plackett_luce,
    subsets,
)

COPIES = 4000


NOISES = [Gumbel(), Tempered(Gumbel(), 0.7), Antithetic(Gumbel()), Tempered(Antithetic(Gumbel()), 1.3)]


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("samples", [2, 5])
def test_perturbed_argmax_with_gumbel_noise_is_a_softmax(noise: Noise, reduce: bool, samples: int) -> None:
    theta, slope = draws(6), draws(6, seed=1)
    scale = noise.scale if isinstance(noise, Tempered) else 1.0
    layer = Perturbed(ArgMax(), noise=noise, samples=samples, reduce=reduce, generator=generator())
    assert_unbiased(lambda t: layer(t) @ slope, theta, lambda t: (t / scale).softmax(-1) @ slope)


@pytest.mark.parametrize("noise", [Gumbel(), Antithetic(Gumbel())], ids=str)
def test_perturbed_top_k_with_gumbel_noise_is_plackett_luce(noise: Noise) -> None:
    theta, slope = draws(5), draws(5, seed=1)
    layer = Perturbed(TopK(2, sense="min"), noise=noise, samples=4, generator=generator())
    assert_unbiased(lambda t: layer(t) @ slope, theta, lambda t: plackett_luce(-t, 2) @ slope)


@pytest.mark.parametrize("noise", [Normal(), Antithetic(Normal()), Tempered(Normal(), 2.0)], ids=str)
def test_perturbed_argmax_of_two_with_normal_noise_is_a_normal_cdf(noise: Noise) -> None:
    theta = torch.tensor([0.3, -0.5], dtype=torch.float64)
    scale = noise.scale if isinstance(noise, Tempered) else 1.0
    layer = Perturbed(ArgMax(), noise=noise, samples=4, generator=generator())
    assert_unbiased(
        lambda t: layer(t)[:, 0], theta, lambda t: torch.special.ndtr((t[0] - t[1]) / (scale * math.sqrt(2)))
    )


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("samples", [1, 4, 5])
def test_baseline_uses_samples_with_independent_noise(mirrored: bool, samples: int) -> None:
    theta, slope = draws(6), draws(6, seed=1)
    noise = Antithetic(Gumbel()) if mirrored else Gumbel()
    eps = noise.sample((samples, 6), dtype=theta.dtype, generator=generator())
    z = ArgMax()(theta + eps)
    half = (samples + 1) // 2 if mirrored else samples
    truth = torch.zeros(6, dtype=theta.dtype)
    for s in range(samples):
        others = [z[t] @ slope for t in range(samples) if t % half != s % half]
        base = sum(others) / len(others) if others else 0.0
        truth += (z[s] @ slope - base) * (1 - torch.exp(-eps[s])) / samples
    leaf = theta.clone().requires_grad_()
    (Perturbed(ArgMax(), noise=noise, samples=samples, generator=generator())(leaf) @ slope).backward()
    torch.testing.assert_close(leaf.grad, truth)


def variance(layer: Callable[[Tensor], Tensor], theta: Tensor) -> float:
    """Return the sum of the variances of the entries of the gradient."""
    return per_copy(layer, theta)[1].var(0).sum().item()


def test_leave_one_out_lowers_the_variance() -> None:
    theta, slope = draws(6), 3 + draws(6, seed=1)

    options: dict[str, Any] = {"noise": Gumbel(), "samples": 10}
    low, high = (Perturbed(ArgMax(), **options, reduce=reduce, generator=generator()) for reduce in (True, False))
    assert variance(lambda t: low(t) @ slope, theta) < 0.5 * variance(lambda t: high(t) @ slope, theta)


def test_fenchel_young_is_the_log_partition() -> None:
    theta = draws(6)
    target = torch.eye(6, dtype=torch.float64)[2]
    layer = FenchelYoung(ArgMax(), noise=Gumbel(), samples=3, generator=generator())
    assert_unbiased(
        lambda t: layer(t, target.expand_as(t)), theta, lambda t: t.logsumexp(-1) + 0.5772156649015329 - t[2]
    )


def test_fenchel_young_without_noise_is_the_perceptron() -> None:
    theta, target = draws(4, 5).requires_grad_(), TopK(2)(draws(4, 5, seed=1))
    solver = TopK(2, sense="min")
    layer = FenchelYoung(solver, noise=None)
    losses = layer(theta, target)
    best = TopK(2, sense="min")(theta)
    torch.testing.assert_close(losses, (theta * (target - best)).sum(-1))
    assert (losses >= 0).all()
    losses.sum().backward()
    torch.testing.assert_close(theta.grad, target - best)
    assert solver.counter.calls == 1


def test_fenchel_young_masks_and_raises() -> None:
    theta = draws(3, 5).requires_grad_()
    nonfinite = theta * torch.tensor([[1.0], [torch.nan], [1.0]])
    layer = FenchelYoung(TopK(2, on_failure="mask"), noise=Gumbel(), samples=2, generator=generator())
    losses = layer(nonfinite, TopK(2)(theta))
    assert losses[1] == 0
    (grad,) = torch.autograd.grad(losses.sum(), nonfinite)
    assert not grad[1].any()
    assert grad.isfinite().all()
    (grad,) = torch.autograd.grad((layer(theta, TopK(2)(theta)) ** 2).sum(), theta, create_graph=True)
    with pytest.raises(DerivativeError, match="first derivatives"):
        torch.autograd.grad(grad.sum(), theta)
    with pytest.raises(ShapeError, match="target"):
        layer(theta, torch.zeros(5))


def nonlinear_loss(z: Tensor) -> Tensor:
    """A loss with all orders of interaction."""
    return torch.sin(3 * (z @ draws(z.shape[-1], seed=7))) + 4.0 + z @ draws(z.shape[-1], seed=8)


SCORES: dict[str, Callable[..., torch.nn.Module]] = {
    "reinforce": lambda **o: ScoreFunction(lambda t: KSubset(t, 3), baseline=False, **o),
    "rloo": lambda **o: ScoreFunction(lambda t: KSubset(t, 3), **o),
    "SFESS": lambda **o: SFESS(3, linear=False, **o),
    "SFESS-linear": lambda **o: SFESS(3, **o),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("samples", [2, 6])
def test_score_functions_of_subsets(name: str, samples: int) -> None:
    theta = draws(6)
    layer = SCORES[name](samples=samples, generator=generator())
    points = subsets(6, 3)
    losses = nonlinear_loss(points)
    assert_unbiased(lambda t: layer(t, nonlinear_loss), theta, lambda t: (points @ t).softmax(-1) @ losses)


def test_control_variates_lower_the_variance() -> None:
    theta, slope = draws(6), draws(6, seed=1)

    def spread_of(layer: torch.nn.Module) -> float:
        return variance(lambda t: layer(t, nonlinear_loss), theta)

    spread = {name: spread_of(make(samples=6, generator=generator())) for name, make in SCORES.items()}
    assert spread["rloo"] < 0.2 * spread["reinforce"]
    assert spread["SFESS"] == pytest.approx(spread["rloo"])
    # For a linear loss the variance is 0.
    _, grads = per_copy(lambda t: SFESS(3, samples=2, generator=generator())(t, lambda z: z @ slope), theta, copies=20)
    torch.testing.assert_close(grads, exact_gradient(theta, subsets(6, 3), lambda z: z @ slope).expand(20, 6))


def test_linear_control_variate_helps_a_smooth_loss() -> None:
    theta, slope = draws(6), draws(6, seed=1)

    def smooth(z: Tensor) -> Tensor:
        return (z @ slope) ** 2 / 5 + z @ slope

    with_part, without = (SFESS(3, samples=6, linear=linear, generator=generator()) for linear in (True, False))
    assert variance(lambda t: with_part(t, smooth), theta) < 0.5 * variance(lambda t: without(t, smooth), theta)


def test_surrogates_pass_the_gradient_of_the_loss() -> None:
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    theta = draws(5, 6)
    for make in SCORES.values():
        value = make(samples=4, generator=generator())(theta.requires_grad_(), lambda z: weight * z[..., 0])
        (grad,) = torch.autograd.grad(value.sum(), weight)
        torch.testing.assert_close(grad, value.sum().detach() / 2)


def test_score_functions_with_invalid_input_raise() -> None:
    with pytest.raises(OptionError, match="2 samples or more"):
        rloo(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(ShapeError, match=r"\(samples, \*batch\)"):
        reinforce(torch.zeros(4), torch.zeros(4, 3))
    with pytest.raises(OptionError, match="2 or more"):
        ScoreFunction(lambda t: KSubset(t, 1), samples=1)
    with pytest.raises(OptionError, match="samples must be 2 or more"):
        SFESS(1, samples=1)
    with pytest.raises(OptionError, match="linear=False"):
        SFESS(1, samples=2, generator=generator())(draws(3).requires_grad_(), lambda z: z.detach().sum(-1))
    with pytest.raises(ShapeError, match="one for each sample"):
        SFESS(1, samples=2, generator=generator())(draws(3).requires_grad_(), lambda z: z)


def test_reinmax_is_exact_for_quadratic_losses() -> None:
    theta, square = draws(5), draws(5, 5, seed=2)

    def quadratic(z: Tensor) -> Tensor:
        return torch.einsum("...i,ij,...j->...", z, square, z) + z @ draws(5, seed=3)

    layer = ReinMax(samples=2, generator=generator())
    losses = quadratic(torch.eye(5, dtype=torch.float64))
    assert_unbiased(lambda t: quadratic(layer(t)).mean(0), theta, lambda t: t.softmax(-1) @ losses)
    # The first-order estimator is not.
    plain = theta.expand(COPIES, -1).clone().requires_grad_()
    z = layer(plain).detach().requires_grad_()
    (slope,) = torch.autograd.grad(quadratic(z).mean(0).sum(), z)
    (first,) = torch.autograd.grad((slope * plain.softmax(-1)).sum(), plain)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(first, exact_gradient(theta, torch.eye(5, dtype=torch.float64), quadratic))


def test_simple_is_exact_for_linear_losses() -> None:
    theta, slope = draws(6), draws(6, seed=1)
    layer = SIMPLE(3, samples=2, generator=generator())
    _, grads = per_copy(lambda t: (layer(t) @ slope).mean(0), theta, copies=10)
    truth = exact_gradient(theta, subsets(6, 3), lambda z: z @ slope)
    torch.testing.assert_close(grads, truth.expand(10, 6), rtol=1e-10, atol=1e-12)
    z = layer(theta.expand(COPIES, -1))
    assert_mean(z.flatten(0, 1), KSubset(theta, 3).marginals)


@pytest.mark.parametrize("layer", [GumbelSoftmax(hard=True), ReinMax(), GumbelSoftmax(temperature=1e-4)], ids=repr)
def test_hard_samples_follow_the_softmax(layer: torch.nn.Module) -> None:
    theta = draws(5)
    assert_mean(layer(theta.expand(COPIES, -1), generator=generator())[0], theta.softmax(-1))


@pytest.mark.parametrize("hard", [True, False])
def test_soft_sub_samples_without_replacement(hard: bool) -> None:
    # A wrong sign of the noise, or a mask for the next round only, would change the result.
    theta = draws(5)
    layer = SoftSub(3, hard=hard, temperature=1e-4, generator=generator())
    assert_mean(layer(theta.expand(COPIES, -1))[0], plackett_luce(theta, 3))


@pytest.mark.parametrize("name", SCORES)
def test_score_functions_have_no_second_derivative(name: str) -> None:
    theta, weight = draws(6).requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = SCORES[name](samples=4, generator=generator())(theta, lambda z: nonlinear_loss(z) * weight**2)
    grad, slope = torch.autograd.grad(value, (theta, weight), create_graph=True)
    # Parameters of the loss have a second derivative: the value is proportional to the square of the weight.
    (bend,) = torch.autograd.grad(slope, weight, retain_graph=True)
    torch.testing.assert_close(bend, 2 * value.detach() / weight.detach() ** 2)
    for source in (theta, weight):
        with pytest.raises(DerivativeError, match="first derivatives"):
            torch.autograd.grad(grad[0], source, retain_graph=True)

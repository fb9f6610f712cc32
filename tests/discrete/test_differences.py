"""Blackbox, IMLE, AIMLE and LPGD against their formulas, written out in loops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.discrete.estimators import (
    AIMLE,
    IMLE,
    LPGD,
    Blackbox,
    Envelope,
    Identity,
    PerInstanceRule,
    PublishedRule,
    ReferenceCodeRule,
    StepRule,
)
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.projections import MeanProjection
from setgrad.discrete.solvers.top_k import ArgMax, TopK
from tests.discrete.oracles import Fixed, Points, draws

S, B, N, K = 3, 4, 6, 2


def pulled(layer: torch.nn.Module, theta: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient at theta, for a mean loss over samples with the gradient `grad` at each sample."""
    leaf = theta.clone().requires_grad_()
    z = layer(leaf)
    losses = (z * grad).flatten(theta.ndim - 1).sum(-1) if z.ndim == theta.ndim else (z * grad).sum((-1, -2)).mean(0)
    (actual,) = torch.autograd.grad(losses.sum(), leaf)
    return actual


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_blackbox_minimises_as_published(lam: float) -> None:
    omega, grad = draws(B, N), draws(B, N, seed=1)
    y = TopK(K, sense="min")
    truth = (y(omega + lam * grad) - y(omega)) / lam
    torch.testing.assert_close(pulled(Blackbox(TopK(K, sense="min"), lam=lam), omega, grad), truth)
    assert lam < 1 or truth.any()


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("sense", ["max", "min"])
def test_imle_matches_its_formula(central: bool, relative: bool, sense: str) -> None:
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    sign = 1 if sense == "max" else -1
    solve, lam = TopK(K), 0.7
    truth = torch.zeros(B, N, dtype=torch.float64)
    for b in range(B):
        perturbed = [sign * theta[b] + noise[s, b] for s in range(S)]
        length = math.sqrt(sum(float(x @ x) for x in perturbed) / S)
        for s in range(S):
            step = lam * length / float(grads[s, b].norm()) if relative else lam
            low = solve(perturbed[s] - step * grads[s, b])
            high = solve(perturbed[s] + step * grads[s, b]) if central else solve(perturbed[s])
            truth[b] += sign * (high - low) / (step * (2 if central else 1)) / S
    layer = IMLE(TopK(K, sense=sense), noise=Fixed(noise), samples=S, lam=lam, central=central, relative=relative)
    torch.testing.assert_close(pulled(layer, theta, grads), truth)
    assert truth.any()


@pytest.mark.parametrize("central", [False, True])
def test_repeated_draws_do_not_change_the_gradient(central: bool) -> None:
    theta, noise, grad = draws(B, N), draws(1, B, N, seed=1), draws(1, B, N, seed=2)
    for make in (
        lambda **o: IMLE(TopK(K), central=central, **o),
        lambda **o: AIMLE(TopK(K), central=central, **o),
        lambda **o: AIMLE(TopK(K), central=central, mode=PublishedRule(), alpha=0.5, **o),
        lambda **o: AIMLE(TopK(K), central=central, mode=ReferenceCodeRule(), **o),
        lambda **o: LPGD(TopK(K), tau=2.0, rho=1.0, **o),
    ):
        one = pulled(make(noise=Fixed(noise), samples=1), theta, grad)
        many = pulled(make(noise=Fixed(noise.expand(7, B, N)), samples=7), theta, grad.expand(7, B, N))
        torch.testing.assert_close(one, many)
        assert one.any()


def test_relative_steps_do_not_depend_on_the_scale_of_the_loss() -> None:
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    layer = IMLE(TopK(K), noise=Fixed(noise), samples=S, lam=0.5, relative=True)
    one = pulled(layer, theta, grads)
    for scale in (1e-200, 1e-3, 1e3, 1e200):
        torch.testing.assert_close(pulled(layer, theta, scale * grads) / scale, one)


@pytest.mark.parametrize("mode", [PerInstanceRule(), PublishedRule(), ReferenceCodeRule()], ids=str)
@pytest.mark.parametrize("central", [False, True])
def test_adaptive_steps_do_not_depend_on_the_scale_of_the_loss(mode: StepRule, central: bool) -> None:
    """Also in single precision, where the square of 1e-25 is 0 and that of 1e25 is infinite."""
    theta, noise, grads = (draws(*shape, seed=seed).float() for seed, shape in enumerate([(B, N), *[(S, B, N)] * 2]))
    grads[0, 1] *= 1e-4

    def actual(scale: float) -> tuple[Tensor, Tensor]:
        layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, mode=mode, central=central, alpha=0.5)
        return pulled(layer, theta, scale * grads) / scale, layer.alpha

    one, alpha = actual(1.0)
    assert one.any()
    for scale in (1e-36, 1e-30, 1e-20, 1e20, 1e30, 1e36):
        again, alpha_ = actual(scale)
        torch.testing.assert_close(again, one)
        assert alpha_ == alpha


@pytest.mark.parametrize("mode", [PublishedRule(), ReferenceCodeRule()], ids=str)
def test_batch_with_very_different_gradients(mode: StepRule) -> None:
    """The instances share one lambda, which agrees with double precision."""
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    grads[:, 1] *= 1e-24
    truth, single = (
        pulled(AIMLE(TopK(K), noise=Fixed(noise), samples=S, mode=mode, alpha=0.5), theta.to(t), grads.to(t))
        for t in (torch.float64, torch.float32)
    )
    assert truth[0].any()
    torch.testing.assert_close(single.double(), truth, rtol=1e-4, atol=0)
    grads[:, 1] *= 1e-20
    layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, mode=mode, alpha=0.5)
    assert pulled(layer, theta.float(), grads.float()).isfinite().all()


def test_published_rule_is_algorithm_1() -> None:
    theta, noise = draws(B, N), draws(S, B, N, seed=1)
    layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, mode=PublishedRule(), rate=0.2, target=1.5)
    solve, alpha, average = TopK(K), 0.0, 1.0
    for turn in range(12):
        grads = draws(S, B, N, seed=10 + turn)
        lam = alpha * sum(theta[b].norm() / grads[s, b].norm() for b in range(B) for s in range(S)) / (B * S)
        g = solve(theta + noise + lam * grads) - solve(theta + noise - lam * grads)
        truth = g.mean(0) / (2 * lam) if alpha else torch.zeros_like(theta)
        torch.testing.assert_close(pulled(layer, theta, grads), truth)
        average = 0.9 * average + 0.1 * (g != 0).sum().item() / (B * S)
        alpha = max(alpha + (0.2 if average <= 1.5 else -0.2), 0.0)
        assert layer.alpha.item() == pytest.approx(alpha)
        assert layer.average.item() == pytest.approx(average)
    assert layer.updates == 12


def test_reference_code_rule_is_the_ratio_of_all_norms() -> None:
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, mode=ReferenceCodeRule(), central=False)
    # both norms include every sample, so there is no factor sqrt(S)
    lam = theta.expand(S, B, N).norm() / grads.norm()
    g = TopK(K)(theta + noise) - TopK(K)(theta + noise - lam * grads)
    torch.testing.assert_close(pulled(layer, theta, grads), g.mean(0) / lam)
    assert layer.alpha.item() == pytest.approx(1 + 1e-4 if layer.average < 1 else 1 - 1e-4)


def test_per_instance_rule_is_relative_imle_with_the_current_alpha() -> None:
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, alpha=0.25)
    fixed = IMLE(TopK(K), noise=Fixed(noise), samples=S, lam=0.25, relative=True, central=True)
    torch.testing.assert_close(pulled(layer, theta, grads), pulled(fixed, theta, grads))
    assert layer.alpha != 0.25


def converged_statistic(layer: AIMLE) -> float:
    """The mean of the statistic after many steps."""
    theta, b = draws(32, 20).requires_grad_(), draws(32, 20, seed=1).abs()
    levels = []
    for _ in range(250):
        ((layer(theta) - b) ** 2).sum(-1).mean().backward()
        levels.append(layer.average.item())
    return sum(levels[-50:]) / 50


@pytest.mark.parametrize(
    ("central", "target", "start"), [(False, 0.5, 1.0), (True, 1.0, 0.01), (True, 1.0, 30.0), (False, 2.0, 0.01)]
)
def test_statistic_converges_to_its_target(central: bool, target: float, start: float) -> None:
    options: dict[str, Any] = {"noise": Gumbel(), "samples": 4, "generator": torch.Generator().manual_seed(0)}
    layer = AIMLE(TopK(3), central=central, target=target, alpha=start, **options)
    assert converged_statistic(layer) == pytest.approx(target, rel=0.05)


@pytest.mark.parametrize("mode", [PublishedRule(), ReferenceCodeRule()], ids=str)
@pytest.mark.parametrize("start", [0.1, 1.0])
def test_statistic_of_published_rules_converges_to_its_target(mode: StepRule, start: float) -> None:
    # With the default rates convergence would take thousands of steps.
    options: dict[str, Any] = {"noise": Gumbel(), "samples": 4, "generator": torch.Generator().manual_seed(0)}
    layer = AIMLE(TopK(3), mode=mode, rate=2e-2, alpha=start, **options)
    assert converged_statistic(layer) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("k", "expected"), [(1, 1.0), (8, 2.0)])
def test_default_target_is_a_quarter_of_the_chosen_entries(k: int, expected: float) -> None:
    layer = AIMLE(TopK(k), noise=Gumbel(), samples=4, generator=torch.Generator().manual_seed(0))
    assert converged_statistic(layer) == pytest.approx(expected, rel=0.05)


def test_per_instance_rule_corrects_the_first_average() -> None:
    theta, noise = draws(B, N), draws(S, B, N, seed=1)
    layer = AIMLE(TopK(K), noise=Fixed(noise), samples=S, target=1.5, decay=0.8, rate=0.3)
    alpha, counts = 1.0, []
    for turn in range(6):
        grads = draws(S, B, N, seed=10 + turn)
        perturbed = theta + noise
        length = (perturbed.norm(dim=-1, keepdim=True) ** 2).mean(0).sqrt()
        move = alpha * length * grads / grads.norm(dim=-1, keepdim=True)
        counts.append((TopK(K)(perturbed + move) != TopK(K)(perturbed - move)).sum().item() / (B * S))
        weights = [0.8 ** (turn - i) for i in range(turn + 1)]
        level = sum(w * c for w, c in zip(weights, counts, strict=True)) / sum(weights)
        alpha *= math.exp(0.3 * max(-1.0, min(1.0, 1 - level / 1.5)))
        pulled(layer, theta, grads)
        assert layer.alpha.item() == pytest.approx(alpha, rel=1e-5)


def test_eval_mode_freezes_the_state() -> None:
    theta, grads = draws(B, N), draws(1, B, N, seed=2)
    for mode in (PerInstanceRule(), PublishedRule(), ReferenceCodeRule()):
        layer = AIMLE(TopK(K), noise=Gumbel(), mode=mode, generator=torch.Generator().manual_seed(0))
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        pulled(layer.eval(), theta, grads)
        assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
        pulled(layer.train(), theta, grads)
        assert layer.updates == 1
        assert not torch.equal(before["alpha"], layer.alpha)


def test_state_dict_restores_the_state() -> None:
    theta, noise, grads = draws(B, N), draws(1, B, N, seed=1), draws(1, B, N, seed=2)
    layer = AIMLE(TopK(K), noise=Fixed(noise))
    for _ in range(5):
        pulled(layer, theta, grads)
    other = AIMLE(TopK(K), noise=Fixed(noise))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(pulled(other, theta, grads), pulled(layer, theta, grads))
    assert other.alpha == layer.alpha
    assert other.updates == 6


def test_instances_without_gradient_are_not_counted() -> None:
    theta, noise, grads = draws(B, N), draws(1, B, N, seed=1), draws(1, B, N, seed=2)
    layer = AIMLE(TopK(K), noise=Fixed(noise))
    assert not pulled(layer, theta, 0 * grads).any()
    assert layer.updates == 0
    assert layer.alpha == 1
    pulled(layer, theta, grads * torch.tensor([1.0, 0.0, 0.0, 0.0])[:, None])
    alone = AIMLE(TopK(K), noise=Fixed(noise[:, :1]))
    pulled(alone, theta[:1], grads[:, :1])
    assert layer.average == alone.average


@pytest.mark.parametrize("mode", [PerInstanceRule(), PublishedRule(), ReferenceCodeRule()], ids=str)
@pytest.mark.parametrize("central", [False, True])
def test_masked_instance_does_not_affect_others(mode: StepRule, central: bool) -> None:
    theta, noise, grads = draws(B, N), draws(S, B, N, seed=1), draws(S, B, N, seed=2)
    nonfinite, others = theta.clone(), [0, 2, 3]
    nonfinite[1, 0] = math.nan

    def make(noise: Tensor) -> AIMLE:
        solver = TopK(K, on_failure="mask")
        return AIMLE(solver, noise=Fixed(noise), samples=S, mode=mode, central=central, alpha=0.5)

    with_it, without = make(noise), make(noise[:, others])
    for _ in range(3):
        actual = pulled(with_it, nonfinite, grads)
        torch.testing.assert_close(actual[others], pulled(without, theta[others], grads[:, others]))
        assert not actual[1].any()
        for name, value in without.state_dict().items():
            torch.testing.assert_close(with_it.state_dict()[name], value)


@pytest.mark.parametrize("mode", [PerInstanceRule(), PublishedRule(), ReferenceCodeRule()], ids=str)
def test_empty_batch_does_not_change_the_state(mode: StepRule) -> None:
    layer = AIMLE(TopK(K), noise=Fixed(draws(S, 0, N)), samples=S, mode=mode)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    leaf = torch.zeros(0, N, dtype=torch.float64, requires_grad=True)
    layer(leaf).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_unreachable_target_keeps_alpha_bounded() -> None:
    layer = AIMLE(ArgMax(), noise=None, target=100.0, rate=5.0)
    for _ in range(20):
        actual = pulled(layer, draws(B, N), draws(B, N, seed=1))
    assert actual.isfinite().all()
    assert layer.alpha.item() == pytest.approx(1e6)


def test_zero_theta_without_noise_has_a_step() -> None:
    grad = draws(B, N, seed=1)
    actual = pulled(AIMLE(ArgMax(), noise=None), torch.zeros(B, N, dtype=torch.float64), grad)
    assert actual.isfinite().all()
    assert actual.any()


@pytest.mark.parametrize("sense", ["max", "min"])
def test_lpgd_without_rho_is_blackbox(sense: str) -> None:
    theta, grad = draws(B, N), draws(B, N, seed=1)
    for tau in (0.3, 3.0):
        truth = pulled(Blackbox(TopK(K, sense=sense), lam=tau), theta, grad)
        assert torch.equal(pulled(LPGD(TopK(K, sense=sense), tau=tau), theta, grad), truth)
        central = pulled(IMLE(TopK(K, sense=sense), noise=None, lam=tau, central=True), theta, grad)
        torch.testing.assert_close(
            pulled(LPGD(TopK(K, sense=sense), tau=tau, side=Envelope.AVERAGE), theta, grad), central
        )
    upper = pulled(LPGD(TopK(K, sense=sense), tau=3.0, side=Envelope.UPPER), theta, grad)
    torch.testing.assert_close((truth + upper) / 2, central)


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("side", Envelope, ids=str)
def test_lpgd_in_the_whole_space_is_identity(sense: str, side: str) -> None:
    theta, grad = draws(B, N), draws(B, N, seed=1)

    def plane(x: Tensor) -> Tensor:
        return x - (x.sum(-1, keepdim=True) - K) / N

    for relaxation, projection in ((lambda x: x, None), (plane, MeanProjection())):
        layer = LPGD(TopK(K, sense=sense), tau=math.inf, rho=0.7, side=side, relaxation=relaxation)
        truth = pulled(Identity(TopK(K, sense=sense), projection=projection), theta, grad)
        torch.testing.assert_close(pulled(layer, theta, grad), truth)


@pytest.mark.parametrize("tau", [1.5, math.inf])
def test_lpgd_solves_for_the_proximal_point(tau: float) -> None:
    """Compare with all points of zeros and ones."""
    points = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).double()

    theta, grad, rho = draws(B, 4), 2 * draws(B, 4, seed=1), 0.6
    z = Points(points=points)(theta)
    values = theta @ points.T / tau - grad @ points.T
    values = values - (points - z[:, None]).square().sum(-1) / (2 * rho)
    truth = (z - points[values.argmax(-1)]) / (tau if tau < math.inf else rho)
    torch.testing.assert_close(pulled(LPGD(Points(points=points), tau=tau, rho=rho), theta, grad), truth)
    assert truth.any()

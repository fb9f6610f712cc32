"""`ImplicitMeanField` on equations that are hard to solve: oscillation, failures, certain items."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import ConvergenceError
from setgrad.functions import DeepSetFunction, Exact, FromCallable, Gaussian, Pathwise
from setgrad.implicit import GMRES, Picard, Status
from setgrad.inference import ImplicitMeanField, OneStepMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import cosine, draw, spectral_radius


def repulsive(strength: float = 8.0) -> FromCallable:
    """Return a function whose items have scores and repel each other: plain iteration jumps between all and none."""

    def value(items: Tensor, masks: Tensor) -> Tensor:
        x = masks.to(items.dtype)
        size = x.sum(1)
        return x @ (items[:, 0] + 0.5 * strength) - strength / 2 * size * (size - 1) * items[:, 1].mean()

    return FromCallable(value)


def repulsive_sets(*strengths: float, n: int = 6, dtype=torch.float64) -> Sets:
    scores = torch.linspace(-1, 1, n, dtype=dtype)
    return Sets.from_list([torch.stack([scores, torch.full_like(scores, s)], 1) for s in strengths])


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0, 4.0])
def test_an_oscillating_map_is_solved(strength):
    sets = repulsive_sets(strength)
    with pytest.raises(ConvergenceError, match=r"MAX_STEPS|DIVERGED|STALLED"):
        mean_field(repulsive(), sets, estimator=Exact(), solver=ImplicitMeanField(solver=Picard()))
    plain = mean_field(repulsive(), sets, estimator=Exact(), solver=OneStepMeanField(50))
    assert plain.residual > 0.5
    result = mean_field(repulsive(), sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-6))
    assert result.status.tolist() == [Status.CONVERGED]
    bound = repulsive().bind(sets)
    torch.testing.assert_close(torch.sigmoid(Exact().gradient(bound, result.value)), result.value, rtol=0, atol=1e-4)
    if strength < 1:
        # Here the solution repels the plain iteration. With stronger repulsion, the start does.
        assert spectral_radius(repulsive(), sets, result.value) > 1
    with pytest.raises(ConvergenceError, match=r"1 of 1 samples failed \(1 MAX_STEPS"):
        mean_field(repulsive(), sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-10, max_steps=3))
    with pytest.warns(RuntimeWarning, match="max_steps"):
        solver = ImplicitMeanField(tol=1e-10, max_steps=3, on_failure="warn")
        short = mean_field(repulsive(), sets, estimator=Exact(), solver=solver)
    assert short.status.tolist() == [Status.MAX_STEPS] and torch.as_tensor(short.steps).tolist() == [3]
    assert float(short.residual) > 1e-3


def test_a_failed_set_does_not_affect_the_other_sets_of_the_batch():
    solver = ImplicitMeanField(solver=Picard(), tol=1e-10, on_failure="mask")

    def run(sets: Sets) -> tuple[list[int], Tensor, Tensor]:
        values = sets.values.clone().requires_grad_()
        result = mean_field(repulsive(), sets.with_values(values), estimator=Exact(), solver=solver)
        (slope,) = torch.autograd.grad(result.value.square().sum(), values)
        return result.status.tolist(), result.value, slope

    status, value, slope = run(repulsive_sets(0.05, 1.0, 0.03))
    assert status[0] == status[2] == Status.CONVERGED and status[1] != Status.CONVERGED
    assert slope[6:12].abs().max() == 0 and slope[:6].abs().min() > 0
    for number, strength in ((0, 0.05), (2, 0.03)):
        in_set = slice(6 * number, 6 * number + 6)
        _, alone, alone_slope = run(repulsive_sets(strength))
        torch.testing.assert_close(value[in_set], alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slope[in_set], alone_slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make_estimator", [Exact, lambda: Gaussian(8), lambda: Pathwise(8)], ids=["E", "G", "P"])
def test_certain_items_have_finite_gradients(make_estimator, dtype, seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=6, hidden=(16,), skip=True).to(dtype)
    with torch.no_grad():
        function.skip.weight.mul_(1000.0)
    sets = draw([6, 0, 1, 4]).to(dtype)
    result = mean_field(function, sets, estimator=make_estimator(), solver=ImplicitMeanField())
    assert result.logits.abs().max() > 80
    assert (result.status == Status.CONVERGED).all()
    target = (torch.arange(sets.layout.total) % 2).to(dtype)
    loss = nn.functional.binary_cross_entropy_with_logits(result.logits, target, reduction="sum")
    slopes = torch.autograd.grad(loss, list(function.parameters()), retain_graph=True)
    assert all(slope.isfinite().all() for slope in slopes)
    assert sum(float(slope.abs().sum()) for slope in slopes) > 1
    through = torch.autograd.grad(result.value.sum(), list(function.parameters()))
    assert all(slope.isfinite().all() for slope in through)
    # Certain items do not affect each other: the gradient is the gradient of one step.
    start = result.value.detach()
    if isinstance(make_estimator(), Exact):
        logits = mean_field(function, sets, estimator=Exact(), start=start).logits
        one_step_loss = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        one = torch.autograd.grad(one_step_loss, list(function.parameters()))
        assert cosine(*(torch.cat([s.flatten() for s in x]) for x in (slopes, one))) > 0.99


def test_a_set_has_not_converged_if_its_adjoint_system_was_not_solved(seeded):
    with seeded(0):
        sets = Sets.from_list([torch.randn(4, 2, dtype=torch.float64) for _ in range(3)])
        function = DeepSetFunction(2, phi="mlp", dim=8, hidden=(8,)).double()
    weak = ImplicitMeanField(tol=1e-8, adjoint=GMRES(tol=1e-12, restart=1, max_steps=1), on_failure="mask")
    result = mean_field(function, sets, estimator=Exact(), solver=weak)
    assert result.converged.all()
    result.value.sum().backward()
    assert not result.converged.any()

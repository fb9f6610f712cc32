"""Diagnostics tell right from wrong: spectral radii against eigenvalues, gradients that agree and that do not."""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import MissingDependencyError, OptionError, ShapeError
from setgrad.implicit import (
    Anderson,
    Broyden,
    Direct,
    GradientComparison,
    Newton,
    OneStepAdjoint,
    Picard,
    argmin,
    compare_gradients,
    contraction_estimate,
    fixed_point,
    plot_residuals,
    residual_trace,
    root,
)

# What differences can see: the tolerance of the solves, 1e-12, over the step of the differences, 6e-6; and some.
FINITE = 1e-6


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _linear(y: Tensor, matrix: Tensor) -> Tensor:
    return (matrix @ y[..., None])[..., 0]


def _tanh(y: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(y @ weight.T + x)


def _contraction(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    weight = _random(4, 4, seed=seed)
    return torch.zeros(3, 4, dtype=torch.float64), 0.7 * weight / torch.linalg.matrix_norm(weight, 2), _random(3, 4)


# --- contraction


@pytest.mark.parametrize("n", [1, 2, 8, 30])
def test_radius_of_random_matrices(n: int) -> None:
    matrices = _random(5, n, n) / n**0.5
    truth = torch.linalg.eigvals(matrices).abs().amax(-1)
    found = contraction_estimate(_linear, _random(5, n, seed=1), matrices, steps=200)
    # Beyond the block, neighbouring eigenvalues of a random matrix are all but equal in modulus.
    torch.testing.assert_close(found, truth, rtol=1e-9 if n <= 8 else 1e-3, atol=0.0)


def test_radius_of_complex_pairs_and_opposite_signs() -> None:
    def with_block(block: Tensor) -> Tensor:
        matrix = torch.diag(torch.linspace(0.0, 0.3, 20, dtype=torch.float64))
        matrix[:2, :2] = block
        change = torch.linalg.qr(_random(20, 20))[0]
        return change @ matrix @ change.T

    turn = torch.tensor([[0.6, -0.7], [0.7, 0.6]], dtype=torch.float64)
    signs = torch.tensor([[0.9, 0.0], [0.0, -0.9]], dtype=torch.float64)
    defective = torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64)
    matrices = torch.stack([with_block(block) for block in (turn, signs, defective)])
    found = contraction_estimate(_linear, torch.zeros(3, 20, dtype=torch.float64), matrices)
    torch.testing.assert_close(found, torch.tensor([0.85**0.5, 0.9, 0.5], dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_radius_is_that_of_the_jacobian_at_the_point() -> None:
    _, weight, x = _contraction()
    y = _random(3, 4, seed=5)
    slopes = 1 - torch.tanh(y @ weight.T + x) ** 2
    truth = torch.linalg.eigvals(slopes[..., None] * weight).abs().amax(-1)
    torch.testing.assert_close(contraction_estimate(_tanh, y, weight, x), truth)


def test_radius_of_a_sample_does_not_depend_on_its_batch() -> None:
    matrices = _random(4, 12, 12)
    y = _random(4, 12, seed=1)
    matrices[2, 0, 0] = math.nan
    together = contraction_estimate(_linear, y, matrices)
    assert together.isnan().tolist() == [False, False, True, False]
    alone = contraction_estimate(_linear, y[1:2], matrices[1:2])
    torch.testing.assert_close(alone, together[1:2])


def test_radius_of_a_constant_map_and_of_no_leading_axis() -> None:
    assert contraction_estimate(lambda y: 0.0 * y + 1.0, torch.ones(3, 12)).tolist() == [0.0, 0.0, 0.0]
    assert contraction_estimate(lambda y: torch.ones_like(y), torch.ones(3, 12)).tolist() == [0.0, 0.0, 0.0]
    assert contraction_estimate(lambda y: 0.25 * y, torch.ones(12)).item() == pytest.approx(0.25)


def test_start_of_the_power_iteration_is_seeded() -> None:
    matrices = _random(1, 40, 40)
    y = torch.zeros(1, 40, dtype=torch.float64)

    def after_two_steps(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return contraction_estimate(_linear, y, matrices, steps=2, generator=generator).item()

    assert after_two_steps(1) == after_two_steps(1) != after_two_steps(2)


def test_map_of_another_shape_and_no_steps_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"the shape of y, \(2, 3\), not \(2, 1\)"):
        contraction_estimate(lambda y: y[:, :1], torch.ones(2, 3))
    with pytest.raises(OptionError, match="steps must be at least 1"):
        contraction_estimate(lambda y: y, torch.ones(2, 3), steps=0)


# --- gradients


def test_right_gradients_of_a_fixed_point_agree() -> None:
    y0, weight, x = _contraction()
    found = compare_gradients(_tanh, y0, weight, x)
    assert max(found.implicit_unrolled) < 1e-10
    assert max(found.implicit_finite + found.unrolled_finite) < FINITE
    assert found.worst == max(found.implicit_unrolled + found.implicit_finite)


def test_one_step_gradient_is_found_out() -> None:
    y0, weight, x = _contraction()
    found = compare_gradients(_tanh, y0, weight, x, adjoint=OneStepAdjoint())
    assert min(found.implicit_unrolled + found.implicit_finite) > 0.05
    assert max(found.unrolled_finite) < FINITE


def test_one_step_difference_is_the_true_one() -> None:
    # y = a y + x: dy/dx is 1 / (1 - a), the one-step gradient 1, so they differ by a.
    x = torch.tensor([[1.0]], dtype=torch.float64)
    found = compare_gradients(lambda y, x: 0.3 * y + x, torch.zeros_like(x), x, adjoint=OneStepAdjoint())
    assert found.implicit_finite[0] == pytest.approx(0.3)
    assert found.implicit_unrolled[0] == pytest.approx(0.3)


def test_iteration_cut_too_early_is_found_out() -> None:
    y0, weight, x = _contraction()
    found = compare_gradients(_tanh, y0, weight, x, unroll=2)
    assert max(found.implicit_finite) < FINITE
    assert min(found.unrolled_finite) > 1e-3


@pytest.mark.parametrize("unrolled", [Newton(), Broyden()])
def test_right_gradients_of_a_root_agree(unrolled: Newton | Broyden) -> None:
    y0, weight, x = _contraction()
    found = compare_gradients(
        lambda y, w, x: y - _tanh(y, w, x), y0, weight, x, problem=root, unroll=9, unrolled_solver=unrolled
    )
    assert found.worst < 1e-6


def test_right_gradients_of_an_argmin_agree_on_a_loss_of_ones_own() -> None:
    target = _random(2, 3)
    found = compare_gradients(
        lambda y, w: ((y - w) ** 2 + 0.1 * y**4).sum(-1),
        torch.zeros(2, 3, dtype=torch.float64),
        target,
        problem=argmin,
        loss=lambda y: (y**2).sum(),
        adjoint=Direct(),
        unroll=9,
    )
    assert found.worst < FINITE


def test_parameters_of_a_module_are_arguments(seeded: Callable[..., AbstractContextManager[None]]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.linear(y) + x)

    with seeded(0):
        layer = Layer()
    found = compare_gradients(layer, torch.zeros(2, 3, dtype=torch.float64), _random(2, 3))
    assert found.shapes == ((2, 3), (3, 3), (3,))
    assert found.worst < FINITE
    assert layer.linear.weight.grad is None


def test_argument_without_influence_is_no_difference() -> None:
    y0, weight, x = _contraction()
    found = compare_gradients(lambda y, w, x, idle: _tanh(y, w, x) + 0.0 * idle, y0, weight, x, x)
    assert (found.implicit_unrolled[2], found.implicit_finite[2], found.unrolled_finite[2]) == (0.0, 0.0, 0.0)


def test_gradient_that_is_not_finite_is_infinitely_far() -> None:
    x = torch.tensor([[0.0]], dtype=torch.float64)
    # The slope of the root is infinite at 0, times 0: NaN.
    found = compare_gradients(lambda y, x: 0.5 * y + (x * x).sqrt(), torch.ones_like(x), x)
    assert found.worst == math.inf


def test_comparison_reads_well() -> None:
    found = GradientComparison(((3, 4), (2,)), (1e-12, 0.5), (2e-9, 0.25), (3e-9, 0.125))
    assert str(found).splitlines() == [
        "relative difference  implicit-unrolled  implicit-finite  unrolled-finite",
        "argument 0 (3, 4)              1.0e-12          2.0e-09          3.0e-09",
        "argument 1 (2,)                5.0e-01          2.5e-01          1.2e-01",
    ]


def test_nothing_to_differentiate_and_no_such_problem_are_refused() -> None:
    y0, weight, x = _contraction()
    with pytest.raises(OptionError, match="nothing to differentiate"):
        compare_gradients(lambda y: 0.5 * y, y0)
    with pytest.raises(OptionError, match="fixed_point, root and argmin"):
        residual_trace(_tanh, y0, weight, x, problem=lambda *_: fixed_point(lambda y: y, y0))


# --- residuals


def test_trace_of_a_linear_map_is_a_geometric_series() -> None:
    rates = torch.tensor([[0.5], [-0.25]], dtype=torch.float64)
    trace = residual_trace(lambda y, a: a * y, torch.ones_like(rates), rates, max_steps=6)
    steps = torch.arange(7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(trace, (1 - rates[:, 0]) * rates[:, 0].abs() ** steps)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()])
def test_trace_is_what_the_loop_sees(solver: Picard | Anderson | Newton | Broyden) -> None:
    y0, weight, x = _contraction()
    trace = residual_trace(_tanh, y0, weight, x, solver=solver, max_steps=4)
    assert trace.shape == (5, 3)
    for steps in range(5):
        found = fixed_point(_tanh, y0, weight, x, solver=solver, tol=1e-300, max_steps=steps, on_failure="mask")
        torch.testing.assert_close(found.residual, trace[: steps + 1].amin(0), rtol=1e-6, atol=1e-15)


def test_trace_of_newton_on_a_root() -> None:
    trace = residual_trace(
        lambda y, c: y * y - c, torch.ones(1, dtype=torch.float64), _random(1).abs(), problem=root, max_steps=8
    )
    assert trace.shape == (9,)
    assert trace[-1] < 1e-14
    assert not trace.requires_grad


def test_trace_without_steps_is_the_start() -> None:
    assert residual_trace(lambda y: 0.0 * y, torch.ones(2, 4), max_steps=0).tolist() == [[2.0, 2.0]]
    with pytest.raises(OptionError, match="max_steps must be at least 0"):
        residual_trace(lambda y: y, torch.ones(2, 4), max_steps=-1)


def test_plot_shows_every_sample_the_median_and_the_tolerance() -> None:
    trace = torch.tensor([[1.0, 2.0, 4.0], [0.1, 0.2, 0.4], [0.0, 0.02, 0.04]])
    axes = plot_residuals(trace, tol=1e-3).axes[0]
    assert axes.get_yscale() == "log"
    lines = [line.get_ydata() for line in axes.lines]
    assert len(lines) == 5
    assert lines[3] == pytest.approx([2.0, 0.2, 0.02])
    assert math.isnan(lines[0][2]), "an exact solution has no logarithm"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["median", "tolerance 0.001"]


def test_plot_of_one_sample_has_one_line_and_no_legend() -> None:
    axes = plot_residuals(torch.tensor([1.0, 0.1])).axes[0]
    assert len(axes.lines) == 1
    assert axes.get_legend() is None
    with pytest.raises(ShapeError, match="steps on its first axis"):
        plot_residuals(torch.tensor(1.0))


def test_matplotlib_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        plot_residuals(torch.ones(2, 1))

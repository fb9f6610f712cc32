"""Diagnostics: spectral radii against eigenvalues, gradients that agree and that do not, residual traces."""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
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
from tests.implicit.helpers import draw

# Accuracy of the differences: the tolerance of the solves, 1e-12, over the step, 6e-6, with a margin.
FINITE_TOL = 1e-6


def _linear(y: Tensor, matrix: Tensor) -> Tensor:
    return (matrix @ y[..., None])[..., 0]


def _tanh(y: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(y @ weight.T + x)


def _contraction(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    weight = draw(4, 4, seed=seed)
    return torch.zeros(3, 4, dtype=torch.float64), 0.7 * weight / torch.linalg.matrix_norm(weight, 2), draw(3, 4)


# --- contraction_estimate


@pytest.mark.parametrize("n", [1, 2, 8, 30])
def test_radius_of_random_matrices_is_right(n: int) -> None:
    matrices = draw(5, n, n) / n**0.5
    expected = torch.linalg.eigvals(matrices).abs().amax(-1)
    radius = contraction_estimate(_linear, draw(5, n, seed=1), matrices, steps=200)
    # With more unknowns than vectors, eigenvalues of nearly the same modulus make the iteration slow.
    torch.testing.assert_close(radius, expected, rtol=1e-9 if n <= 8 else 1e-3, atol=0.0)


def test_radius_of_complex_pairs_and_opposite_signs_is_right() -> None:
    def with_block(block: Tensor) -> Tensor:
        matrix = torch.diag(torch.linspace(0.0, 0.3, 20, dtype=torch.float64))
        matrix[:2, :2] = block
        change = torch.linalg.qr(draw(20, 20))[0]
        return change @ matrix @ change.T

    turn = torch.tensor([[0.6, -0.7], [0.7, 0.6]], dtype=torch.float64)
    signs = torch.tensor([[0.9, 0.0], [0.0, -0.9]], dtype=torch.float64)
    defective = torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64)
    matrices = torch.stack([with_block(block) for block in (turn, signs, defective)])
    radius = contraction_estimate(_linear, torch.zeros(3, 20, dtype=torch.float64), matrices)
    torch.testing.assert_close(radius, torch.tensor([0.85**0.5, 0.9, 0.5], dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_radius_is_that_of_the_jacobian_at_the_point() -> None:
    _, weight, x = _contraction()
    y = draw(3, 4, seed=5)
    slopes = 1 - torch.tanh(y @ weight.T + x) ** 2
    expected = torch.linalg.eigvals(slopes[..., None] * weight).abs().amax(-1)
    torch.testing.assert_close(contraction_estimate(_tanh, y, weight, x), expected)


def test_radius_of_a_sample_does_not_depend_on_its_batch() -> None:
    matrices = draw(4, 12, 12)
    y = draw(4, 12, seed=1)
    matrices[2, 0, 0] = math.nan
    together = contraction_estimate(_linear, y, matrices)
    assert together.isnan().tolist() == [False, False, True, False]
    alone = contraction_estimate(_linear, y[1:2], matrices[1:2])
    torch.testing.assert_close(alone, together[1:2])


def test_radius_of_a_constant_map_and_without_batch_axis() -> None:
    assert contraction_estimate(lambda y: 0.0 * y + 1.0, torch.ones(3, 12)).tolist() == [0.0, 0.0, 0.0]
    assert contraction_estimate(lambda y: torch.ones_like(y), torch.ones(3, 12)).tolist() == [0.0, 0.0, 0.0]
    assert contraction_estimate(lambda y: 0.25 * y, torch.ones(12)).item() == pytest.approx(0.25)


def test_the_generator_decides_the_first_vectors() -> None:
    matrices = draw(1, 40, 40)
    y = torch.zeros(1, 40, dtype=torch.float64)

    def after_two_steps(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return contraction_estimate(_linear, y, matrices, steps=2, generator=generator).item()

    assert after_two_steps(1) == after_two_steps(1) != after_two_steps(2)


def test_wrong_inputs_of_contraction_estimate_raise() -> None:
    with pytest.raises(ShapeError, match=r"the shape of y, \(2, 3\), not \(2, 1\)"):
        contraction_estimate(lambda y: y[:, :1], torch.ones(2, 3))
    with pytest.raises(OptionError, match="steps must be at least 1"):
        contraction_estimate(lambda y: y, torch.ones(2, 3), steps=0)


# --- compare_gradients


def test_exact_gradients_of_a_fixed_point_agree() -> None:
    y0, weight, x = _contraction()
    comparison = compare_gradients(_tanh, y0, weight, x)
    assert max(comparison.implicit_unrolled) < 1e-10
    assert max(comparison.implicit_finite + comparison.unrolled_finite) < FINITE_TOL
    assert comparison.worst == max(comparison.implicit_unrolled + comparison.implicit_finite)


def test_an_approximate_adjoint_is_detected() -> None:
    y0, weight, x = _contraction()
    comparison = compare_gradients(_tanh, y0, weight, x, adjoint=OneStepAdjoint())
    assert min(comparison.implicit_unrolled + comparison.implicit_finite) > 0.05
    assert max(comparison.unrolled_finite) < FINITE_TOL


def test_the_difference_of_the_one_step_adjoint_is_right() -> None:
    # y = a y + x: dy/dx is 1 / (1 - a), the one-step gradient 1, so they differ by a.
    x = torch.tensor([[1.0]], dtype=torch.float64)
    comparison = compare_gradients(lambda y, x: 0.3 * y + x, torch.zeros_like(x), x, adjoint=OneStepAdjoint())
    assert comparison.implicit_finite[0] == pytest.approx(0.3)
    assert comparison.implicit_unrolled[0] == pytest.approx(0.3)


def test_too_few_unrolled_steps_are_detected() -> None:
    y0, weight, x = _contraction()
    comparison = compare_gradients(_tanh, y0, weight, x, unroll=2)
    assert max(comparison.implicit_finite) < FINITE_TOL
    assert min(comparison.unrolled_finite) > 1e-3


@pytest.mark.parametrize("unrolled", [Newton(), Broyden()])
def test_exact_gradients_of_a_root_agree(unrolled: Newton | Broyden) -> None:
    y0, weight, x = _contraction()
    comparison = compare_gradients(
        lambda y, w, x: y - _tanh(y, w, x), y0, weight, x, problem=root, unroll=9, unrolled_solver=unrolled
    )
    assert comparison.worst < 1e-6


def test_exact_gradients_of_an_argmin_agree_with_a_custom_loss() -> None:
    target = draw(2, 3)
    comparison = compare_gradients(
        lambda y, w: ((y - w) ** 2 + 0.1 * y**4).sum(-1),
        torch.zeros(2, 3, dtype=torch.float64),
        target,
        problem=argmin,
        loss=lambda y: (y**2).sum(),
        adjoint=Direct(),
        unroll=9,
    )
    assert comparison.worst < FINITE_TOL


def test_parameters_of_a_module_are_compared_too(seeded: Callable[..., AbstractContextManager[None]]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.linear(y) + x)

    with seeded(0):
        layer = Layer()
    comparison = compare_gradients(layer, torch.zeros(2, 3, dtype=torch.float64), draw(2, 3))
    assert comparison.shapes == ((2, 3), (3, 3), (3,))
    assert comparison.worst < FINITE_TOL
    assert layer.linear.weight.grad is None


def test_an_unused_argument_has_difference_zero() -> None:
    y0, weight, x = _contraction()
    comparison = compare_gradients(lambda y, w, x, unused: _tanh(y, w, x) + 0.0 * unused, y0, weight, x, x)
    differences = (comparison.implicit_unrolled, comparison.implicit_finite, comparison.unrolled_finite)
    assert [column[2] for column in differences] == [0.0, 0.0, 0.0]


def test_a_gradient_that_is_not_finite_has_infinite_difference() -> None:
    x = torch.tensor([[0.0]], dtype=torch.float64)
    # The derivative of the square root at 0 is infinite, and 0 times infinity is NaN.
    comparison = compare_gradients(lambda y, x: 0.5 * y + (x * x).sqrt(), torch.ones_like(x), x)
    assert comparison.worst == math.inf


def test_the_comparison_prints_as_a_table() -> None:
    comparison = GradientComparison(((3, 4), (2,)), (1e-12, 0.5), (2e-9, 0.25), (3e-9, 0.125))
    assert str(comparison).splitlines() == [
        "relative difference  implicit-unrolled  implicit-finite  unrolled-finite",
        "argument 0 (3, 4)              1.0e-12          2.0e-09          3.0e-09",
        "argument 1 (2,)                5.0e-01          2.5e-01          1.2e-01",
    ]


def test_wrong_inputs_of_compare_gradients_raise() -> None:
    y0, weight, x = _contraction()
    with pytest.raises(OptionError, match="nothing to differentiate"):
        compare_gradients(lambda y: 0.5 * y, y0)
    with pytest.raises(OptionError, match="fixed_point, root and argmin"):
        residual_trace(_tanh, y0, weight, x, problem=lambda *_: fixed_point(lambda y: y, y0))


# --- residual_trace and plot_residuals


def test_the_trace_of_a_linear_map_is_a_geometric_series() -> None:
    rates = torch.tensor([[0.5], [-0.25]], dtype=torch.float64)
    trace = residual_trace(lambda y, a: a * y, torch.ones_like(rates), rates, max_steps=6)
    steps = torch.arange(7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(trace, (1 - rates[:, 0]) * rates[:, 0].abs() ** steps)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()])
def test_the_trace_equals_the_residuals_of_the_loop(solver: Picard | Anderson | Newton | Broyden) -> None:
    y0, weight, x = _contraction()
    trace = residual_trace(_tanh, y0, weight, x, solver=solver, max_steps=4)
    assert trace.shape == (5, 3)
    for steps in range(5):
        solution = fixed_point(_tanh, y0, weight, x, solver=solver, tol=1e-300, max_steps=steps, on_failure="mask")
        torch.testing.assert_close(solution.residual, trace[: steps + 1].amin(0), rtol=1e-6, atol=1e-15)


def test_the_trace_of_a_root_falls_to_rounding() -> None:
    trace = residual_trace(
        lambda y, c: y * y - c, torch.ones(1, dtype=torch.float64), draw(1).abs(), problem=root, max_steps=8
    )
    assert trace.shape == (9,)
    assert trace[-1] < 1e-14
    assert not trace.requires_grad


def test_a_trace_without_steps_is_the_first_residual() -> None:
    assert residual_trace(lambda y: 0.0 * y, torch.ones(2, 4), max_steps=0).tolist() == [[2.0, 2.0]]
    with pytest.raises(OptionError, match="max_steps must be at least 0"):
        residual_trace(lambda y: y, torch.ones(2, 4), max_steps=-1)


def test_the_plot_shows_every_sample_the_median_and_the_tolerance() -> None:
    trace = torch.tensor([[1.0, 2.0, 4.0], [0.1, 0.2, 0.4], [0.0, 0.02, 0.04]])
    axes = plot_residuals(trace, tol=1e-3).axes[0]
    assert axes.get_yscale() == "log"
    lines = [np.asarray(line.get_ydata()) for line in axes.lines]
    assert len(lines) == 5
    assert lines[3] == pytest.approx([2.0, 0.2, 0.02])
    assert math.isnan(lines[0][2]), "an exact solution has no logarithm"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["median", "tolerance 0.001"]


def test_the_plot_of_one_sample_has_one_line_and_no_legend() -> None:
    axes = plot_residuals(torch.tensor([1.0, 0.1])).axes[0]
    assert len(axes.lines) == 1
    assert axes.get_legend() is None
    with pytest.raises(ShapeError, match="steps on its first axis"):
        plot_residuals(torch.tensor(1.0))


def test_plotting_without_matplotlib_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        plot_residuals(torch.ones(2, 1))

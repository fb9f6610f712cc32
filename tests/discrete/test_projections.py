"""Projections keep solutions and remove useless directions from gradients; margins change the right entries."""

import pytest
import torch

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators import Identity
from setgrad.discrete.margins import InformedMargin, Margin, NoiseMargin
from setgrad.discrete.projections import MeanProjection, NormProjection, PlaneProjection, Projection, StdProjection
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError, ShapeError
from tests.discrete.oracles import Fixed, Points, draws

NORMAL = torch.tensor([1.0, 2.0, 0.0, -1.0, 1.0], dtype=torch.float64)
# Points on the plane <NORMAL, z> = 2.
ON_PLANE = torch.tensor(
    [[2.0, 0.0, 3.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 2.0, -2.0, 0.0]]
)
# Each projection with a suitable solver.
PROJECTIONS: list[tuple[Projection, CombinatorialSolver]] = [
    (MeanProjection(), TopK(2)),
    (NormProjection(), TopK(2)),
    (NormProjection(), Points(points=draws(6, 5, seed=9))),
    (StdProjection(), TopK(2)),
    (PlaneProjection(NORMAL), Points(points=ON_PLANE)),
]


@pytest.mark.parametrize(("projection", "solver"), PROJECTIONS)
def test_projections_keep_solutions(projection: Projection, solver: CombinatorialSolver) -> None:
    theta = 3 * draws(200, 5) + 1
    projected = projection(theta)
    assert not torch.allclose(projected, theta)
    assert torch.equal(solver(projected), solver(theta))


@pytest.mark.parametrize(("projection", "solver"), PROJECTIONS)
def test_projecting_twice_changes_nothing(projection: Projection, solver: CombinatorialSolver) -> None:
    once = projection(draws(7, 5))
    torch.testing.assert_close(projection(once), once)


@pytest.mark.parametrize(("projection", "solver"), PROJECTIONS)
def test_jacobian(projection: Projection, solver: CombinatorialSolver, seeded) -> None:
    with seeded():
        assert torch.autograd.gradcheck(projection, draws(2, 5).requires_grad_())


def test_published_formulas() -> None:
    w = draws(5)
    unit = NORMAL / NORMAL.norm()
    torch.testing.assert_close(PlaneProjection(NORMAL)(w), w - (unit @ w) * unit)
    torch.testing.assert_close(PlaneProjection(torch.ones(5))(w), MeanProjection()(w))
    torch.testing.assert_close(StdProjection()(w), NormProjection()(MeanProjection()(w)))
    jacobian = torch.eye(5, dtype=w.dtype) / w.norm() - torch.outer(w, w) / w.norm() ** 3
    torch.testing.assert_close(torch.autograd.functional.jacobian(NormProjection(), w), jacobian)


@pytest.mark.parametrize(("projection", "solver"), PROJECTIONS[:4])
def test_instances_of_two_axes(projection: Projection, solver: CombinatorialSolver) -> None:
    theta = draws(3, 2, 4)
    torch.testing.assert_close(projection(theta, dims=2).reshape(3, 8), projection(theta.reshape(3, 8)))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e30])
def test_norm_of_extreme_numbers(scale: float) -> None:
    theta = draws(4, 5, dtype=torch.float32).abs() + 0.1
    torch.testing.assert_close(NormProjection()(scale * theta), NormProjection()(theta))


def test_zeros_stay_zero_and_pass_their_gradient() -> None:
    theta = torch.zeros(2, 3, requires_grad=True)
    value = StdProjection()(theta)
    assert not value.any()
    value[:, 0].sum().backward()
    torch.testing.assert_close(theta.grad, MeanProjection()(torch.tensor([1.0, 0.0, 0.0])).expand(2, 3))


def test_identity_uses_the_jacobian_of_the_projection() -> None:
    theta, grad = draws(4, 5), draws(4, 5, seed=1)
    for projection in (MeanProjection(), NormProjection(), StdProjection(), PlaneProjection(NORMAL)):
        layer = Identity(TopK(2), projection=projection)
        pulled = torch.func.vjp(projection, theta)[1]
        (actual,) = torch.autograd.grad((layer(leaf := theta.clone().requires_grad_()) * grad).sum(), leaf)
        torch.testing.assert_close(actual, pulled(grad)[0])


def test_invalid_planes_raise() -> None:
    for normal in (torch.zeros(3), torch.tensor([1.0, torch.nan]), torch.ones(3, dtype=torch.long)):
        with pytest.raises(OptionError, match="normal of a plane"):
            PlaneProjection(normal)
    with pytest.raises(ShapeError, match="normal has shape"):
        PlaneProjection(torch.ones(3))(torch.zeros(2, 4))


def test_noise_margin_signs_are_fair() -> None:
    margin = NoiseMargin(0.5)
    moved = margin(torch.zeros(100, 100), generator=torch.Generator().manual_seed(0))
    assert set(moved.unique().tolist()) == {-0.25, 0.25}
    assert abs(moved.mean()) < 4 * 0.25 / 100


@pytest.mark.parametrize("sense", ["max", "min"])
def test_informed_margin_works_against_the_target(sense: str) -> None:
    theta = torch.tensor([0.0, 0.3]) if sense == "min" else torch.tensor([0.0, -0.3])
    right = torch.tensor([1.0, 0.0])
    # The first entry wins by 0.3: a margin of 0.2 leaves it there, one of 0.4 does not.
    for width, stays in ((0.2, True), (0.4, False)):
        layer = Identity(TopK(1, sense=sense), margin=InformedMargin(width))
        assert torch.equal(layer(theta, target=right), right) is stays
        layer.eval()
        assert torch.equal(layer(theta), right)


@pytest.mark.parametrize("margin", [NoiseMargin(10.0), InformedMargin(10.0)])
def test_margins_pass_the_gradient_and_are_off_in_eval_mode(margin: Margin) -> None:
    theta, grad = draws(3, 5).requires_grad_(), draws(3, 5, seed=1)
    layer = Identity(TopK(2), margin=margin, generator=torch.Generator().manual_seed(0))
    target = TopK(2)(theta)
    chosen = layer(theta, target=target)
    assert not torch.equal(chosen, target)
    chosen.backward(grad)
    assert torch.equal(theta.grad, grad)
    assert torch.equal(layer.eval()(theta), target)


def test_margin_with_samples() -> None:
    theta, target = draws(3, 5), TopK(2)(draws(3, 5, seed=4))
    noise = draws(4, 3, 5, seed=2)
    layer = Identity(TopK(2), margin=InformedMargin(1.0), noise=Fixed(noise), samples=4)
    assert torch.equal(layer(theta, target=target), TopK(2)(theta + noise + 0.5 - target))


def test_invalid_margins_raise() -> None:
    with pytest.raises(OptionError, match="0 or more"):
        NoiseMargin(-1.0)
    with pytest.raises(OptionError, match="target="):
        Identity(TopK(1), margin=InformedMargin(1.0))(torch.zeros(3))
    with pytest.raises(ShapeError, match="target has shape"):
        Identity(TopK(1), margin=InformedMargin(1.0))(torch.zeros(3), target=torch.zeros(2))


@pytest.mark.parametrize("value", [0.1, -3.3, 1e-20, 1e20])
@pytest.mark.parametrize("count", [2, 7, 59, 1000])
def test_equal_entries_become_zeros_and_keep_the_gradient(value: float, count: int) -> None:
    theta = torch.full((2, count), value, requires_grad=True)
    projected = StdProjection()(theta)
    assert not projected.any()
    slope = torch.arange(float(count))
    (projected * slope).sum().backward()
    torch.testing.assert_close(theta.grad, (slope - slope.mean()).expand(2, -1))

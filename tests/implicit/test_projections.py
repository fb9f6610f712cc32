"""Projections against scalar root finding, a QP solver, closed forms and finite differences."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from setgrad.errors import OptionError, ShapeError
from setgrad.implicit import entropic_budget, project_box, project_budget, softmax, sparsemax
from tests.implicit.helpers import FORWARD_MODE, draw

Seeded = Callable[..., AbstractContextManager[None]]
Projection = Callable[..., Tensor]


WITHOUT_BUDGET: list[Projection] = [softmax, sparsemax]
WITH_BUDGET: list[Projection] = [project_budget, entropic_budget]


def _reference_budget(x: Tensor, k: float) -> Tensor:
    """Project one sample on the budget, with the threshold from scalar root finding."""
    a = x.numpy()
    threshold = brentq(lambda t: np.clip(a - t, 0, 1).sum() - k, a.min() - 2, a.max() + 1, xtol=1e-15, rtol=1e-15)
    return torch.from_numpy(np.clip(a - threshold, 0, 1))


def _reference_entropic_budget(x: Tensor, k: float) -> Tensor:
    a = x.numpy()
    v = brentq(lambda v: (1 / (1 + np.exp(-a - v))).sum() - k, -60, 60, xtol=1e-15, rtol=1e-15)
    return torch.from_numpy(1 / (1 + np.exp(-a - v)))


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("k", [0.3, 1.0, 2.5, 6.9])
def test_budget_projections_match_scalar_root_finding(k: float, scale: float) -> None:
    x = draw(6, 7, scale=scale)
    for ours, reference in ((project_budget, _reference_budget), (entropic_budget, _reference_entropic_budget)):
        expected = torch.stack([reference(row, k) for row in x])
        torch.testing.assert_close(ours(x, k), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_sparsemax_solves_its_quadratic_program(scale: float) -> None:
    qpsolvers = pytest.importorskip("qpsolvers", reason="the oracle is a QP solver: pip install 'setgrad[qp]'")
    pytest.importorskip("piqp", reason="the oracle is a QP solver: pip install 'setgrad[qp]'")
    x = draw(5, 6, scale=scale)
    for row, ours in zip(x, sparsemax(x), strict=True):
        expected = qpsolvers.solve_qp(
            np.eye(6), -row.numpy(), -np.eye(6), np.zeros(6), np.ones((1, 6)), np.ones(1), solver="piqp"
        )
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)
        # Optimal up to rounding: one threshold for the support, and no other entry above it.
        gap = row - ours
        assert float(gap[ours > 0].max() - gap[ours > 0].min()) < 1e-13
        assert float(gap.max()) <= float(gap[ours > 0].min()) + 1e-13
        assert float(ours.sum()) == pytest.approx(1.0, abs=1e-13)


def test_sparsemax_is_the_budget_of_one_and_softmax_is_that_of_torch() -> None:
    x = draw(20, 9)
    torch.testing.assert_close(sparsemax(x), project_budget(x, 1.0), rtol=0, atol=1e-13)
    assert torch.equal(softmax(x), x.softmax(-1))


@FORWARD_MODE
@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_derivatives_are_right(project: Projection, seeded: Seeded) -> None:
    x = draw(3, 5).requires_grad_()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 2] = False
    args: tuple[Tensor, ...] = (x,)
    if project in WITH_BUDGET:
        args = (x, torch.tensor([1.3, 0.4, 3.7], dtype=torch.float64, requires_grad=True))
    with seeded(0):
        assert gradcheck(lambda *a: project(*a, mask=mask), args, check_forward_ad=True)
        # Squared, because the second derivative of a piecewise linear map is 0.
        assert gradgradcheck(lambda *a: project(*a, mask=mask).pow(2), args)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_transforms_of_torch_func_are_right(project: Projection) -> None:
    x = draw(4, 5)
    k = () if project in WITHOUT_BUDGET else (1.5,)
    torch.testing.assert_close(torch.func.vmap(lambda r: project(r, *k))(x), project(x, *k), rtol=0, atol=1e-12)
    jacobian = torch.func.jacrev(lambda r: project(r, *k))(x[0])
    reference = torch.autograd.functional.jacobian(lambda r: project(r, *k), x[0])
    torch.testing.assert_close(jacobian, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_masked_items_have_no_effect(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (1.7,)
    x = draw(2, 6)
    x[:, 3] = torch.nan
    mask = torch.tensor([True, True, False, False, True, True])
    x.requires_grad_()
    z = project(x, *k, mask=mask)
    short = x.detach()[:, mask].requires_grad_()
    expected = project(short, *k)
    torch.testing.assert_close(z[:, mask], expected, rtol=0, atol=1e-14)
    assert bool((z[:, ~mask] == 0).all())
    weights = draw(2, 6, seed=1)
    (grad,) = torch.autograd.grad((z * weights).sum(), x)
    (reference,) = torch.autograd.grad((expected * weights[:, mask]).sum(), short)
    torch.testing.assert_close(grad[:, mask], reference, rtol=0, atol=1e-13)
    assert bool((grad[:, ~mask] == 0).all())


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_a_sample_that_is_not_finite_does_not_change_the_others(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (1.7,)
    clean = draw(3, 6)
    nonfinite = clean.clone()
    nonfinite[1, 2], nonfinite[1, 3] = torch.nan, torch.inf
    weights = draw(3, 6, seed=1)
    results = []
    for x in (clean.requires_grad_(), nonfinite.requires_grad_()):
        z = project(x, *k)
        results.append((z, torch.autograd.grad((z[[0, 2]] * weights[[0, 2]]).sum(), x)[0]))
    (z, grad), (other, other_grad) = results
    assert torch.equal(z[[0, 2]], other[[0, 2]])
    assert torch.equal(grad[[0, 2]], other_grad[[0, 2]])
    assert bool(other[1].isnan().all())


@pytest.mark.parametrize("project", WITH_BUDGET)
@pytest.mark.parametrize("tied", [False, True])
def test_budgets_of_zero_and_of_all_items(project: Projection, tied: bool) -> None:
    x = torch.zeros(2, 4, dtype=torch.float64) if tied else draw(2, 4)
    x.requires_grad_()
    z = project(x, torch.tensor([0.0, 4.0]))
    assert torch.equal(z, torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64))
    (grad,) = torch.autograd.grad((z * draw(2, 4, seed=1)).sum(), x)
    assert bool((grad == 0).all())


@pytest.mark.parametrize("end", [0.0, 5.0])
def test_entropic_budget_at_the_ends_has_the_derivative_of_the_limit(end: float) -> None:
    x = draw(5)
    step = 1e-6 if end == 0 else -1e-6
    k = torch.tensor(end, dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.functional.jacobian(lambda k: entropic_budget(x, k), k)
    difference = (entropic_budget(x, end + step) - entropic_budget(x, end)) / step
    torch.testing.assert_close(slopes, difference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_equal_items_get_equal_shares(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (2.0,)
    z = project(torch.full((5,), 3.0, dtype=torch.float64), *k)
    torch.testing.assert_close(z, torch.full_like(z, (k[0] if k else 1.0) / 5), rtol=0, atol=1e-14)


@pytest.mark.parametrize("project", WITH_BUDGET)
def test_a_single_item_gets_the_whole_budget(project: Projection) -> None:
    x = torch.tensor([[-4.0], [9.0]], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([0.2, 0.9], dtype=torch.float64, requires_grad=True)
    z = project(x, k)
    torch.testing.assert_close(z[:, 0], k, rtol=0, atol=1e-12)
    x_grad, k_grad = torch.autograd.grad(z.sum(), (x, k))
    torch.testing.assert_close(x_grad, torch.zeros_like(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(k_grad, torch.ones_like(k), rtol=0, atol=1e-12)


@pytest.mark.parametrize("project", WITHOUT_BUDGET)
def test_a_single_item_on_the_simplex_is_one(project: Projection) -> None:
    x = torch.tensor([7.0], dtype=torch.float64, requires_grad=True)
    assert project(x).tolist() == [1.0]
    assert torch.autograd.grad(project(x).sum(), x)[0].tolist() == [0.0]


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_a_sample_without_items_is_zero(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (torch.tensor([1.0, 0.0]),)
    x = draw(2, 3).requires_grad_()
    mask = torch.tensor([[True] * 3, [False] * 3])
    z = project(x, *k, mask=mask)
    assert z[1].tolist() == [0.0] * 3
    assert bool(torch.autograd.grad(z.pow(2).sum(), x)[0].isfinite().all())


def test_entropic_budget_of_items_far_apart_is_finite() -> None:
    x = torch.tensor([[300.0, -300.0, 0.0], [1e4, 0.0, 5.0]], dtype=torch.float64, requires_grad=True)
    z = entropic_budget(x, torch.tensor([1.0, 1.5]))
    torch.testing.assert_close(z.sum(-1), torch.tensor([1.0, 1.5], dtype=torch.float64), rtol=0, atol=1e-10)
    assert bool(torch.autograd.grad(z.pow(2).sum(), x)[0].isfinite().all())


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_the_dtype_is_preserved(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (2.0,)
    x = draw(3, 8)
    z = project(x.float(), *k)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.double(), project(x, *k), rtol=0, atol=1e-5)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
@pytest.mark.parametrize("far", [1e4, 1e6])
def test_large_numbers_keep_the_sum(project: Projection, far: float) -> None:
    k = () if project in WITHOUT_BUDGET else (5.0,)
    x = (draw(4, 50) + far).float()
    z = project(x, *k)
    torch.testing.assert_close(z.sum(-1), torch.full((4,), k[0] if k else 1.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(z, project(x.double() - far, *k).float(), rtol=0, atol=1e-5)


def test_one_large_item_does_not_reduce_the_accuracy_of_the_others() -> None:
    z = project_budget(torch.tensor([1e16, 0.0, 0.0]), 1.5)
    torch.testing.assert_close(z, torch.tensor([1.0, 0.25, 0.25]))
    x = torch.tensor([1e4, 1e4 - 0.5, 1e4 - 1, 0.0])
    z = entropic_budget(x, 1.0)
    torch.testing.assert_close(z[:3], _reference_entropic_budget(x[:3].double() - 1e4, 1.0).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_differs_by_rounding_only(project: Projection, dtype: torch.dtype) -> None:
    k = () if project in WITHOUT_BUDGET else (1.0,)
    x = torch.tensor([300.0, 299.5, 298.0, 0.0], dtype=dtype, requires_grad=True)
    double = x.detach().double().requires_grad_()
    z, expected = project(x, *k), project(double, *k)
    assert z.dtype == dtype
    torch.testing.assert_close(z.double(), expected, rtol=0, atol=4e-3)
    slopes = [torch.autograd.grad(out[0], input_)[0].double() for out, input_ in ((z, x), (expected, double))]
    torch.testing.assert_close(*slopes, rtol=0, atol=4e-3)


@pytest.mark.parametrize("project", WITH_BUDGET)
def test_a_budget_above_the_number_of_items_raises_under_vmap(project: Projection) -> None:
    with pytest.raises(OptionError, match="it is 4 of 3"):
        torch.func.vmap(lambda x: project(x, 4.0))(draw(2, 3))


@FORWARD_MODE
def test_the_box_equals_clamp_and_has_derivatives(seeded: Seeded) -> None:
    x = draw(3, 4, scale=2.0).requires_grad_()
    low = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    high = torch.full((3, 1), 0.5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(project_box(x, -1.0, 0.5), x.clamp(-1.0, 0.5))
    with seeded(0):
        assert gradcheck(project_box, (x, low, high), check_forward_ad=True)
    masked = project_box(x, low, high, mask=torch.tensor([True, False, True, True]))
    assert bool((masked[:, 1] == 0).all())
    with pytest.raises(OptionError, match="empty"):
        project_box(x, 1.0, 0.0)


@pytest.mark.parametrize("project", WITHOUT_BUDGET + WITH_BUDGET)
def test_no_items_raise(project: Projection) -> None:
    k = () if project in WITHOUT_BUDGET else (0.0,)
    with pytest.raises(ShapeError, match="at least one item"):
        project(torch.zeros(3, 0), *k)


@pytest.mark.parametrize("project", WITH_BUDGET)
def test_a_budget_out_of_range_raises(project: Projection) -> None:
    x, mask = torch.zeros(2, 3), torch.tensor([[True] * 3, [True, True, False]])
    with pytest.raises(OptionError, match=r"in sample 1 it is 2\.5 of 2"):
        project(x, 2.5, mask=mask)
    with pytest.raises(OptionError, match="sample 0 it is -1"):
        project(x, -1.0)
    with pytest.raises(OptionError, match="nan"):
        project(x, float("nan"))
    with pytest.raises(ShapeError, match="one number for each sample"):
        project(x, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropic_budget_of_items_that_are_zero_or_one_has_derivative_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([[900.0, 500.0, -400.0, -800.0]], dtype=dtype, requires_grad=True)
    z = entropic_budget(x, 2)
    torch.testing.assert_close(z.detach(), torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=dtype))
    (slope,) = torch.autograd.grad(z[0, 1], x)
    assert slope.abs().max() < 1e-30


@pytest.mark.parametrize("low", [-1e9, -1e15, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("project", WITH_BUDGET)
def test_an_item_far_below_has_no_effect(project: Projection, low: float) -> None:
    items, weights = torch.tensor([0.5, 0.2, 0.1]), torch.tensor([1.0, 2.0, 3.0])
    few = items.clone().requires_grad_()
    many = torch.cat([items, torch.tensor([low])]).requires_grad_()
    expected, result = project(few, 1.5), project(many, 1.5)
    (expected * weights).sum().backward()
    (result[:3] * weights).sum().backward()
    torch.testing.assert_close(result, torch.cat([expected, torch.zeros(1)]))
    torch.testing.assert_close(many.grad, torch.cat([few.grad, torch.zeros(1)]))


@pytest.mark.parametrize("project", WITH_BUDGET)
def test_items_far_away_on_both_sides_are_zero_and_one(project: Projection) -> None:
    z = project(torch.tensor([3e38, 0.3, -3e38]), 1.25)
    torch.testing.assert_close(z, torch.tensor([1.0, 0.25, 0.0]))
    # The budget is so large that the last item gets a share too.
    torch.testing.assert_close(project(torch.tensor([0.5, 0.2, -3e38]), 2.5), torch.tensor([1.0, 1.0, 0.5]))


@pytest.mark.parametrize("project", WITH_BUDGET)
def test_a_common_offset_changes_nothing(project: Projection) -> None:
    for offset in (1e9, 1e12, 1e14):
        items = draw(100) + offset
        # The difference has the rounded items, but near 0.
        torch.testing.assert_close(project(items, 30.0), project(items - offset, 30.0), rtol=0, atol=1e-12)

"""Samples of a batch do not affect each other, and masks, subsets and check intervals do not change results."""

import pytest
import torch

from setgrad.implicit import (
    GMRES,
    LBFGS,
    AdaptivePicard,
    Anderson,
    Broyden,
    Direct,
    Newton,
    NormalCG,
    Picard,
    argmin,
    fixed_point,
    root,
)
from tests.implicit.helpers import draw
from tests.implicit.problems import CASES
from tests.implicit.solvers import BACKWARD, FORWARD


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_a_sample_ends_the_same_alone_and_in_any_batch(case, solver):
    batch = case.start.shape[:-1]
    is_per_sample = [a.dim() > len(batch) and a.shape[: len(batch)] == batch for a in case.args]
    together = case.solve(*case.args, solver=solver, on_failure="mask", tol=1e-10)
    options = {"solver": solver, "tol": 1e-10, "max_steps": 400, "on_failure": "mask"}
    for index in torch.cartesian_prod(*(torch.arange(n) for n in batch)).reshape(-1, len(batch)).tolist():
        at = tuple(slice(i, i + 1) for i in index)
        args = [a[at] if per_sample else a for a, per_sample in zip(case.args, is_per_sample, strict=True)]
        alone = case.entry_point(case.fn, case.start[at], *args, **options)
        # The last bits of a product depend on the shape of the batch; steps and status must not.
        torch.testing.assert_close(alone.value, together.value[at], rtol=1e-12, atol=1e-13)
        assert alone.status.item() == together.status[at].item()
        assert abs(alone.steps.item() - together.steps[at].item()) <= 1


@pytest.mark.parametrize("bad_value", [torch.nan, torch.inf, 1e200], ids=str)
@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), GMRES(), NormalCG()], ids=str)
def test_a_bad_sample_does_not_change_the_others(bad_value, solver, adjoint):
    def fn(y, weight, bias):
        return torch.tanh((weight @ y[..., None])[..., 0]) + bias

    weight = (0.2 * draw(3, 4, 4)).requires_grad_()
    good_bias = draw(3, 4, seed=1)
    bad_bias = good_bias.clone()
    bad_bias[1] = bad_value
    start = torch.zeros(3, 4, dtype=torch.float64)

    def run(bias):
        bias = bias.clone().requires_grad_()
        solution = fixed_point(fn, start, weight, bias, solver=solver, adjoint=adjoint, on_failure="mask")
        loss = solution.value.nan_to_num(0.0, 0.0, 0.0)[[0, 2]].sum()
        return solution, torch.autograd.grad(loss, (weight, bias))

    (good, good_grads), (bad, bad_grads) = run(good_bias), run(bad_bias)
    assert bool(bad.converged[[0, 2]].all())
    for a, b in ((good.value, bad.value), *zip(good_grads, bad_grads, strict=True)):
        assert torch.equal(a[[0, 2]], b[[0, 2]])
    if not bool(bad.converged[1]):
        assert all(bool((g[1] == 0).all()) for g in bad_grads)


@pytest.mark.parametrize("mask", [None, torch.tensor([[True] * 4] * 4 + [[True, True, False, True]] * 4)], ids=str)
@pytest.mark.parametrize("solver", [Picard(), AdaptivePicard(), Anderson(), Newton(), Broyden()], ids=str)
def test_restrict_leaves_out_samples_that_are_done(solver, mask):
    # The weaker the coupling, the sooner the plain iteration is done.
    couplings = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 40.0], dtype=torch.float64)
    weight = draw(8, 4, 4) * couplings[:, None, None]
    bias, batch_sizes = draw(8, 4, seed=1), []

    def fn(y, weight, bias):
        batch_sizes.append(len(y))
        return torch.tanh((weight @ y[..., None])[..., 0]) + bias

    def run(restrict):
        batch_sizes.clear()
        args = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        options = {"solver": solver, "on_failure": "mask", "mask": mask, "max_steps": 50}
        solution = fixed_point(fn, torch.zeros_like(bias), *args, **options, restrict=restrict)
        n_evaluated = sum(batch_sizes)
        return solution, n_evaluated, torch.autograd.grad(solution.value[:7].sum(), args)

    full, n_full, full_grads = run(None)
    restricted, n_restricted, grads = run(lambda rows, weight, bias: lambda y: fn(y, weight[rows], bias[rows]))
    declined, _, _ = run(lambda rows, weight, bias: None)
    assert bool(full.converged[:7].all())
    for solution in (restricted, declined):
        assert torch.equal(solution.status, full.status) and torch.equal(solution.steps, full.steps)
        torch.testing.assert_close(solution.value, full.value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(solution.residual, full.residual, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(grads, full_grads, rtol=1e-10, atol=1e-12)
    if isinstance(solver, Picard | AdaptivePicard | Anderson):
        assert n_restricted < n_full


@pytest.mark.parametrize(("case", "adjoint"), [b for b in BACKWARD if b[0].name in ("network", "convex")], ids=str)
def test_masked_unknowns_keep_their_value_and_have_no_effect(case, adjoint):
    bias = case.args[-1].clone().requires_grad_()
    mask = torch.zeros_like(case.start, dtype=torch.bool)
    mask[..., :2] = True
    start = case.start + 0.3
    options = {"mask": mask, "adjoint": adjoint, "solver": Newton(), "tol": 1e-12}
    value = case.entry_point(case.fn, torch.where(mask, start, 0.25), *case.args[:-1], bias, **options).value
    assert bool((value[~mask] == 0.25).all())
    grads = torch.autograd.grad(value[mask].sum(), bias)[0]
    if case.name == "network":
        assert bool((grads[~mask] == 0).all())
    small = torch.autograd.functional.jacobian(lambda b: _solve_two_unknowns(case, b, start), bias.detach())
    torch.testing.assert_close(small.sum(tuple(range(small.dim() - bias.dim()))), grads, rtol=1e-8, atol=1e-9)


def _solve_two_unknowns(case, bias, start):
    """Solve for the first two unknowns alone, with the others at 1/4."""

    def full(y):
        return torch.cat([y, torch.full_like(y, 0.25)[..., : start.shape[-1] - 2]], -1)

    def fn(y, *args):
        out = case.fn(full(y), *args)
        return out[..., :2] if case.entry_point is fixed_point else out

    return case.entry_point(fn, start[..., :2], *case.args[:-1], bias, tol=1e-12).value


@pytest.mark.parametrize("check_every", [1, 3, 50])
def test_checking_less_often_does_not_change_the_result(check_every):
    case = CASES[0]
    rarely, often = case.solve(*case.args, check_every=check_every), case.solve(*case.args)
    assert torch.equal(rarely.value, often.value) and torch.equal(rarely.steps, often.steps)


@pytest.mark.parametrize("solver", [Newton(), Broyden()], ids=str)
def test_a_batch_of_large_dense_systems_is_right(solver):
    """Several threads factorise a batch of large matrices wrongly in some builds of torch."""
    n = 200
    matrix = torch.eye(n, dtype=torch.float64) * 3 + draw(8, n, n) / n**0.5
    b = draw(8, n, seed=1).requires_grad_()
    value = root(
        lambda y, b: (matrix @ y[..., None])[..., 0] - b, torch.zeros(8, n, dtype=torch.float64), b, solver=solver
    ).value
    (gradient,) = torch.autograd.grad(value.sum(), b)
    for i in range(8):
        inverse = torch.linalg.inv(matrix[i])
        torch.testing.assert_close(value[i], inverse @ b[i], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient[i], inverse.sum(0), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("entry_point", [fixed_point, argmin])
def test_defaults_work_for_many_unknowns_in_float32(entry_point):
    b = torch.randn(4, 300, generator=torch.Generator().manual_seed(0), requires_grad=True)
    if entry_point is fixed_point:
        value = fixed_point(lambda y, b: 0.5 * torch.tanh(y) + b, torch.zeros(4, 300), b, tol=1e-5).value
    else:
        value = argmin(lambda y, b: (y.cosh() - b * y).sum(-1), torch.zeros(4, 300), b, solver=LBFGS(), tol=1e-5).value
    (gradient,) = torch.autograd.grad(value.sum(), b)
    expected = 1 / (1 - 0.5 / value.cosh() ** 2) if entry_point is fixed_point else 1 / value.cosh()
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_preserved(dtype):
    assert fixed_point(lambda y: 0.5 * y + 1, torch.zeros(2, 1, dtype=dtype)).value.dtype == dtype

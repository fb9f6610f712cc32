"""Samples do not mix, and each says how it ended."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from setgrad.errors import ConvergenceError, OptionError, ShapeError
from setgrad.implicit import (
    CG,
    GMRES,
    LBFGS,
    AdaptivePicard,
    Anderson,
    Bisection,
    Broyden,
    Direct,
    GradientDescent,
    Neumann,
    Newton,
    NormalCG,
    OneStepAdjoint,
    Picard,
    Status,
    argmin,
    fixed_point,
    quadratic,
    root,
)
from tests.implicit.problems import CASES
from tests.implicit.solvers import BACKWARD, FORWARD


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_a_sample_ends_the_same_alone_and_in_any_batch(case, solver):
    batch = case.start.shape[:-1]
    own = [a.dim() > 0 and a.shape[: len(batch)] == batch and a.dim() > len(batch) for a in case.args]
    together = case.solve(*case.args, solver=solver, on_failure="mask", tol=1e-10)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in batch)).reshape(-1, len(batch)).tolist():
        at = tuple(slice(i, i + 1) for i in place)
        args = [a[at] if mine else a for a, mine in zip(case.args, own, strict=True)]
        alone = case.entry_point(
            case.fn, case.start[at], *args, solver=solver, tol=1e-10, max_steps=400, on_failure="mask"
        )
        # The last bits of a product depend on the shape of the batch; steps and status must not.
        torch.testing.assert_close(alone.value, together.value[at], rtol=1e-12, atol=1e-13)
        assert alone.status.item() == together.status[at].item()
        assert abs(alone.steps.item() - together.steps[at].item()) <= 1


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf, 1e200], ids=str)
@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), GMRES(), NormalCG()], ids=str)
def test_a_bad_sample_leaves_the_others_as_they_were(spoil, solver, adjoint):
    def fn(y, weight, bias):
        return torch.tanh((weight @ y[..., None])[..., 0]) + bias

    weight = (0.2 * draw(3, 4, 4)).requires_grad_()
    bias = draw(3, 4, seed=1)
    start = torch.zeros(3, 4, dtype=torch.float64)

    def run(bias):
        bias = bias.clone().requires_grad_()
        found = fixed_point(fn, start, weight, bias, solver=solver, adjoint=adjoint, on_failure="mask")
        return found, torch.autograd.grad(found.value.nan_to_num(0.0, 0.0, 0.0)[[0, 2]].sum(), (weight, bias))

    clean, spoilt = bias, bias.clone()
    spoilt[1] = spoil
    (good, good_grads), (bad, bad_grads) = run(clean), run(spoilt)
    assert bool(bad.converged[[0, 2]].all())
    for a, b in ((good.value, bad.value), *zip(good_grads, bad_grads, strict=True)):
        assert torch.equal(a[[0, 2]], b[[0, 2]])
    if not bool(bad.converged[1]):
        assert all(bool((g[1] == 0).all()) for g in bad_grads)


def test_every_status_can_happen():
    start = torch.ones(2, 1, dtype=torch.float64)
    scale = torch.tensor([[3.0], [0.5]], dtype=torch.float64)
    grows = fixed_point(lambda y, a: a * y + 1, start, scale, on_failure="mask", max_steps=200)
    assert grows.status.tolist() == [Status.DIVERGED, Status.CONVERGED]
    slow = fixed_point(lambda y, a: 0.99 * y + a, start, scale, on_failure="mask", max_steps=3)
    assert slow.status.tolist() == [Status.MAX_STEPS] * 2
    assert slow.steps.tolist() == [3, 3]
    flat = root(lambda y, a: 0 * y + a, start, scale, on_failure="mask")
    assert flat.status.tolist() == [Status.SINGULAR] * 2
    unbounded = root(lambda y, a: y.log() + a, -start, scale, on_failure="mask")
    assert unbounded.status.tolist() == [Status.NONFINITE] * 2
    swings = fixed_point(lambda y, a: a - y, torch.zeros_like(start), scale, on_failure="mask", max_steps=500)
    assert swings.status.tolist() == [Status.STALLED] * 2
    bracket = root(lambda y, a: y + a, start, scale, solver=Bisection(0.0, 5.0), on_failure="mask")
    assert bracket.status.tolist() == [Status.SINGULAR] * 2


def test_a_slow_runaway_is_not_called_stalled():
    found = fixed_point(lambda y: 1.2 * y + 1, torch.zeros(1, dtype=torch.float64), on_failure="mask", max_steps=120)
    assert found.status.item() == Status.DIVERGED


@pytest.mark.parametrize("entry_point", [fixed_point, argmin])
def test_many_unknowns_in_float32_with_the_defaults(entry_point):
    b = torch.randn(4, 300, generator=torch.Generator().manual_seed(0), requires_grad=True)
    if entry_point is fixed_point:
        value = fixed_point(lambda y, b: 0.5 * torch.tanh(y) + b, torch.zeros(4, 300), b, tol=1e-5).value
    else:
        value = argmin(lambda y, b: (y.cosh() - b * y).sum(-1), torch.zeros(4, 300), b, solver=LBFGS(), tol=1e-5).value
    (gradient,) = torch.autograd.grad(value.sum(), b)
    slope = 1 / (1 - 0.5 / value.cosh() ** 2) if entry_point is fixed_point else 1 / value.cosh()
    torch.testing.assert_close(gradient, slope, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", [Newton(), Broyden()], ids=str)
def test_a_batch_of_large_dense_systems(solver):
    """Several threads factorise a batch of large matrices wrongly in some builds of torch."""
    n = 200
    matrix = torch.eye(n, dtype=torch.float64) * 3 + draw(8, n, n) / n**0.5
    b = draw(8, n, seed=1).requires_grad_()
    found = root(
        lambda y, b: (matrix @ y[..., None])[..., 0] - b, torch.zeros(8, n, dtype=torch.float64), b, solver=solver
    )
    (gradient,) = torch.autograd.grad(found.value.sum(), b)
    for number in range(8):
        inverse = torch.linalg.inv(matrix[number])
        torch.testing.assert_close(found.value[number], inverse @ b[number], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient[number], inverse.sum(0), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("adjoint", [CG(), GMRES(restart=3)], ids=str)
def test_an_exact_preconditioner_leaves_one_step(adjoint):
    scales = torch.logspace(0, 6, 20, dtype=torch.float64)
    b = torch.ones(1, 20, dtype=torch.float64, requires_grad=True)
    value = argmin(
        lambda y, b: (0.5 * scales * y**2 - b * y).sum(-1),
        torch.zeros(1, 20, dtype=torch.float64),
        b,
        adjoint=replace(adjoint, max_steps=1),
        precondition=lambda y, b: 1 / scales,
    ).value
    torch.testing.assert_close(torch.autograd.grad(value.sum(), b)[0], (1 / scales)[None])
    with pytest.raises(OptionError, match="NormalCG takes no preconditioner"):
        y0 = torch.zeros(1, 2)
        c = torch.ones(1, 2, requires_grad=True)
        found = root(lambda y, c: y - c, y0, c, adjoint=NormalCG(), precondition=lambda y, c: c)
        found.value.sum().backward()


def test_newton_halves_a_step_that_overshoots():
    # From 0 a full step lands at 39, where the exponential is 8e16.
    c = torch.tensor([[40.0], [1.0]], dtype=torch.float64, requires_grad=True)
    found = argmin(lambda y, c: (y.exp() - c * y).sum(-1), torch.zeros(2, 1, dtype=torch.float64), c, tol=1e-12)
    torch.testing.assert_close(found.value, c.log())
    torch.testing.assert_close(torch.autograd.grad(found.value.sum(), c)[0], 1 / c)
    assert found.steps.max() < 20


def test_the_best_iterate_is_returned():
    # Undamped, this map swings between values around 1/2; the residual is smallest at the start.
    found = fixed_point(lambda y: 1 - y, torch.tensor([0.4]), on_failure="mask", max_steps=200)
    assert found.value.tolist() == pytest.approx([0.4])
    assert found.residual.item() == pytest.approx(0.2, rel=1e-5)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_few_steps(solver, steps):
    case = CASES[0]
    found = case.solve(*case.args, solver=solver, max_steps=steps, on_failure="mask")
    assert found.steps.max() == steps
    assert found.status.tolist() == [Status.MAX_STEPS] * 3
    if steps == 0:
        assert torch.equal(found.value, case.start)
    else:
        assert found.residual.max() < (case.fn(case.start, *case.args) - case.start).norm(dim=-1).max()


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_starting_at_the_solution(case, solver):
    solved = case.entry_point(case.fn, case.truth(*case.args), *case.args, solver=solver, tol=1e-8)
    assert solved.steps.max() == 0
    torch.testing.assert_close(solved.value, case.truth(*case.args), rtol=1e-12, atol=1e-12)


def test_policies():
    start, rate = torch.ones(3, 1), torch.tensor([[0.5], [2.0], [0.1]])

    def solve(policy):
        return fixed_point(lambda y, a: a * y + 1, start, rate, on_failure=policy, max_steps=60)

    message = r"1 of 3 samples failed \(1 DIVERGED\); the worst is sample 1 .* Remedy: start nearer"
    with pytest.raises(ConvergenceError, match=message):
        solve("raise")
    with pytest.warns(RuntimeWarning, match=message):
        solve("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solve("mask")
    with pytest.raises(ConvergenceError, match="sample 1"):
        found.unwrap()
    with pytest.raises(OptionError, match="unknown on_failure 'ignore'; choose one of: raise, warn, mask"):
        solve("ignore")


def test_a_failing_adjoint_never_passes_silently():
    """At a double root the equation is solved well enough, and the Jacobian vanishes."""
    c = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)

    def solve(policy):
        start = torch.full((1, 1), 1e-9, dtype=torch.float64)
        return root(lambda y, c: (y - 1e-9) ** 2 + c, start, c, on_failure=policy).value

    with pytest.raises(ConvergenceError, match="the adjoint system of the backward pass: 1 of 1 samples failed"):
        torch.autograd.grad(solve("raise").sum(), c)
    value = solve("mask")
    assert torch.autograd.grad(value.sum(), c)[0].tolist() == [[0.0]]


@pytest.mark.parametrize("corner", [1e-6, 0.0])
def test_small_normal_equations_are_no_solved_system(corner):
    a = torch.tensor([[1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1.0, corner], dtype=torch.float64)
    start = torch.tensor([[1.0, 1 / corner if corner else 0.0]], dtype=torch.float64)
    target = a if corner else a * torch.tensor([1.0, 0.0])
    y = root(lambda y, a: scale * y - a, start, target, adjoint=NormalCG()).value
    with pytest.raises(ConvergenceError, match="the adjoint system of the backward pass: 1 of 1 samples failed"):
        torch.autograd.grad(y.sum(), a)


@pytest.mark.parametrize("line", [False, True], ids=["plain", "with a tangent"])
def test_a_failed_sample_does_not_spoil_what_is_shared(line):
    """It failed at a place where the function has no derivative, which 0 times is NaN."""
    w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    a = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def fn(y, a, w):
        return y - (w * y.sqrt() - a)

    tangent = (lambda y, a, w: lambda v: fn(v, a, w)) if line else None
    found = fixed_point(fn, start, a, w, solver=Newton(), on_failure="mask", linearisation=tangent)
    assert found.converged.tolist() == [True, False]
    to_a, to_w = torch.autograd.grad(found.value.sum(), (a, w))
    # y = (a / w)^2
    torch.testing.assert_close(to_a, torch.tensor([[0.5], [0.0]], dtype=torch.float64))
    torch.testing.assert_close(to_w, torch.tensor(-0.25, dtype=torch.float64))


def test_what_failed_samples_spoil_all_the_same_is_said():
    a = torch.tensor([[1.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def solve(a, w):
        return fixed_point(lambda y, a, w: w * a.sqrt() + 0.1 * y, torch.zeros_like(a), a, w, on_failure="mask").value

    (own,) = torch.autograd.grad(solve(a, w.detach()).sum(), a)
    torch.testing.assert_close(own, torch.tensor([[1 / 0.9], [0.0]], dtype=torch.float64))
    with pytest.raises(ConvergenceError, match=r"what they share with the others.*Leave out the samples"):
        torch.autograd.grad(solve(a, w).sum(), w)
    assert [g.abs().sum().item() for g in torch.autograd.grad(solve(a[1:], w).sum(), (a, w))] == [0.0, 0.0]


def test_half_precision_has_no_linear_systems():
    c = torch.ones(2, 1, dtype=torch.float16, requires_grad=True)
    y = fixed_point(lambda y, c: 0.5 * y + c, torch.zeros_like(c), c, tol=1e-2).value
    with pytest.raises(OptionError, match=r"cannot be solved in torch.float16: use float32"):
        torch.autograd.grad(y.sum(), c)
    eye = torch.eye(2, dtype=torch.bfloat16)
    with pytest.raises(OptionError, match=r"cannot be solved in torch.bfloat16: use float32"):
        quadratic(eye, eye[:1])


def test_the_adjoint_says_how_it_went():
    case = CASES[0]
    weight, bias = (a.clone().requires_grad_() for a in case.args)
    found = case.solve(weight, bias, adjoint=GMRES(tol=1e-9))
    assert found.adjoint is None
    found.value.sum().backward()
    assert found.adjoint.status.tolist() == [Status.CONVERGED] * 3
    assert found.adjoint.residual.max() < 1e-8


@pytest.mark.parametrize(("case", "adjoint"), [b for b in BACKWARD if b[0].name in ("network", "convex")], ids=str)
def test_masked_unknowns_stay_and_change_nothing(case, adjoint):
    bias = case.args[-1].clone().requires_grad_()
    mask = torch.zeros(*case.start.shape[:-1], case.start.shape[-1], dtype=torch.bool)
    mask[..., :2] = True
    start = case.start + 0.3

    def solve(fill):
        begin, args = torch.where(mask, start, fill), (*case.args[:-1], bias)
        return case.entry_point(case.fn, begin, *args, mask=mask, adjoint=adjoint, solver=Newton(), tol=1e-12).value

    found = solve(0.25)
    assert bool((found[~mask] == 0.25).all())
    grads = torch.autograd.grad(found[mask].sum(), bias)[0]
    if case.name == "network":
        assert bool((grads[~mask] == 0).all())
    small = torch.autograd.functional.jacobian(lambda b: _solve_small(case, b, start), bias.detach())
    torch.testing.assert_close(small.sum(tuple(range(small.dim() - bias.dim()))), grads, rtol=1e-8, atol=1e-9)


def _solve_small(case, bias, start):
    """The first two unknowns alone, the others held at 1/4."""

    def full(y):
        return torch.cat([y, torch.full_like(y, 0.25)[..., : start.shape[-1] - 2]], -1)

    if case.entry_point is fixed_point:
        small = fixed_point(
            lambda y, *a: case.fn(full(y), *a)[..., :2], start[..., :2], *case.args[:-1], bias, tol=1e-12
        )
    else:
        small = argmin(lambda y, *a: case.fn(full(y), *a), start[..., :2], *case.args[:-1], bias, tol=1e-12)
    return small.value


def test_modules_are_functions_of_their_parameters(seeded):
    with seeded(0):
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
        module[0].weight.data.mul_(0.4)
    start = torch.zeros(2, 3, dtype=torch.float64)
    value = fixed_point(module, start, tol=1e-12).value
    found = torch.autograd.grad(value.square().sum(), list(module.parameters()))
    y = start
    for _ in range(100):
        y = module(y)
    for a, b in zip(found, torch.autograd.grad(y.square().sum(), list(module.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_what_cannot_be_right_is_refused():
    weight = torch.tensor([0.5], requires_grad=True)
    with pytest.raises(OptionError, match="captures a tensor that requires a gradient"):
        fixed_point(lambda y: weight * y, torch.ones(1))
    with pytest.raises(ShapeError, match=r"the shape of y, \(2, 3\), but returned \(2,\)"):
        fixed_point(lambda y: y.sum(-1), torch.ones(2, 3))
    for entry_point in (fixed_point, root):
        with pytest.raises(ShapeError, match=r"one tensor of the shape of y.*but returned tuple"):
            entry_point(lambda y: (y, y), torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"the mask must be bool.*not torch\.float32"):
        fixed_point(lambda y: 0.5 * y, torch.ones(2), mask=torch.ones(2))
    with pytest.raises(ShapeError, match="unknowns on the last axis"):
        fixed_point(lambda y: y, torch.tensor(1.0))
    with pytest.raises(OptionError, match="argument 0 is float, not a tensor"):
        fixed_point(lambda y, a: a * y, torch.ones(1), 0.5)
    for options, message in (
        ({"tol": 0.0}, "tol must be above 0"),
        ({"max_steps": -1}, "max_steps must be at least 0"),
        ({"check_every": 0}, "check_every must be at least 1"),
    ):
        with pytest.raises(OptionError, match=message):
            fixed_point(lambda y: 0.5 * y, torch.ones(1), **options)
    for make in (
        lambda: Picard(damping=0.0),
        lambda: Anderson(window=0),
        lambda: GradientDescent(0.0),
        lambda: LBFGS(0),
        lambda: GMRES(restart=0),
    ):
        with pytest.raises(OptionError):
            make()


@pytest.mark.parametrize("check_every", [1, 3, 50])
def test_looking_less_often_changes_nothing(check_every):
    case = CASES[0]
    found = case.solve(*case.args, check_every=check_every)
    often = case.solve(*case.args)
    assert torch.equal(found.value, often.value) and torch.equal(found.steps, often.steps)


def test_types_are_kept():
    for dtype in (torch.float32, torch.float64):
        found = fixed_point(lambda y: 0.5 * y + 1, torch.zeros(2, 1, dtype=dtype))
        assert found.value.dtype == dtype


def test_anderson_leaves_a_place_where_the_map_jumps() -> None:
    """A constant map that changes a little on the way: two changes of the residual cancel without any move."""

    def fn(y):
        return torch.where(y[..., :1] < 0.9, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.01])).to(y)

    found = fixed_point(fn, torch.zeros(1, 2, dtype=torch.float64), solver=Anderson(damping=0.5), tol=1e-9)
    torch.testing.assert_close(found.value, torch.tensor([[1.0, 1.01]], dtype=torch.float64), rtol=0, atol=1e-8)
    assert int(found.steps) < 40


@pytest.mark.parametrize("adjoint", [OneStepAdjoint(), Neumann(5)], ids=repr)
def test_a_series_is_refused_where_there_is_no_map(adjoint) -> None:
    start = torch.zeros(1, 2)
    for entry_point in (root, argmin):
        with pytest.raises(OptionError, match="approximation for fixed points"):
            entry_point(lambda y: y, start, adjoint=adjoint)


def test_running_away_is_no_success() -> None:
    """The residual of y -> y + 1 is always 1: small beside a large y, and yet no solution."""
    found = fixed_point(
        lambda y: y + 1.0, torch.zeros(1, 1), tol=0.01, max_steps=2000, on_failure="mask", check_every=100
    )
    assert not found.converged.any()
    slope = argmin(lambda y: y.sum(-1), torch.zeros(1, 2), solver=LBFGS(), max_steps=200, on_failure="mask")
    assert not slope.converged.any()


@pytest.mark.parametrize("given", [None, torch.tensor([[True] * 4] * 4 + [[True, True, False, True]] * 4)], ids=str)
@pytest.mark.parametrize("solver", [Picard(), AdaptivePicard(), Anderson(), Newton(), Broyden()], ids=str)
def test_samples_that_are_done_are_left_out(solver, given):
    # The weaker the coupling, the sooner the plain iteration is done.
    weight = (
        draw(8, 4, 4) * torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 40.0], dtype=torch.float64)[:, None, None]
    )
    bias, seen = draw(8, 4, seed=1), []

    def fn(y, weight, bias):
        seen.append(len(y))
        return torch.tanh((weight @ y[..., None])[..., 0]) + bias

    def run(part):
        seen.clear()
        args = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        found = fixed_point(
            fn,
            torch.zeros_like(bias),
            *args,
            solver=solver,
            on_failure="mask",
            mask=given,
            restrict=restrict,
            max_steps=50,
        )
        asked = sum(seen)
        return found, asked, torch.autograd.grad(found.value[:7].sum(), args)

    whole, all_asked, slopes = run(None)
    parted, asked, its_slopes = run(lambda rows, weight, bias: lambda y: fn(y, weight[rows], bias[rows]))
    refused = run(lambda rows, weight, bias: None)
    assert bool(whole.converged[:7].all())
    for found in (parted, refused[0]):
        assert torch.equal(found.status, whole.status) and torch.equal(found.steps, whole.steps)
        torch.testing.assert_close(found.value, whole.value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.residual, whole.residual, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(its_slopes, slopes, rtol=1e-10, atol=1e-12)
    if isinstance(solver, Picard | AdaptivePicard | Anderson):
        assert asked < all_asked

"""Quadratic programs against other solvers, closed forms and finite differences."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from setgrad.errors import ConvergenceError, DataError, MissingDependencyError, ShapeError
from setgrad.implicit import Status, _quadratic, project_budget, quadratic, sparsemax
from setgrad.implicit._qp_backends import Backend, moreau_backend, qpsolvers_backend
from tests.implicit.helpers import FORWARD_MODE

Seeded = Callable[..., AbstractContextManager[None]]

SKIP_REASON = "needs a QP solver: pip install 'setgrad[qp]'"

# The package that each backend needs, and the backend.
BACKENDS: dict[str, tuple[str, Backend]] = {
    "active_set": ("moreau", moreau_backend("active_set")),
    "ipm": ("moreau", moreau_backend("ipm")),
    "piqp": ("piqp", qpsolvers_backend("piqp")),
    "proxqp": ("proxsuite", qpsolvers_backend("proxqp")),
    "clarabel": ("clarabel", qpsolvers_backend("clarabel")),
}


@pytest.fixture
def solver() -> None:
    """Skip a test if no QP solver is installed."""
    if importlib.util.find_spec("moreau") is None:
        pytest.importorskip("qpsolvers", reason=SKIP_REASON)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each backend alone."""
    name: str = request.param
    package, backend = BACKENDS[name]
    pytest.importorskip(package, reason=SKIP_REASON)
    if package != "moreau":
        pytest.importorskip("qpsolvers", reason=SKIP_REASON)
    monkeypatch.setattr(_quadratic, "available_backends", lambda: [backend])
    return name


def _random(*batch: int, n: int = 4, m: int = 5, p: int = 1, seed: int = 0) -> list[Tensor]:
    """Return feasible, strictly convex programs: Q, q, G, h, A, b."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)

    half, inside, G, A = draw(n, n), draw(n), draw(m, n), draw(p, n)
    slack = torch.rand(*batch, m, dtype=torch.float64, generator=generator) / 2
    Q = half @ half.mT / n + 0.1 * torch.eye(n, dtype=torch.float64)
    return [Q, 2 * draw(n), G, (G @ inside[..., None])[..., 0] + slack, A, (A @ inside[..., None])[..., 0]]


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _gap(y: Tensor, program: list[Tensor]) -> float:
    """Return the violation of the optimality conditions, with multipliers from least squares."""
    Q, q, G, h, A, b = program
    worst = 0.0
    for i in range(len(y)):
        slack = h[i] - G[i] @ y[i]
        assert float(slack.min()) > -1e-11
        worst = max(worst, float((A[i] @ y[i] - b[i]).abs().max()))
        rows = torch.cat([A[i], G[i][slack < 1e-9]])
        gradient = Q[i] @ y[i] + q[i]
        multipliers = torch.linalg.lstsq(rows.mT, -gradient[:, None]).solution
        worst = max(worst, float((rows.mT @ multipliers + gradient[:, None]).abs().max()))
        worst = max(worst, -float(multipliers[A.shape[-2] :].min()) if len(rows) > A.shape[-2] else 0.0)
    return worst


def test_every_backend_gives_the_minimum(backend: str) -> None:
    program = _random(12, n=6, m=9, p=2)
    solution = quadratic(*program)
    assert bool(solution.converged.all())
    assert _gap(solution.value, program) < 1e-10


@FORWARD_MODE
def test_derivatives_with_respect_to_all_inputs_are_right(solver: None, seeded: Seeded) -> None:
    program = [t.requires_grad_() for t in _random(3)]
    assert bool((quadratic(*program).residual < 1e-12).all())
    with seeded(0):
        assert gradcheck(lambda *a: quadratic(*a).value, program, check_forward_ad=True)
        assert gradgradcheck(lambda *a: quadratic(*a).value, program)


def test_gradients_match_finite_differences_of_every_backend(backend: str) -> None:
    program = _random(2, n=5, m=7, p=1, seed=3)
    weights = torch.linspace(-1, 1, 5, dtype=torch.float64)
    h = program[3].requires_grad_()
    (grad,) = torch.autograd.grad((quadratic(*program).value * weights).sum(), h)
    step, differences = 1e-5, torch.zeros_like(h)
    with torch.no_grad():
        for i in range(h.shape[-1]):
            moved = [h.detach().clone(), h.detach().clone()]
            moved[0][:, i] += step
            moved[1][:, i] -= step
            shifted = ([*program[:3], other, *program[4:]] for other in moved)
            up, down = (quadratic(*tensors).value @ weights for tensors in shifted)
            differences[:, i] = (up - down) / (2 * step)
    torch.testing.assert_close(grad, differences, rtol=0, atol=1e-8)


def test_projections_are_quadratic_programs(solver: None) -> None:
    x = 2 * torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    weights = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    simplex = quadratic(
        _eye(7), -x, -_eye(7), torch.zeros(7).double(), torch.ones(1, 7).double(), torch.ones(1).double()
    )
    G, h = torch.cat([-_eye(7), _eye(7)]), torch.cat([torch.zeros(7), torch.ones(7)]).double()
    budget = quadratic(_eye(7), -x, G, h, torch.ones(1, 7).double(), torch.full((1,), 2.5).double())
    for ours, expected in ((simplex.value, sparsemax(x)), (budget.value, project_budget(x, 2.5))):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad((z * weights).sum(), x)[0] for z in (ours, expected)]
        torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


def test_linear_programs_can_be_solved(solver: None) -> None:
    h = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    G = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    y = quadratic(torch.zeros(2, 2).double(), torch.tensor([-1.0, -2.0]).double(), G, h).value
    torch.testing.assert_close(y, torch.tensor([1.0, 3.0]).double(), rtol=0, atol=1e-12)
    jacobian = torch.stack([torch.autograd.grad(y[i], h, retain_graph=True)[0] for i in range(2)])
    torch.testing.assert_close(jacobian, torch.tensor([[0.0, -1.0, 1.0], [0.0, 1.0, 0.0]]).double())


def test_a_sample_is_the_same_alone_and_in_any_batch(solver: None) -> None:
    program = [t.requires_grad_() for t in _random(5)]
    together = quadratic(*program).value
    grads = torch.autograd.grad(together.pow(2).sum(), program)
    for i in range(5):
        alone = [t.detach()[i].requires_grad_() for t in program]
        value = quadratic(*alone).value
        assert torch.equal(value, together[i])
        for grad, reference in zip(torch.autograd.grad(value.pow(2).sum(), alone), grads, strict=True):
            # The last bits of the products depend on the shape of the batch.
            torch.testing.assert_close(grad, reference[i], rtol=1e-14, atol=1e-14)


def _infeasible(program: list[Tensor]) -> None:
    program[2][1, 0], program[3][1, 0] = -program[2][1, 1], -program[3][1, 1] - 1


def _unbounded(program: list[Tensor]) -> None:
    program[0][1], program[2][1], program[3][1] = 0.0, 0.0, 1.0


def _not_finite(program: list[Tensor]) -> None:
    program[0][1, 0, 0] = torch.nan


@pytest.mark.parametrize(
    ("break_program", "status"),
    [(_infeasible, Status.INFEASIBLE), (_unbounded, Status.UNBOUNDED), (_not_finite, Status.NONFINITE)],
)
def test_a_failed_sample_does_not_change_the_others(
    break_program: Callable[[list[Tensor]], None], status: Status, solver: None
) -> None:
    healthy, broken = _random(3), _random(3)
    break_program(broken)
    results = []
    for program in (healthy, broken):
        leaves = [t.requires_grad_() for t in program]
        solution = quadratic(*leaves, on_failure="mask")
        results.append((solution, torch.autograd.grad(solution.value.pow(2).sum() + solution.value.sum(), leaves)))
    (good, grads), (bad, bad_grads) = results
    assert bad.status.tolist() == [Status.CONVERGED, status, Status.CONVERGED]
    assert torch.equal(good.value[[0, 2]], bad.value[[0, 2]])
    assert bad.value[1].tolist() == [0.0] * 4
    for grad, other in zip(grads, bad_grads, strict=True):
        assert torch.equal(grad[[0, 2]], other[[0, 2]])
        assert bool((other[1] == 0).all())


def test_failures_raise_warn_or_are_masked(solver: None) -> None:
    program = _random(3)
    _infeasible(program)
    with pytest.raises(ConvergenceError, match=r"1 of 3 samples failed \(1 INFEASIBLE\).*relax"):
        quadratic(*program)
    with pytest.warns(RuntimeWarning, match="1 INFEASIBLE"):
        quadratic(*program, on_failure="warn")
    with pytest.raises(ConvergenceError, match="INFEASIBLE"):
        quadratic(*program, on_failure="mask").unwrap()


def test_shared_inputs_get_the_sum_of_the_gradients(solver: None) -> None:
    """All inputs but q are shared by the samples."""
    shared = [t.requires_grad_() for t in _random()]
    q = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).requires_grad_()
    arguments = [shared[0], q, *shared[2:]]
    solution = quadratic(*arguments)
    assert solution.value.shape == (2, 3, 4) and solution.status.shape == (2, 3)
    grads = torch.autograd.grad(solution.value.pow(3).sum(), arguments)
    full = [t.detach().expand(2, 3, *t.shape).clone().requires_grad_() for t in shared]
    full[1] = q.detach().clone().requires_grad_()
    each = torch.autograd.grad(quadratic(*full).value.pow(3).sum(), full)
    for place, (grad, reference) in enumerate(zip(grads, each, strict=True)):
        total = reference if place == 1 else reference.sum((0, 1))
        torch.testing.assert_close(grad, total, rtol=0, atol=1e-12)


def test_weakly_active_constraints_count_as_inactive(backend: str) -> None:
    """The minimum without constraints lies on the constraint, so its derivative is that of the free minimum."""
    q = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    G, h = torch.tensor([[1.0, 1.0], [1.0, 0.0]]).double(), torch.tensor([2.0, 9.0]).double()
    y = quadratic(_eye(2), q, G, h).value
    torch.testing.assert_close(y, torch.ones(2).double(), rtol=0, atol=1e-12)
    assert torch.autograd.grad(y[0], q)[0].tolist() == [-1.0, 0.0]


def test_dependent_constraints_are_handled(backend: str) -> None:
    """The same inequality three times, once scaled, and the same equality twice."""
    q = torch.tensor([-3.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    G = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]]).double()
    A = torch.tensor([[0, 1.0, 1.0], [0, 1.0, 1.0]]).double()
    y = quadratic(_eye(3), q, G, torch.tensor([1.0, 1.0, 2.0]).double(), A, torch.ones(2).double()).value
    torch.testing.assert_close(y, torch.tensor([1.0, 1.0, 0.0]).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(y[1], q)[0], torch.tensor([0.0, -0.5, 0.5]).double())


def test_more_active_constraints_than_unknowns_are_handled(backend: str) -> None:
    """Nine half-planes meet in one corner."""
    angles = torch.linspace(0.0, 1.5, 9, dtype=torch.float64)
    G = torch.stack([angles.cos(), angles.sin()], -1)
    y = quadratic(_eye(2), torch.tensor([-3.0, -3.5]).double(), G, torch.zeros(9).double()).value
    torch.testing.assert_close(y, torch.zeros(2).double(), rtol=0, atol=1e-12)


def test_a_program_with_several_minima_is_singular(solver: None) -> None:
    Q = torch.diag(torch.tensor([1.0, 0.0])).double()
    G, h = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double(), torch.ones(2).double()
    solution = quadratic(Q, torch.tensor([-1.0, 0.0]).double(), G, h, on_failure="mask")
    assert int(solution.status) == Status.SINGULAR
    assert float(solution.value[0]) == pytest.approx(1.0, abs=1e-6)


def test_an_infinite_bound_is_no_constraint(solver: None) -> None:
    program = _random(4)
    G, h = program[2], program[3]
    wide = torch.cat([G, torch.ones(4, 1, 4).double()], -2)
    ends = torch.cat([h, torch.full((4, 1), torch.inf).double()], -1).requires_grad_()
    value = quadratic(program[0], program[1], wide, ends, *program[4:]).value
    torch.testing.assert_close(value, quadratic(*program).value, rtol=0, atol=1e-13)
    assert bool(torch.autograd.grad(value.sum(), ends)[0].isfinite().all())


def test_scaling_the_program_does_not_change_the_minimum(solver: None) -> None:
    Q, q, G, h, A, b = _random(8, n=6, m=12, p=2)
    units = 10 ** torch.linspace(-6, 6, 12, dtype=torch.float64)
    value = quadratic(1e5 * Q, 1e5 * q, units[:, None] * G, units * h, 1e-4 * A, 1e-4 * b).value
    torch.testing.assert_close(value, quadratic(Q, q, G, h, A, b).value, rtol=0, atol=1e-11)


def test_without_inequalities_no_solver_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    Q, q, G, h, A, b = _random(3, p=2)
    y = quadratic(Q, q, A=A, b=b).value
    torch.testing.assert_close((A @ y[..., None])[..., 0], b, rtol=0, atol=1e-12)
    torch.testing.assert_close(quadratic(Q, q).value, -torch.linalg.solve(Q, q), rtol=0, atol=1e-12)
    with pytest.raises(MissingDependencyError, match=r"pip install \"setgrad\[qp\]\""):
        quadratic(Q, q, G, h)


def test_failures_without_inequalities_have_the_right_status() -> None:
    Q = torch.diag(torch.tensor([1.0, 0.0])).double().expand(4, 2, 2)
    q = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]).double()
    A = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]] * 2 + [[[0.0, 1.0], [0.0, 1.0]]] * 2).double()
    b = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 2.0], [1.0, 1.0]]).double()
    solution = quadratic(Q, q, A=A, b=b, on_failure="mask")
    expected = [Status.SINGULAR, Status.UNBOUNDED, Status.INFEASIBLE, Status.CONVERGED]
    assert solution.status.tolist() == expected
    assert solution.value[3].tolist() == [-1.0, 1.0]


def test_only_the_symmetric_part_counts(solver: None) -> None:
    program = _random(2)
    twisted = torch.triu(program[0], 1)
    twisted = program[0] + twisted - twisted.mT
    torch.testing.assert_close(quadratic(twisted, *program[1:]).value, quadratic(*program).value, rtol=0, atol=1e-13)


def test_single_precision_is_preserved(solver: None) -> None:
    program = _random(6)
    single = quadratic(*(t.float() for t in program))
    assert single.value.dtype == torch.float32 and bool(single.converged.all())
    torch.testing.assert_close(single.value.double(), quadratic(*program).value, rtol=0, atol=1e-4)


def test_transforms_of_torch_func_are_right(solver: None) -> None:
    program = _random(3)
    value = quadratic(*program).value
    assert torch.equal(torch.func.vmap(lambda *a: quadratic(*a).value)(*program), value)
    first = [t[0] for t in program]

    def loss(q: Tensor) -> Tensor:
        return quadratic(first[0], q, *first[2:]).value.pow(3).sum()

    expected = torch.autograd.functional.hessian(loss, first[1])
    torch.testing.assert_close(torch.func.hessian(loss)(first[1]), expected, rtol=0, atol=1e-11)


def test_an_empty_batch_is_solved() -> None:
    solution = quadratic(*(t[:0] for t in _random(2)[:2]))
    assert solution.value.shape == (0, 4) and solution.status.shape == (0,)


def test_wrong_inputs_raise() -> None:
    Q, q, G, _, A, b = _random(2)
    with pytest.raises(DataError, match=r"Q of sample 1 .* not positive semidefinite"):
        quadratic(torch.stack([Q[0], -Q[1]]), q)
    with pytest.raises(ShapeError, match="come together"):
        quadratic(Q, q, G)
    with pytest.raises(ShapeError, match=r"\(\.\.\., n, n\)"):
        quadratic(Q[..., :3], q)
    with pytest.raises(ShapeError, match="A and b must be"):
        quadratic(Q, q, A=A[..., :3], b=b)
    with pytest.raises(ShapeError, match="one real dtype"):
        quadratic(Q, q.float())
    with pytest.raises(ShapeError, match="do not fit together"):
        quadratic(Q, q[[0, 0, 0]])

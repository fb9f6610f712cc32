"""Factors made once give every derivative, and are right where torch's own for a batch are not."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from setgrad.implicit import _factors
from setgrad.implicit._factors import factorise, solve_by, solve_marked

Seeded = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _systems(count: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(count, n, n, generator=generator, dtype=torch.float64) + n**0.5 * torch.eye(n).double()
    return matrix, torch.randn(count, n, generator=generator, dtype=torch.float64)


def test_large_systems_of_a_batch_are_right_with_several_threads(threads: None) -> None:
    matrix, right = _systems(6, 200)
    for x in (solve_marked(matrix, right)[0], solve_by(factorise(matrix)[0], matrix, right)):
        torch.testing.assert_close((matrix @ x[..., None])[..., 0], right)


def test_one_by_one_marks_singular_samples(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, right = _systems(3, 4)
    matrix[1, 0] = matrix[1, 1]
    together = solve_marked(matrix, right)
    monkeypatch.setattr(_factors, "_SAFE", 1)
    alone = solve_marked(matrix, right)
    assert alone[1].tolist() == together[1].tolist() == [False, True, False]
    torch.testing.assert_close(alone[0], together[0])


def test_constant_factors_have_all_derivatives(seeded: Seeded) -> None:
    matrix, right = (t.requires_grad_() for t in _systems(4, 3))

    def solve(matrix: Tensor, right: Tensor) -> Tensor:
        return solve_by(factorise(matrix.detach())[0], matrix, right)

    with seeded(0):
        assert torch.autograd.gradcheck(solve, (matrix, right))
        assert torch.autograd.gradgradcheck(solve, (matrix, right))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_derivatives_and_samples_of_transforms() -> None:
    matrix, right = _systems(4, 3)
    factors = factorise(matrix)[0]
    moves = _systems(8, 3)[0][4:], _systems(8, 3)[1][4:]

    def ours(matrix: Tensor, right: Tensor) -> Tensor:
        return solve_by(factors, matrix, right)

    for one, other in ((ours, torch.linalg.solve), (_pulled(ours), _pulled(torch.linalg.solve))):
        torch.testing.assert_close(
            torch.func.jvp(one, (matrix, right), moves), torch.func.jvp(other, (matrix, right), moves)
        )
    rows = torch.func.vmap(torch.func.jacrev(ours, argnums=1), (None, 0))(matrix, torch.stack([right, 2 * right]))
    torch.testing.assert_close(rows[0], rows[1])


def _pulled(solve: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of a nonlinear loss, to be differentiated forwards."""
    return torch.func.grad(lambda matrix, right: solve(matrix, right).pow(3).sum())

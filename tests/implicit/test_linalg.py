"""Least squares and linear systems of a batch, against NumPy and torch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import Tensor

from setgrad.implicit import _linalg
from setgrad.implicit._linalg import least_squares, lu_factor, solve_checked, solve_with_factors
from tests.implicit.helpers import FORWARD_MODE, draw

Seeded = Callable[..., AbstractContextManager[None]]


@pytest.mark.parametrize(("rows", "columns"), [(6, 3), (4, 4), (1, 1), (21, 20)])
def test_least_squares_agrees_with_numpy(rows: int, columns: int) -> None:
    matrix, right = draw(2, 3, rows, columns, seed=0), draw(2, 3, rows, seed=1)
    weights = least_squares(matrix, right, rtol=1e-14)
    for index in np.ndindex(2, 3):
        expected = np.linalg.lstsq(matrix[index].numpy(), right[index].numpy(), rcond=None)[0]
        np.testing.assert_allclose(weights[index].numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [3, 6])
def test_dependent_columns_get_weight_zero_and_the_fit_is_the_best(rows: int) -> None:
    first = draw(rows, 2, seed=2)
    zero = torch.zeros(rows, 1, dtype=torch.float64)
    matrix = torch.cat([zero, first, 2 * first[:, :1] - first[:, 1:], zero, draw(rows, 1, seed=3)], 1)
    right = draw(rows, seed=4)
    weights = least_squares(matrix[None], right[None], rtol=1e-12)[0]
    assert weights[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    best, _, rank, _ = np.linalg.lstsq(matrix.numpy(), right.numpy(), rcond=1e-10)
    assert rank == 3
    np.testing.assert_allclose((matrix @ weights).numpy(), matrix.numpy() @ best, rtol=1e-9, atol=1e-9)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _systems(*batch: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(*batch, n, n, generator=generator, dtype=torch.float64) + n**0.5 * torch.eye(n).double()
    return matrix, torch.randn(*batch, n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("batch", [(6,), (2, 3)])
def test_large_systems_of_a_batch_are_right_with_several_threads(batch: tuple[int, ...], two_threads: None) -> None:
    matrix, right = _systems(*batch, n=200)
    for x in (solve_checked(matrix, right)[0], solve_with_factors(lu_factor(matrix)[0], matrix, right)):
        torch.testing.assert_close((matrix @ x[..., None])[..., 0], right)


def test_factorising_one_by_one_marks_the_same_singular_samples(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, right = _systems(3, n=4)
    matrix[1, 0] = matrix[1, 1]
    together = solve_checked(matrix, right)
    monkeypatch.setattr(_linalg, "_SAFE_SIZE", 1)
    one_by_one = solve_checked(matrix, right)
    assert one_by_one[1].tolist() == together[1].tolist() == [False, True, False]
    torch.testing.assert_close(one_by_one[0], together[0])


def test_constant_factors_give_first_and_second_derivatives(seeded: Seeded) -> None:
    matrix, right = (t.requires_grad_() for t in _systems(4, n=3))

    def solve(matrix: Tensor, right: Tensor) -> Tensor:
        return solve_with_factors(lu_factor(matrix.detach())[0], matrix, right)

    with seeded(0):
        assert torch.autograd.gradcheck(solve, (matrix, right))
        assert torch.autograd.gradgradcheck(solve, (matrix, right))


@FORWARD_MODE
def test_constant_factors_work_in_forward_mode_and_under_vmap() -> None:
    matrix, right = _systems(4, n=3)
    factors = lu_factor(matrix)[0]
    tangents = tuple(t[4:] for t in _systems(8, n=3))

    def ours(matrix: Tensor, right: Tensor) -> Tensor:
        return solve_with_factors(factors, matrix, right)

    for result, expected in ((ours, torch.linalg.solve), (_gradient(ours), _gradient(torch.linalg.solve))):
        torch.testing.assert_close(
            torch.func.jvp(result, (matrix, right), tangents), torch.func.jvp(expected, (matrix, right), tangents)
        )
    rows = torch.func.vmap(torch.func.jacrev(ours, argnums=1), (None, 0))(matrix, torch.stack([right, 2 * right]))
    torch.testing.assert_close(rows[0], rows[1])


def _gradient(solve: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the gradient of a nonlinear loss of the solution."""
    return torch.func.grad(lambda matrix, right: solve(matrix, right).pow(3).sum())

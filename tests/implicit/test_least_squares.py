"""Least squares against NumPy; dependent columns get no weight and spoil nothing."""

import numpy as np
import pytest
import torch

from setgrad.implicit._least_squares import least_squares


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("rows", "width"), [(6, 3), (4, 4), (1, 1), (21, 20)])
def test_weights_are_numpys(rows: int, width: int) -> None:
    matrix, right = draw(2, 3, rows, width, seed=0), draw(2, 3, rows, seed=1)
    found = least_squares(matrix, right, least=1e-14)
    for place in np.ndindex(2, 3):
        expected = np.linalg.lstsq(matrix[place].numpy(), right[place].numpy(), rcond=None)[0]
        np.testing.assert_allclose(found[place].numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [3, 6])
def test_dependent_columns_get_no_weight_and_the_fit_is_the_best(rows: int) -> None:
    first = draw(rows, 2, seed=2)
    zero = torch.zeros(rows, 1, dtype=torch.float64)
    matrix = torch.cat([zero, first, 2 * first[:, :1] - first[:, 1:], zero, draw(rows, 1, seed=3)], 1)
    right = draw(rows, seed=4)
    weights = least_squares(matrix[None], right[None], least=1e-12)[0]
    assert weights[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    _, _, rank, _ = np.linalg.lstsq(matrix.numpy(), right.numpy(), rcond=1e-10)
    best = np.linalg.lstsq(matrix.numpy(), right.numpy(), rcond=1e-10)[0]
    assert rank == 3
    np.testing.assert_allclose((matrix @ weights).numpy(), matrix.numpy() @ best, rtol=1e-9, atol=1e-9)

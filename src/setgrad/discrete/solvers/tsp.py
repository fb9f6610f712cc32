"""Shortest round trips."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._held_karp import shortest_tours
from setgrad.discrete.solvers._shapes import bounded, check_square
from setgrad.discrete.solvers._tour_search import good_tours
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class TSP(CombinatorialSolver):
    """The round trip through all n cities with the least cost; theta and z are n x n, n >= 3.

    z is the symmetric adjacency matrix of the trip: a leg between i and j puts a one at (i, j) and at (j, i). So
    <theta, z> runs over both halves, a leg costs theta[i, j] + theta[j, i] (twice the distance where theta is
    symmetric), and any sign is allowed. The diagonal of theta must be finite and counts for nothing. The sense is "min"
    by default.

    Up to `exact_up_to` cities the answer is the best there is. Above, it is the best of several local optima: tours
    from nearest neighbours, improved until no 2-opt and no Or-opt move helps. It is an allowed point with the status
    SOLVED, but nothing proves it best.

    Args:
        exact_up_to: The most cities to solve exactly; time and memory double with each, 16 is the most.
        starts: How many cities the heuristic starts from.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> TSP()(torch.cdist(x, x))
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.],
                [1., 1., 0., 0.],
                [1., 1., 0., 0.]])
    """

    exact_up_to: int = 12
    starts: int = 8
    sense: str = field(default="min", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.exact_up_to <= 16:
            raise OptionError(f"exact_up_to must be 0 to 16, got {self.exact_up_to}: the table has 2^n rows")
        if self.starts < 1:
            raise OptionError(f"starts must be 1 or more, got {self.starts}")

    @property
    def dims(self) -> int:
        """Cities by cities."""
        return 2

    def check(self, theta: Tensor) -> None:
        """Refuse a matrix that is not square, and fewer than 3 cities."""
        super().check(theta)
        check_square(type(self).__name__, theta, least=3)

    def solve(self, theta: Tensor) -> Tensor:
        """Find the order of the cities, and write it as a matrix."""
        n = theta.shape[-1]
        theta = bounded(theta, 8 * n)
        cost = -(theta + theta.mT).reshape(-1, n, n)
        cost.diagonal(dim1=1, dim2=2).zero_()
        tour = shortest_tours(cost) if n <= self.exact_up_to else good_tours(cost, self.starts)
        z = torch.zeros_like(cost)
        z[torch.arange(len(z), device=z.device)[:, None], tour, tour.roll(-1, 1)] = 1
        return (z + z.mT).reshape(theta.shape)

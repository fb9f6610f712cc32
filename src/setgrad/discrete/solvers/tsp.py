"""The travelling salesman problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._held_karp import shortest_tours
from setgrad.discrete.solvers._limits import scale_for_sum
from setgrad.discrete.solvers._parameters import check_counts, check_square
from setgrad.discrete.solvers._tour_local_search import local_search_tours
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class TSP(CombinatorialSolver):
    """The round trip through all n cities with the lowest cost; theta and z are n x n, n >= 3.

    z is the symmetric adjacency matrix of the trip: a leg between i and j has a one at (i, j) and at (j, i). So
    <theta, z> includes both halves, a leg costs theta[i, j] + theta[j, i] (twice the distance for symmetric theta), and
    any sign is allowed. The diagonal of theta must be finite and is ignored. The sense is "min" by default.

    Up to `exact_up_to` cities the trip is optimal. Above, it is the best of several local optima: nearest-neighbour
    tours, improved until no 2-opt or Or-opt move helps. It is feasible and has the status SOLVED, but it may not be
    optimal.

    Args:
        exact_up_to: The maximum number of cities to solve exactly, up to 16; time and memory double with each.
        starts: The number of cities that the heuristic starts from.

    Raises:
        OptionError: If exact_up_to or starts is out of range.

    Examples:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> TSP()(torch.cdist(x, x))
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.],
                [1., 1., 0., 0.],
                [1., 1., 0., 0.]])
    """

    dims: ClassVar[int] = 2
    exact_up_to: int = 12
    starts: int = 8
    sense: str = field(default="min", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.exact_up_to <= 16:
            raise OptionError(f"exact_up_to must be 0 to 16, got {self.exact_up_to}: the table has 2^n rows")
        check_counts(1, starts=self.starts)

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if instances are not square, or have fewer than 3 cities."""
        super().check(theta)
        check_square(type(self).__name__, theta, minimum=3)

    def solve(self, theta: Tensor) -> Tensor:
        """Find the order of the cities, and return it as a matrix."""
        n = theta.shape[-1]
        theta = scale_for_sum(theta, 8 * n)
        cost = -(theta + theta.mT).reshape(-1, n, n)
        cost.diagonal(dim1=1, dim2=2).zero_()
        tour = shortest_tours(cost) if n <= self.exact_up_to else local_search_tours(cost, self.starts)
        z = torch.zeros_like(cost)
        z[torch.arange(len(z), device=z.device)[:, None], tour, tour.roll(-1, 1)] = 1
        return (z + z.mT).reshape(theta.shape)

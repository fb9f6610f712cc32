"""Linear assignment by SciPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._host import Array, HostPool, need, to_host


@final
@dataclass(frozen=True, eq=False)
class Assignment(CombinatorialSolver):
    """The best matching of rows to columns; theta and z are (*batch, rows, columns).

    Every row has one column of its own if there are no more rows than columns, else every column one row. SciPy solves
    the instances (`pip install "setgrad[solvers]"`); which of equal matchings it finds depends on the instance alone.

    Args:
        pool: Who solves the instances.

    Example:
        >>> Assignment()(torch.tensor([[3.0, 2.0, 0.0], [4.0, 1.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])
    """

    pool: HostPool = field(default_factory=HostPool)

    @property
    def dims(self) -> int:
        """Rows by columns."""
        return 2

    def solve(self, theta: Tensor) -> Tensor:
        """Solve on the host, and write ones where rows meet their columns."""
        match = partial(_match, need("scipy.optimize").linear_sum_assignment)
        found = self.pool.map(match, to_host(theta).reshape(-1, *theta.shape[-2:]))
        z = theta.new_zeros(len(found), *theta.shape[-2:])
        pairs = torch.from_numpy(np.stack(found)).to(theta.device)
        z[torch.arange(len(found), device=theta.device)[:, None], pairs[:, 0], pairs[:, 1]] = 1
        return z.reshape(theta.shape)


def _match(solver: Any, scores: Array) -> Any:
    return np.stack(solver(scores, maximize=True))

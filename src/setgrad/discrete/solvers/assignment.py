"""Linear assignment, through SciPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._pool import Array, WorkerPool, require, to_numpy


@final
@dataclass(frozen=True, eq=False)
class Assignment(CombinatorialSolver):
    """The best matching of rows to columns; theta and z are (*batch, rows, columns).

    If there are at most as many rows as columns, every row gets a different column, else every column a different row.
    SciPy solves the instances on the CPU (`pip install "setgrad[solvers]"`). Ties are broken by SciPy; the result
    depends on the instance alone.

    Args:
        pool: The workers that solve the instances.

    Examples:
        >>> Assignment()(torch.tensor([[3.0, 2.0, 0.0], [4.0, 1.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])
    """

    dims: ClassVar[int] = 2
    pool: WorkerPool = field(default_factory=WorkerPool)

    def solve(self, theta: Tensor) -> Tensor:
        """Solve the instances on the CPU, and return ones where rows and columns are matched."""
        match = partial(_match, require("scipy.optimize").linear_sum_assignment)
        pairs = self.pool.map(match, to_numpy(theta).reshape(-1, *theta.shape[-2:]))
        z = theta.new_zeros(len(pairs), *theta.shape[-2:])
        rows, columns = torch.from_numpy(np.stack(pairs)).to(theta.device).unbind(1)
        z[torch.arange(len(pairs), device=theta.device)[:, None], rows, columns] = 1
        return z.reshape(theta.shape)


def _match(solver: Any, scores: Array) -> Any:
    return np.stack(solver(scores, maximize=True))

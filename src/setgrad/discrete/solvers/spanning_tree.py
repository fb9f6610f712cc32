"""Maximum spanning trees by Prim's algorithm, for a whole batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._limits import scale_for_sum
from setgrad.discrete.solvers._parameters import as_tensor, broadcast_parameter, check_square


@final
@dataclass(frozen=True, eq=False)
class SpanningTree(CombinatorialSolver):
    """The spanning tree of n nodes with the largest weight; theta and z are n x n.

    z is the symmetric adjacency matrix of the tree: an edge {i, j} has a one at (i, j) and at (j, i). So `<theta, z>`
    includes both halves, the weight of an edge is theta[i, j] + theta[j, i], and theta need not be symmetric. The
    diagonal of theta must be finite and is ignored; that of z is 0. The tree grows from node 0; of equal edges it takes
    the one that reaches the lower node, from the node that joined first.

    Args:
        allowed: A mask of the edges that exist, (*batch, n, n), in either half; None for all. If they do not connect
            all nodes, the instance is INFEASIBLE.

    Examples:
        >>> SpanningTree()(torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 1.],
                [0., 1., 0.]])
    """

    dims: ClassVar[int] = 2
    allowed: Tensor | None = None

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if instances are not square."""
        super().check(theta)
        check_square(type(self).__name__, theta)

    def solve(self, theta: Tensor) -> Tensor | SolverResult:
        """Add the node with the best edge to the tree, n - 1 times."""
        batch, n = theta.shape[:-2], theta.shape[-1]
        theta = scale_for_sum(theta, 2)
        weight = theta + theta.mT
        if self.allowed is not None:
            allowed = broadcast_parameter("allowed", as_tensor(self.allowed).to(theta.device).bool(), batch, n, n)
            weight = weight.masked_fill(~(allowed | allowed.mT), -torch.inf)
        weight = weight.reshape(-1, n, n)
        rows = torch.arange(len(weight), device=theta.device)
        outside = torch.ones(len(weight), n, dtype=torch.bool, device=theta.device)
        outside[:, 0] = False
        best, parent = weight[:, 0], torch.zeros_like(outside, dtype=torch.long)
        for _ in range(n - 1):
            # Without an edge that leaves the tree, this is node 0 again, and nothing changes.
            node = best.masked_fill(~outside, -torch.inf).argmax(-1)
            outside[rows, node] = False
            better = (weight[rows, node] > best) & outside
            best = torch.where(better, weight[rows, node], best)
            parent = torch.where(better, node[:, None], parent)
        z = torch.zeros_like(weight)
        z[:, 1:].scatter_(-1, parent[:, 1:, None], 1)
        z = (z + z.mT).reshape(theta.shape)
        return SolverResult(z, torch.where(outside.any(-1), Status.INFEASIBLE, Status.SOLVED).reshape(batch))

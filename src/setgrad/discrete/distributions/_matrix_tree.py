"""The matrix-tree theorem in log space: nodes are eliminated one by one, without subtractions.

The total weight of all spanning trees is a determinant of the Laplacian. Eliminating a node v multiplies it by the sum
W of the weights at v, and adds w(i, v) w(j, v) / W to the weight of each remaining edge {i, j}. All terms are positive,
so weights of any range keep their digits, unlike in a determinant by LU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.discrete.distributions._log_space import log_add
from setgrad.discrete.noise import Gumbel


def eliminate(log_weights: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the log of the total weight of all spanning trees, and the quantities of each step that sampling needs.

    Args:
        log_weights: Log-weights of the edges, (*batch, n, n), symmetric and finite; the diagonal is ignored.

    Returns:
        The log-sums (*batch), and for the nodes n - 1, ..., 1 the log-weights of their edges to the nodes before them,
        (*batch, v), with the fraction of each new weight that goes through v, (*batch, v, v).
    """
    total = log_weights.new_zeros(log_weights.shape[:-2])
    steps = []
    for v in range(log_weights.shape[-1] - 1, 0, -1):
        row = log_weights[..., v, :v]
        degree = row.logsumexp(-1)
        through = row[..., :, None] + row[..., None, :] - degree[..., None, None]
        log_weights = log_add(log_weights[..., :v, :v], through)
        total = total + degree
        steps.append((row.detach(), (through - log_weights).detach().exp()))
    return total, steps


@torch.no_grad()
def sample_trees(steps: list[tuple[Tensor, Tensor]], samples: int, generator: torch.Generator | None) -> Tensor:
    """Sample trees by undoing the elimination: add the nodes back to a tree, one by one.

    An edge that goes through v is removed. Each remaining component of the tree is connected to v at one of its nodes,
    drawn by the weight of its edge to v.

    Returns:
        Adjacency matrices of bool, (samples, *batch, n, n).
    """
    first = steps[-1][0]
    tree = torch.zeros((samples, *first.shape[:-1], 1, 1), dtype=torch.bool, device=first.device)
    for row, share in reversed(steps):
        v = row.shape[-1]
        uniform = torch.rand(tree.shape, dtype=row.dtype, device=row.device, generator=generator).triu(1)
        remaining = tree & (uniform + uniform.mT >= share)
        components = connected(remaining)
        noise = Gumbel().sample((samples, *row.shape), dtype=row.dtype, device=row.device, generator=generator)
        # Relative to the best edge of the component: noise would be lost on a weight of another magnitude.
        scores = row - torch.where(components, row[..., None, :], -torch.inf).amax(-1) + noise
        best = torch.where(components, scores[..., None, :], -torch.inf).amax(-1)
        grown = tree.new_zeros((*tree.shape[:-2], v + 1, v + 1))
        grown[..., :v, :v] = remaining
        grown[..., v, :v] = grown[..., :v, v] = scores == best
        tree = grown
    return tree


def connected(adjacent: Tensor) -> Tensor:
    """Return which nodes are connected, for adjacency matrices of bool; each round doubles the length of paths."""
    n = adjacent.shape[-1]
    reach = adjacent | torch.eye(n, dtype=torch.bool, device=adjacent.device)
    length = 1
    while length < n - 1:
        reach = reach.float() @ reach.float() > 0
        length *= 2
    return reach

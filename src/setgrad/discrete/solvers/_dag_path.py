"""Cheapest paths in a graph without cycles, level by level, for a whole batch at a time."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _dag_path_numpy
from setgrad.discrete.solvers._limits import batch_slices
from setgrad.discrete.solvers._numpy import numpy_views

# NumPy is faster than torch with a few threads up to this many numbers in the largest step.
_NUMPY_LIMIT = 3 * 2**16
# Nodes of a part of the batch, of 32 instances or more: NumPy allocates larger tables again each time.
_MEMORY_LIMIT = 2**14


@final
@dataclass(frozen=True, eq=False)
class Levels:
    """The nodes of a graph without cycles, sorted so that edges go from lower levels to higher ones.

    Attributes:
        place: The position of each node in that order.
        sizes: The number of nodes of each level; edges enter all nodes except those of the first level.
        into: Numbers of the edges into the node of each place, (nodes, max_edges); padded with the number of edges.
        source: The places that these edges come from, padded with 0.
    """

    place: Tensor
    sizes: tuple[int, ...]
    into: Tensor
    source: Tensor

    @staticmethod
    def of(edges: Tensor, into: list[list[int]]) -> Levels | None:
        """Sort the nodes; return None if there is a cycle. `into` lists the numbers of the edges into every node."""
        pairs = edges.tolist()
        level = _levels(pairs, len(into))
        if level is None:
            return None
        order = torch.tensor(level).argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        max_edges = max(1, *map(len, into))
        table = torch.tensor([into[node] + [len(pairs)] * (max_edges - len(into[node])) for node in order.tolist()])
        sources = torch.cat([place[edges[:, 0]], place.new_zeros(1)])
        return Levels(place, tuple(torch.bincount(torch.tensor(level)).tolist()), table, sources[table])

    def cheapest(self, cost: Tensor, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ones on the edges of the cheapest paths, (count, edges), and a mask of instances that have a path.

        The mask is None if all instances have a path and the CPU knows without waiting. `cost` is (count, edges).
        """
        arrays = numpy_views(len(cost) * self.into.numel(), _NUMPY_LIMIT, cost, start, goal)
        if arrays is None:
            return self._cheapest_in_torch(cost, start, goal)
        tables = {"place": self.place.numpy(), "into": self.into.numpy(), "source": self.source.numpy()}
        parts = [
            _dag_path_numpy.cheapest(*(array[part] for array in arrays), sizes=self.sizes, **tables)
            for part in batch_slices(len(cost), min(len(self.place), _MEMORY_LIMIT // 32), _MEMORY_LIMIT)
        ]
        z, reachable = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return torch.from_numpy(z), None if reachable.all() else torch.from_numpy(reachable)

    def _cheapest_in_torch(self, cost: Tensor, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the same on any device, with instances on the last axis, so that a look-up copies whole rows."""
        count, edges = cost.shape
        place, into, source = (part.to(cost.device) for part in (self.place, self.into, self.source))
        start, goal = place[start][None], place[goal][None]
        costs = torch.cat([cost.T, cost.new_full((1, count), torch.inf)])[into]
        # No edge leads from the start to an earlier node, so these stay at infinity, and the start at 0.
        distance = cost.new_full((len(place), count), torch.inf).scatter_(0, start, 0)
        best = [into.new_zeros(self.sizes[0], count)]
        parts = zip(*(part.split(self.sizes) for part in (source, costs, distance)), strict=True)
        for sources, edge_costs, level_distance in itertools.islice(parts, 1, None):
            total = distance.index_select(0, sources.flatten()).reshape(edge_costs.shape).add_(edge_costs)
            minimum, first = total.min(1)
            torch.minimum(level_distance, minimum, out=level_distance)
            best.append(first)
        reachable = distance.gather(0, goal).isfinite()
        chosen = torch.cat(best)
        edge, previous = (torch.take_along_dim(table, chosen, 1) for table in (into, source))
        # At the start, stay there, and mark an edge that does not exist.
        edge.scatter_(0, start, edges)
        previous.scatter_(0, start, start)
        z = cost.new_zeros(edges + 1, count)
        node = torch.where(reachable, goal, start)
        for _ in self.sizes[1:]:
            z.scatter_(0, edge.gather(0, node), 1)
            node = previous.gather(0, node)
        return z[:-1].T, reachable[0]


def _levels(pairs: list[list[int]], nodes: int) -> list[int] | None:
    """Return the length of the longest path to each node (Kahn's algorithm); None if there is a cycle."""
    after: list[list[int]] = [[] for _ in range(nodes)]
    entering = [0] * nodes
    for source, target in pairs:
        after[source].append(target)
        entering[target] += 1
    level = [0] * nodes
    free = deque(node for node in range(nodes) if not entering[node])
    removed = 0
    while free:
        removed += 1
        current = free.popleft()
        for node in after[current]:
            level[node] = max(level[node], level[current] + 1)
            entering[node] -= 1
            if not entering[node]:
                free.append(node)
    return level if removed == nodes else None

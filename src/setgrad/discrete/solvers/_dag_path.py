"""Cheapest paths in a graph without circles: nodes are settled level by level, the whole batch in step."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _dag_path_host
from setgrad.discrete.solvers._arrays import small_arrays
from setgrad.discrete.solvers._shapes import slices

# Numbers of the largest step up to which NumPy is faster than torch with a few threads.
_SMALL = 3 * 2**16
# Nodes of a part of the batch, of 32 instances or more: for larger tables NumPy asks the system for memory each time.
_ROOM = 2**14


@final
@dataclass(frozen=True, eq=False)
class Levels:
    """The nodes of a graph without circles, sorted so that edges lead from lower levels to higher ones.

    Attributes:
        place: Where each node stands in that order.
        sizes: How many of them make up each level; edges enter all nodes but those of the first.
        into: Numbers of the edges into the node of each place, (nodes, most); filled up with the number of edges.
        source: The places that these edges come from, filled up with 0.
    """

    place: Tensor
    sizes: tuple[int, ...]
    into: Tensor
    source: Tensor

    @staticmethod
    def of(edges: Tensor, into: list[list[int]]) -> Levels | None:
        """Sort the nodes; None if there is a circle. `into` has the numbers of the edges into every node."""
        pairs = edges.tolist()
        level = _levels(pairs, len(into))
        if level is None:
            return None
        order = torch.tensor(level).argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        most = max(1, *map(len, into))
        table = torch.tensor([into[node] + [len(pairs)] * (most - len(into[node])) for node in order.tolist()])
        sources = torch.cat([place[edges[:, 0]], place.new_zeros(1)])
        return Levels(place, tuple(torch.bincount(torch.tensor(level)).tolist()), table, sources[table])

    def cheapest(self, cost: Tensor, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Ones on the edges of the cheapest paths, (count, edges), and whether there is one: cost is (count, edges).

        None instead says that there is one for all instances, where the host knows without waiting.
        """
        arrays = small_arrays(len(cost) * self.into.numel(), _SMALL, cost, start, goal)
        if arrays is None:
            return self._by_torch(cost, start, goal)
        tables = {"place": self.place.numpy(), "into": self.into.numpy(), "source": self.source.numpy()}
        parts = [
            _dag_path_host.cheapest(*(array[part] for array in arrays), sizes=self.sizes, **tables)
            for part in slices(len(cost), min(len(self.place), _ROOM // 32), _ROOM)
        ]
        z, found = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return torch.from_numpy(z), None if found.all() else torch.from_numpy(found)

    def _by_torch(self, cost: Tensor, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """The same on any device.

        Instances run along the last axis here, so that a look-up copies whole rows.
        """
        count, edges = cost.shape
        place, into, source = (part.to(cost.device) for part in (self.place, self.into, self.source))
        start, goal = place[start][None], place[goal][None]
        costs = torch.cat([cost.T, cost.new_full((1, count), torch.inf)])[into]
        # No edge leads from the start to a node before it, so these stay infinitely far, and the start at 0.
        distance = cost.new_full((len(place), count), torch.inf).scatter_(0, start, 0)
        best = [into.new_zeros(self.sizes[0], count)]
        parts = zip(*(part.split(self.sizes) for part in (source, costs, distance)), strict=True)
        for before, more, here in itertools.islice(parts, 1, None):
            total = distance.index_select(0, before.flatten()).reshape(more.shape).add_(more)
            least, first = total.min(1)
            torch.minimum(here, least, out=here)
            best.append(first)
        found = distance.gather(0, goal).isfinite()
        chosen = torch.cat(best)
        edge, before = (torch.take_along_dim(table, chosen, 1) for table in (into, source))
        # Who is back at the start stays there, and marks an edge that does not exist.
        edge.scatter_(0, start, edges)
        before.scatter_(0, start, start)
        z = cost.new_zeros(edges + 1, count)
        here = torch.where(found, goal, start)
        for _ in self.sizes[1:]:
            z.scatter_(0, edge.gather(0, here), 1)
            here = before.gather(0, here)
        return z[:-1].T, found[0]


def _levels(pairs: list[list[int]], nodes: int) -> list[int] | None:
    """The length of the longest path to each node: nodes that no edge enters leave, until none is left or circles."""
    after: list[list[int]] = [[] for _ in range(nodes)]
    entering = [0] * nodes
    for source, target in pairs:
        after[source].append(target)
        entering[target] += 1
    level = [0] * nodes
    free = deque(node for node in range(nodes) if not entering[node])
    gone = 0
    while free:
        gone += 1
        here = free.popleft()
        for node in after[here]:
            level[node] = max(level[node], level[here] + 1)
            entering[node] -= 1
            if not entering[node]:
                free.append(node)
    return level if gone == nodes else None

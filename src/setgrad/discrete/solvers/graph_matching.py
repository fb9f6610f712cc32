"""Quadratic matching of two graphs: nodes to nodes, with scores for pairs of edges too."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._parameters import as_whole
from setgrad.discrete.solvers._shapes import bounded, slices
from setgrad.errors import OptionError, ShapeError

# Numbers that are worked on at a time.
_ROOM = 2**22


@final
@dataclass(frozen=True, eq=False)
class GraphMatching(CombinatorialSolver):
    """The best matching of the nodes of graph a to different nodes of graph b, where edges count too.

    theta is one vector: nodes_a * nodes_b scores of node pairs, then edges_a * edges_b scores of edge pairs, both row
    by row; `pack` makes it and `unpack` takes z apart. z has a one for each pair of nodes that are matched, and for
    each pair of edges whose two ends are matched: first to first, second to second. List both directions of undirected
    edges in graph b.

    The problem is hard. If there are at most `exact_up_to` matchings, all are tried and the answer is exact: of equal
    matchings the one that sends the first nodes to lower numbers. Else it is the best of several local optima: greedy
    matchings by the scores of nodes, improved until no exchange of two nodes helps. It is an allowed point with the
    status SOLVED, but nothing proves it best.

    Args:
        nodes_a: How many nodes graph a has; at most nodes_b.
        nodes_b: How many nodes graph b has.
        edges_a: (edges_a, 2) of node numbers.
        edges_b: (edges_b, 2) of node numbers, none twice.
        exact_up_to: The most matchings to try one by one (5040 are the matchings of 7 nodes to 7).
        starts: How many greedy matchings the local search begins with.

    Example:
        >>> solver = GraphMatching(2, 2, edges_a=[(0, 1)], edges_b=[(0, 1), (1, 0)])
        >>> theta = solver.pack(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 3.0]]))
        >>> solver.unpack(solver(theta))[0]
        tensor([[0., 1.],
                [1., 0.]])
    """

    nodes_a: int
    nodes_b: int
    edges_a: Any
    edges_b: Any
    exact_up_to: int = 5040
    starts: int = 16
    _from: Tensor = field(init=False, repr=False)
    _to: Tensor = field(init=False, repr=False)
    # (nodes_b, nodes_b): the number of the edge between two nodes of b, or edges_b if there is none.
    _edge: Tensor = field(init=False, repr=False)
    _count: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.nodes_a <= self.nodes_b:
            raise OptionError(f"GraphMatching needs 1 <= nodes_a <= nodes_b, got {self.nodes_a} and {self.nodes_b}")
        if self.starts < 1:
            raise OptionError(f"starts must be 1 or more, got {self.starts}")
        a, b = _edges("edges_a", self.edges_a, self.nodes_a), _edges("edges_b", self.edges_b, self.nodes_b)
        if len(b.unique(dim=0)) < len(b):
            raise OptionError("edges_b names an edge twice; keep one of each")
        table = torch.full((self.nodes_b, self.nodes_b), len(b))
        table[b[:, 0], b[:, 1]] = torch.arange(len(b))
        for name, value in {"_from": a[:, 0], "_to": a[:, 1], "_edge": table, "_count": len(b)}.items():
            object.__setattr__(self, name, value)

    def pack(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """One theta from scores of node pairs (*batch, nodes_a, nodes_b) and edge pairs (*batch, edges_a, edges_b)."""
        own = ((self.nodes_a, self.nodes_b), (len(self._from), self._count))
        if tuple(nodes.shape[-2:]) != own[0] or tuple(edges.shape[-2:]) != own[1]:
            raise ShapeError(
                f"scores end in {tuple(nodes.shape[-2:])} and {tuple(edges.shape[-2:])}, the graphs ask for {own[0]} "
                f"and {own[1]}"
            )
        batch = torch.broadcast_shapes(nodes.shape[:-2], edges.shape[:-2])
        return torch.cat([part.expand(*batch, -1, -1).flatten(-2) for part in (nodes, edges)], dim=-1)

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of z (or of theta) for nodes (*batch, nodes_a, nodes_b) and edges (*batch, edges_a, edges_b)."""
        split = self.nodes_a * self.nodes_b
        nodes = z[..., :split].reshape(*z.shape[:-1], self.nodes_a, self.nodes_b)
        return nodes, z[..., split:].reshape(*z.shape[:-1], len(self._from), self._count)

    def check(self, theta: Tensor) -> None:
        """Refuse a theta of another length."""
        super().check(theta)
        needed = self.nodes_a * self.nodes_b + len(self._from) * self._count
        if theta.shape[-1] != needed:
            raise ShapeError(f"the graphs ask for {needed} scores, but theta has {theta.shape[-1]}; use pack()")

    def solve(self, theta: Tensor) -> Tensor:
        """Try all matchings, or search."""
        flat = bounded(theta, self.nodes_a + len(self._from)).reshape(-1, theta.shape[-1])
        padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], dim=1)  # where an edge has no partner
        places = (
            self._all(padded) if math.perm(self.nodes_b, self.nodes_a) <= self.exact_up_to else self._search(padded)
        )
        z = torch.zeros_like(padded).scatter_(1, places, 1)
        return z[:, :-1].reshape(theta.shape)

    def _places(self, match: Tensor) -> Tensor:
        """Where z of a matching (..., nodes_a) is 1; the entry after the last stands for no place."""
        a = torch.arange(self.nodes_a, device=match.device)
        nodes = a * self.nodes_b + match
        source, target = (match[..., end.to(match.device)] for end in (self._from, self._to))
        other = self._edge.to(match.device)[source, target]
        split, number = self.nodes_a * self.nodes_b, torch.arange(len(self._from), device=match.device)
        edges = split + number * self._count + other
        nothing = split + len(self._from) * self._count
        return torch.cat([nodes, torch.where(other < self._count, edges, nothing)], dim=-1)

    def _all(self, padded: Tensor) -> Tensor:
        every = torch.tensor(list(itertools.permutations(range(self.nodes_b), self.nodes_a)), device=padded.device)
        places = self._places(every)
        best = []
        for part in slices(len(padded), len(every), _ROOM):
            total = padded.new_zeros(len(padded[part]), len(every))
            # Added one by one, so that a sum is the same in any batch.
            for place in places.T:
                total += padded[part][:, place]
            best.append(total.argmax(1))
        return places[torch.cat(best)]

    def _search(self, padded: Tensor) -> Tensor:
        starts = min(self.starts, self.nodes_a * self.nodes_b)
        scores = padded[:, : self.nodes_a * self.nodes_b].reshape(-1, self.nodes_a, self.nodes_b)
        each = [self._improve(padded, self._greedy(scores, start)) for start in range(starts)]
        places = self._places(torch.stack(each, dim=1)[..., : self.nodes_a])
        total = padded[:, None].expand(-1, starts, -1).gather(2, places).sum(-1)
        return places[torch.arange(len(places), device=places.device), total.argmax(1)]

    def _greedy(self, scores: Tensor, start: int) -> Tensor:
        """Give each node its best partner that is left: a permutation of all of b.

        The first nodes_a starts begin with one node each; the next ones give that node its second choice, and so on.
        """
        choice, first = divmod(start, self.nodes_a)
        free = torch.ones(len(scores), self.nodes_b, dtype=torch.bool, device=scores.device)
        match = torch.zeros(len(scores), self.nodes_b, dtype=torch.long, device=scores.device)
        for step in range(self.nodes_a):
            node = (first + step) % self.nodes_a
            order = scores[:, node].masked_fill(~free, -torch.inf).argsort(dim=1, descending=True, stable=True)
            best = order[:, 0 if step else choice]
            match[:, node] = best
            free.scatter_(1, best[:, None], False)
        # Nodes of b without a partner come after the last node of a: to exchange with one of them is to move there.
        match[:, self.nodes_a :] = free.to(torch.int8).argsort(dim=1, descending=True, stable=True)[
            :, : self.nodes_b - self.nodes_a
        ]
        return match

    def _improve(self, padded: Tensor, match: Tensor) -> Tensor:
        """Make the best exchange of every matching until none helps by more than rounding can pretend."""
        pairs = torch.tensor(
            [(i, j) for i in range(self.nodes_a) for j in range(i + 1, self.nodes_b)], dtype=torch.long
        ).reshape(-1, 2)
        swaps = torch.arange(self.nodes_b).repeat(1 + len(pairs), 1)  # row 0 leaves all as it is
        rows = torch.arange(1, 1 + len(pairs))
        swaps[rows, pairs[:, 0]], swaps[rows, pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
        swaps = swaps.to(match.device)
        least = padded.abs().amax(1) * (64 * torch.finfo(padded.dtype).eps)
        alive = torch.arange(len(match), device=match.device)
        each = len(swaps) * (self.nodes_a + len(self._from))
        while len(alive):
            better, chosen = [], []
            for part in slices(len(alive), each, _ROOM):
                tried = match[alive[part]][:, swaps]
                places = self._places(tried[..., : self.nodes_a])
                total = padded[alive[part]][:, None].expand(-1, len(swaps), -1).gather(2, places).sum(-1)
                gain, best = total.max(1)
                better.append(gain - total[:, 0] > least[alive[part]])
                chosen.append(tried[torch.arange(len(tried), device=match.device), best])
            keep = torch.cat(better)
            alive = alive[keep]
            match[alive] = torch.cat(chosen)[keep]
        return match


def _edges(name: str, edges: Any, nodes: int) -> Tensor:
    listed = as_whole(name, edges).cpu().reshape(-1, 2) if len(edges) else torch.empty(0, 2, dtype=torch.long)
    if listed.numel() and not (int(listed.min()) >= 0 and int(listed.max()) < nodes):
        raise OptionError(f"{name} names a node outside 0 to {nodes - 1}")
    return listed

"""Quadratic matching of two graphs: nodes to nodes, with scores for pairs of edges as well."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._limits import batch_slices, scale_for_sum
from setgrad.discrete.solvers._parameters import as_integers, check_counts
from setgrad.errors import OptionError, ShapeError

# Numbers in memory at a time.
_MEMORY_LIMIT = 2**22


@final
@dataclass(frozen=True, eq=False)
class GraphMatching(CombinatorialSolver):
    """The best matching of the nodes of graph a to different nodes of graph b, with scores for nodes and edges.

    theta is one vector: nodes_a * nodes_b scores of node pairs, then edges_a * edges_b scores of edge pairs, both row
    by row; `pack` builds it and `unpack` splits z. z has a one for each pair of matched nodes, and for each pair of
    edges whose two ends are matched: first to first, second to second. List both directions of undirected edges in
    graph b.

    The problem is NP-hard. If there are at most `exact_up_to` matchings, all are compared and the result is optimal; of
    equal matchings it is the one that maps the first nodes to lower numbers. Otherwise it is the best of several local
    optima: greedy matchings by the scores of nodes, improved until no exchange of two nodes helps. It is feasible and
    has the status SOLVED, but it may not be optimal.

    Args:
        nodes_a: The number of nodes of graph a, at most nodes_b.
        nodes_b: The number of nodes of graph b.
        edges_a: Node numbers, of shape (edges_a, 2).
        edges_b: Node numbers, of shape (edges_b, 2), without duplicates.
        exact_up_to: The maximum number of matchings to compare (7 nodes have 5040 matchings to 7).
        starts: The number of greedy matchings that the local search starts from.

    Raises:
        OptionError: If a number is out of range, or edges_b contains an edge twice.

    Examples:
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
        check_counts(1, starts=self.starts)
        a, b = _edges("edges_a", self.edges_a, self.nodes_a), _edges("edges_b", self.edges_b, self.nodes_b)
        if len(b.unique(dim=0)) < len(b):
            raise OptionError("edges_b contains an edge twice; keep one of each")
        table = torch.full((self.nodes_b, self.nodes_b), len(b))
        table[b[:, 0], b[:, 1]] = torch.arange(len(b))
        for name, value in {"_from": a[:, 0], "_to": a[:, 1], "_edge": table, "_count": len(b)}.items():
            object.__setattr__(self, name, value)

    def pack(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return theta for scores of nodes `(*batch, nodes_a, nodes_b)` and of edges `(*batch, edges_a, edges_b)`.

        Raises:
            ShapeError: If the scores do not fit the graphs.
        """
        shapes = ((self.nodes_a, self.nodes_b), (len(self._from), self._count))
        if tuple(nodes.shape[-2:]) != shapes[0] or tuple(edges.shape[-2:]) != shapes[1]:
            raise ShapeError(
                f"scores end in {tuple(nodes.shape[-2:])} and {tuple(edges.shape[-2:])}, the graphs need {shapes[0]} "
                f"and {shapes[1]}"
            )
        batch = torch.broadcast_shapes(nodes.shape[:-2], edges.shape[:-2])
        return torch.cat([part.expand(*batch, -1, -1).flatten(-2) for part in (nodes, edges)], dim=-1)

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts of z for nodes `(*batch, nodes_a, nodes_b)` and for edges `(*batch, edges_a, edges_b)`."""
        split = self.nodes_a * self.nodes_b
        nodes = z[..., :split].reshape(*z.shape[:-1], self.nodes_a, self.nodes_b)
        return nodes, z[..., split:].reshape(*z.shape[:-1], len(self._from), self._count)

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if theta has the wrong length."""
        super().check(theta)
        needed = self.nodes_a * self.nodes_b + len(self._from) * self._count
        if theta.shape[-1] != needed:
            raise ShapeError(f"the graphs need {needed} scores, but theta has {theta.shape[-1]}; use pack()")

    def solve(self, theta: Tensor) -> Tensor:
        """Compare all matchings, or search."""
        flat = scale_for_sum(theta, self.nodes_a + len(self._from)).reshape(-1, theta.shape[-1])
        padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], dim=1)  # where an edge has no partner
        count = math.perm(self.nodes_b, self.nodes_a)
        places = self._compare_all(padded) if count <= self.exact_up_to else self._local_search(padded)
        z = torch.zeros_like(padded).scatter_(1, places, 1)
        return z[:, :-1].reshape(theta.shape)

    def _places(self, match: Tensor) -> Tensor:
        """Return the indices of the ones in z for matchings (..., nodes_a); the last index + 1 stands for no entry."""
        a = torch.arange(self.nodes_a, device=match.device)
        nodes = a * self.nodes_b + match
        source, target = (match[..., end.to(match.device)] for end in (self._from, self._to))
        other = self._edge.to(match.device)[source, target]
        split, number = self.nodes_a * self.nodes_b, torch.arange(len(self._from), device=match.device)
        edges = split + number * self._count + other
        nothing = split + len(self._from) * self._count
        return torch.cat([nodes, torch.where(other < self._count, edges, nothing)], dim=-1)

    def _compare_all(self, padded: Tensor) -> Tensor:
        matchings = torch.tensor(list(itertools.permutations(range(self.nodes_b), self.nodes_a)), device=padded.device)
        places = self._places(matchings)
        best = []
        for part in batch_slices(len(padded), len(matchings), _MEMORY_LIMIT):
            total = padded.new_zeros(len(padded[part]), len(matchings))
            # Summed in a fixed order, so that a total is the same in any batch.
            for place in places.T:
                total += padded[part][:, place]
            best.append(total.argmax(1))
        return places[torch.cat(best)]

    def _local_search(self, padded: Tensor) -> Tensor:
        starts = min(self.starts, self.nodes_a * self.nodes_b)
        scores = padded[:, : self.nodes_a * self.nodes_b].reshape(-1, self.nodes_a, self.nodes_b)
        each = [self._improve(padded, self._greedy(scores, start)) for start in range(starts)]
        places = self._places(torch.stack(each, dim=1)[..., : self.nodes_a])
        total = padded[:, None].expand(-1, starts, -1).gather(2, places).sum(-1)
        return places[torch.arange(len(places), device=places.device), total.argmax(1)]

    def _greedy(self, scores: Tensor, start: int) -> Tensor:
        """Match each node with its best free partner, and return a permutation of all nodes of b.

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
        # Free nodes of b come after the last node of a: an exchange with one of them moves a node there.
        match[:, self.nodes_a :] = free.to(torch.int8).argsort(dim=1, descending=True, stable=True)[
            :, : self.nodes_b - self.nodes_a
        ]
        return match

    def _improve(self, padded: Tensor, match: Tensor) -> Tensor:
        """Apply the best exchange of every matching until none helps by more than rounding errors."""
        pairs = torch.tensor(
            [(i, j) for i in range(self.nodes_a) for j in range(i + 1, self.nodes_b)], dtype=torch.long
        ).reshape(-1, 2)
        swaps = torch.arange(self.nodes_b).repeat(1 + len(pairs), 1)  # row 0 changes nothing
        rows = torch.arange(1, 1 + len(pairs))
        swaps[rows, pairs[:, 0]], swaps[rows, pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
        swaps = swaps.to(match.device)
        tolerance = padded.abs().amax(1) * (64 * torch.finfo(padded.dtype).eps)
        active = torch.arange(len(match), device=match.device)
        each = len(swaps) * (self.nodes_a + len(self._from))
        while len(active):
            better, chosen = [], []
            for part in batch_slices(len(active), each, _MEMORY_LIMIT):
                candidates = match[active[part]][:, swaps]
                places = self._places(candidates[..., : self.nodes_a])
                total = padded[active[part]][:, None].expand(-1, len(swaps), -1).gather(2, places).sum(-1)
                gain, best = total.max(1)
                better.append(gain - total[:, 0] > tolerance[active[part]])
                chosen.append(candidates[torch.arange(len(candidates), device=match.device), best])
            keep = torch.cat(better)
            active = active[keep]
            match[active] = torch.cat(chosen)[keep]
        return match


def _edges(name: str, edges: Any, nodes: int) -> Tensor:
    listed = as_integers(name, edges).cpu().reshape(-1, 2) if len(edges) else torch.empty(0, 2, dtype=torch.long)
    if listed.numel() and not (int(listed.min()) >= 0 and int(listed.max()) < nodes):
        raise OptionError(f"{name} contains a node outside 0 to {nodes - 1}")
    return listed

"""Cheapest paths in a directed graph: level by level, or by the Bellman-Ford algorithm if there are cycles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._dag_path import Levels
from setgrad.discrete.solvers._limits import sum_scale
from setgrad.discrete.solvers._parameters import as_integers, broadcast_parameter
from setgrad.errors import OptionError, ShapeError

# The CPU asks the device only now and then whether all instances are done: more rounds change nothing.
_CHECK_INTERVAL = 8


@final
@dataclass(frozen=True, eq=False)
class GraphPath(CombinatorialSolver):
    """The cheapest path between two nodes of a directed graph; theta holds the cost of every edge, (*batch, edges).

    z is 1 on the edges of the path. The sense is "min" by default; with "max", theta is minus the costs. In a graph
    without cycles every cost is allowed and the path is optimal. In other graphs a cheapest simple path with negative
    costs is NP-hard, so **costs below 0 count as 0** there. Of equally cheap edges into a node, the one with the lowest
    number is taken; in graphs with cycles, the one from the nearest node. If the goal cannot be reached, the instance
    is INFEASIBLE.

    Args:
        edges: Node numbers (from, to), of shape (edges, 2). An undirected edge is two directed ones.
        start: The first node, one for all instances or (*batch).
        goal: The last node, one for all instances or (*batch).

    Raises:
        ShapeError: If edges does not have the shape (edges, 2).
        OptionError: If a node is negative or not a whole number.

    Examples:
        >>> GraphPath([(0, 1), (0, 2), (1, 2)], start=0, goal=2)(torch.tensor([1.0, 5.0, 2.0]))
        tensor([1., 0., 1.])
    """

    edges: Any
    start: int | Tensor
    goal: int | Tensor
    sense: str = field(default="min", kw_only=True)
    _from: Tensor = field(init=False, repr=False)
    _to: Tensor = field(init=False, repr=False)
    # Start and goal as integers.
    _ends: tuple[Tensor, Tensor] = field(init=False, repr=False)
    # (nodes, max_edges): the numbers of the edges into each node, padded with -1.
    _into: Tensor = field(init=False, repr=False)
    _levels: Levels | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = as_integers("edges", self.edges).cpu()
        ends = (as_integers("start", self.start).cpu(), as_integers("goal", self.goal).cpu())
        if edges.ndim != 2 or edges.shape[1] != 2 or not len(edges):
            raise ShapeError(f"edges must have shape (edges, 2) with one edge or more, got {tuple(edges.shape)}")
        if min(int(part.min()) for part in (edges, *ends)) < 0:
            raise OptionError("nodes are numbered from 0, but edges, start or goal contain a negative number")
        nodes = 1 + max(int(part.max()) for part in (edges, *ends))
        into: list[list[int]] = [[] for _ in range(nodes)]
        for number, (_, target) in enumerate(edges.tolist()):
            into[target].append(number)
        max_edges = max(1, max(map(len, into)))
        table = torch.tensor([row + [-1] * (max_edges - len(row)) for row in into])
        levels = Levels.of(edges, into)
        derived = {"_from": edges[:, 0], "_to": edges[:, 1], "_ends": ends, "_into": table, "_levels": levels}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if theta has another number of edges than the graph."""
        super().check(theta)
        if theta.shape[-1] != len(self._from):
            raise ShapeError(f"the graph has {len(self._from)} edges, but theta has {theta.shape[-1]} costs")

    def solve(self, theta: Tensor) -> Tensor | SolverResult:
        """Compute distances from the start, then walk back from the goal."""
        batch, count = theta.shape[:-1], theta.shape[:-1].numel()
        cost = (theta * -sum_scale(2 * len(self._into))).reshape(count, -1)
        start, goal = (
            broadcast_parameter(name, value.to(theta.device), batch).reshape(count)
            for name, value in zip(("start", "goal"), self._ends, strict=True)
        )
        if self._levels is not None:
            z, reachable = self._levels.cheapest(cost, start, goal)
            if reachable is None:
                return z.reshape(theta.shape)
        else:
            cost = cost.clamp(min=0)
            distance, round_ = self._distances(cost, start)
            reachable = distance.gather(1, goal[:, None])[:, 0].isfinite()
            z = self._walk(cost, distance, round_, start, torch.where(reachable, goal, start))
        # Plain integers: torch is slow to read members of an enumeration.
        status = torch.where(reachable, Status.SOLVED.value, Status.INFEASIBLE.value)
        return SolverResult(z.reshape(theta.shape), status.reshape(batch))

    def _distances(self, cost: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance of every node, and the round in which it last fell."""
        nodes = len(self._into)
        source, target = self._from.to(cost.device), self._to.to(cost.device).expand_as(cost)
        distance = cost.new_full((len(cost), nodes), torch.inf).scatter_(1, start[:, None], 0)
        round_ = torch.zeros_like(distance, dtype=torch.long)
        for number in range(1, nodes + 1):
            new = distance.scatter_reduce(1, target, distance[:, source] + cost, "amin")
            fell = new < distance
            if number % _CHECK_INTERVAL == 0 and not bool(fell.any()):
                break
            round_.masked_fill_(fell, number)
            distance = new
        return distance, round_

    def _walk(self, cost: Tensor, distance: Tensor, round_: Tensor, start: Tensor, goal: Tensor) -> Tensor:
        """Return ones on the edges from the goal back to the start.

        Of the edges that give a node its distance, take one from the nearest node; where edges cost nothing, from the
        node whose distance fell first. The distance of a node falls only after that of its predecessor, so there is no
        cycle.
        """
        into, source = self._into.to(cost.device), self._from.to(cost.device)
        z, node = torch.zeros_like(cost), goal
        for number in range(1, len(into) + 1):
            edges = into[node]
            chosen = edges.clamp(min=0)
            nodes = source[chosen]
            distances = distance.gather(1, nodes)
            total = (distances + cost.gather(1, chosen)).masked_fill_(edges < 0, torch.inf)
            distances = distances.masked_fill(total > total.amin(1, keepdim=True), torch.inf)
            rounds = round_.gather(1, nodes).masked_fill_(distances > distances.amin(1, keepdim=True), 2**62)
            best = rounds.argmin(1, keepdim=True)
            moving = node != start
            z.scatter_add_(1, chosen.gather(1, best), moving[:, None].to(z))
            node = torch.where(moving, nodes.gather(1, best)[:, 0], node)
            if number % _CHECK_INTERVAL == 0 and bool((node == start).all()):
                break
        return z

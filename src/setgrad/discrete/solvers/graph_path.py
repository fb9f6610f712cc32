"""Cheapest paths in a directed graph: level by level, or where there are circles by Bellman and Ford's algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._dag_path import Levels
from setgrad.discrete.solvers._parameters import as_whole, spread
from setgrad.discrete.solvers._shapes import unit
from setgrad.errors import OptionError, ShapeError

# The host asks the device only now and then whether all instances are done: rounds too many change nothing.
_PATIENCE = 8


@final
@dataclass(frozen=True, eq=False)
class GraphPath(CombinatorialSolver):
    """The cheapest path between two nodes of a directed graph; theta holds the cost of every edge, (*batch, edges).

    z is 1 on the edges of the path. The sense is "min" by default; with "max", theta is minus the costs. In a graph
    without circles every cost is allowed and the answer is exact. In other graphs a cheapest simple path with negative
    costs is a hard problem, so there **costs below 0 count as 0**. Of equally cheap ways into a node that over the
    edge with the lowest number is taken; where there are circles, that from the nearest node. A goal that cannot be
    reached makes the instance INFEASIBLE.

    Args:
        edges: (edges, 2) of node numbers: from, to. An undirected edge is two directed ones.
        start: The node to start from, one for all or (*batch).
        goal: The node to arrive at, one for all or (*batch).

    Example:
        >>> GraphPath([(0, 1), (0, 2), (1, 2)], start=0, goal=2)(torch.tensor([1.0, 5.0, 2.0]))
        tensor([1., 0., 1.])
    """

    edges: Any
    start: int | Tensor
    goal: int | Tensor
    sense: str = field(default="min", kw_only=True)
    _from: Tensor = field(init=False, repr=False)
    _to: Tensor = field(init=False, repr=False)
    # Start and goal as whole numbers.
    _ends: tuple[Tensor, Tensor] = field(init=False, repr=False)
    # (nodes, most edges into a node): the numbers of these edges, filled up with -1.
    _into: Tensor = field(init=False, repr=False)
    _levels: Levels | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = as_whole("edges", self.edges).cpu()
        ends = (as_whole("start", self.start).cpu(), as_whole("goal", self.goal).cpu())
        if edges.ndim != 2 or edges.shape[1] != 2 or not len(edges):
            raise ShapeError(f"edges must have shape (edges, 2) with one edge or more, got {tuple(edges.shape)}")
        if min(int(part.min()) for part in (edges, *ends)) < 0:
            raise OptionError("nodes are numbered from 0; edges, start or goal name a negative one")
        nodes = 1 + max(int(part.max()) for part in (edges, *ends))
        into: list[list[int]] = [[] for _ in range(nodes)]
        for number, (_, node) in enumerate(edges.tolist()):
            into[node].append(number)
        most = max(1, max(map(len, into)))
        table = torch.tensor([row + [-1] * (most - len(row)) for row in into])
        levels = Levels.of(edges, into)
        derived = {"_from": edges[:, 0], "_to": edges[:, 1], "_ends": ends, "_into": table, "_levels": levels}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def check(self, theta: Tensor) -> None:
        """Refuse a theta with another number of edges."""
        super().check(theta)
        if theta.shape[-1] != len(self._from):
            raise ShapeError(f"the graph has {len(self._from)} edges, but theta has {theta.shape[-1]} costs")

    def solve(self, theta: Tensor) -> Tensor | SolverResult:
        """Spread distances from the start, then walk back from the goal."""
        batch, count = theta.shape[:-1], theta.shape[:-1].numel()
        cost = (theta * -unit(2 * len(self._into))).reshape(count, -1)
        start, goal = (
            spread(name, value.to(theta.device), batch).reshape(count)
            for name, value in zip(("start", "goal"), self._ends, strict=True)
        )
        if self._levels is not None:
            z, found = self._levels.cheapest(cost, start, goal)
            if found is None:
                return z.reshape(theta.shape)
        else:
            cost = cost.clamp(min=0)
            distance, round_ = self._spread(cost, start)
            found = distance.gather(1, goal[:, None])[:, 0].isfinite()
            z = self._walk(cost, distance, round_, start, torch.where(found, goal, start))
        # Plain numbers: torch is slow to read members of an enumeration.
        status = torch.where(found, Status.SOLVED.value, Status.INFEASIBLE.value)
        return SolverResult(z.reshape(theta.shape), status.reshape(batch))

    def _spread(self, cost: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of every node, and the round in which it last fell."""
        nodes = len(self._into)
        source, target = self._from.to(cost.device), self._to.to(cost.device).expand_as(cost)
        distance = cost.new_full((len(cost), nodes), torch.inf).scatter_(1, start[:, None], 0)
        round_ = torch.zeros_like(distance, dtype=torch.long)
        for number in range(1, nodes + 1):
            new = distance.scatter_reduce(1, target, distance[:, source] + cost, "amin")
            fell = new < distance
            if number % _PATIENCE == 0 and not bool(fell.any()):
                break
            round_.masked_fill_(fell, number)
            distance = new
        return distance, round_

    def _walk(self, cost: Tensor, distance: Tensor, round_: Tensor, start: Tensor, goal: Tensor) -> Tensor:
        """Mark the edges from the goal back to the start.

        Of the edges that give a node its distance, take one from the nearest node; where edges cost nothing, from the
        node whose distance fell first. A node falls only after the one it followed, so there is no circle.
        """
        into, source = self._into.to(cost.device), self._from.to(cost.device)
        z, here = torch.zeros_like(cost), goal
        for number in range(1, len(into) + 1):
            edges = into[here]
            chosen = edges.clamp(min=0)
            nodes = source[chosen]
            away = distance.gather(1, nodes)
            total = (away + cost.gather(1, chosen)).masked_fill_(edges < 0, torch.inf)
            away = away.masked_fill(total > total.amin(1, keepdim=True), torch.inf)
            late = round_.gather(1, nodes).masked_fill_(away > away.amin(1, keepdim=True), 2**62)
            best = late.argmin(1, keepdim=True)
            going = here != start
            z.scatter_add_(1, chosen.gather(1, best), going[:, None].to(z))
            here = torch.where(going, nodes.gather(1, best)[:, 0], here)
            if number % _PATIENCE == 0 and bool((here == start).all()):
                break
        return z

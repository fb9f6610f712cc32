"""Problems that several libraries can solve: costs as flat rows, a solver of setgrad, and a plain NumPy or SciPy one.

All take rows (batch, d) of float32. Costs are spread so that paths make detours, and far enough from 0 that they stay
positive after a step of `LAMBDA` along the weights of the loss, which Dijkstra's algorithm needs.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import TSP, Assignment, CombinatorialSolver, GraphPath, GridPath, Knapsack, TopK, WorkerPool

# The step of Blackbox; weights of the loss are at most 1.
LAMBDA = 0.5
# From one row of costs to one row of the solution, without torch.
Plain = Callable[[Any], Any]


@final
@dataclass(frozen=True, eq=False)
class Task:
    """A problem.

    Attributes:
        name: The name in the tables.
        d: The number of costs of an instance.
        shape: The shape of an instance for the solver.
        solver: Returns the solver of setgrad, with this many workers if it has a pool.
        plain: Returns the plain solver, with its tables and graphs.
        positions: The positions of the costs in the flat instance; None if they fill it.
        model: PyEPO's model of it: the name of its class, and its arguments.
    """

    name: str
    d: int
    shape: tuple[int, ...]
    solver: Callable[[int], CombinatorialSolver]
    plain: Callable[[], Plain]
    positions: Tensor | None = None
    model: tuple[str, tuple[Any, ...]] | None = None

    def to_instances(self, rows: Tensor) -> Tensor:
        """Return rows as instances; differentiable."""
        if self.positions is not None:
            empty = rows.new_zeros(len(rows), int(np.prod(self.shape)))
            rows = empty.index_copy(1, self.positions, rows)
        return rows.unflatten(1, self.shape)

    def to_rows(self, z: Tensor) -> Tensor:
        """Return instances as rows."""
        return z.flatten(1) if self.positions is None else z.flatten(1)[:, self.positions]

    def draw(self, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return costs that require a gradient, and the weights of a linear loss."""
        generator = torch.Generator().manual_seed(seed)
        costs = 0.6 + 5.4 * torch.rand(batch, self.d, generator=generator)
        weights = 2 * torch.rand(batch, self.d, generator=generator) - 1
        return costs.requires_grad_(), weights


def top_k(n: int, k: int) -> Task:
    """Return the choice of the k largest of n; the plain solver is a partial sort."""

    def solve(costs: Any) -> Any:
        z = np.zeros_like(costs)
        z[np.argpartition(costs, -k)[-k:]] = 1
        return z

    return Task(f"top-k, {k} of {n}", n, (n,), lambda workers: TopK(k), lambda: solve)


def arcs(side: int) -> Task:
    """Return a path through a grid by steps right and down, with a cost for every step: PyEPO's shortest path."""
    steps = []
    for row in range(side):
        # PyEPO's order: along a row, then down from it.
        first = row * side
        steps += [(first + c, first + c + 1) for c in range(side - 1)]
        steps += [(first + c, first + c + side) for c in range(side) if row < side - 1]
    return Task(
        f"path, {side} x {side}, arcs",
        len(steps),
        (len(steps),),
        lambda workers: GraphPath(steps, start=0, goal=side**2 - 1),
        lambda: _Dijkstra(steps, side**2).by_arcs,
        model=("shortestPathModel", ((side, side),)),
    )


def cells(side: int) -> Task:
    """Return a path across a grid by moves in eight directions, with a cost for every cell that is entered."""
    moves = [move for move in itertools.product((-1, 0, 1), repeat=2) if move != (0, 0)]
    inside = [
        (r * side + c, (r + dr) * side + c + dc)
        for r, c in itertools.product(range(side), repeat=2)
        for dr, dc in moves
        if 0 <= r + dr < side and 0 <= c + dc < side
    ]
    return Task(
        f"path, {side} x {side}, cells",
        side**2,
        (side, side),
        lambda workers: GridPath(),
        lambda: _Dijkstra(inside, side**2).by_cells,
    )


def knapsack(unit: int) -> Task:
    """Return a knapsack of 32 items of weight 3 to 8 and a budget of 20, as in PyEPO's examples, times `unit`."""
    weights, budget = np.random.default_rng(0).integers(3 * unit, 8 * unit, 32), 20 * unit

    def solve(costs: Any) -> Any:
        best, taken = np.zeros(budget + 1), np.zeros((32, budget + 1), dtype=bool)
        for item, weight in enumerate(weights):
            other = best[:-weight] + costs[item]
            taken[item, weight:] = other > best[weight:]
            best[weight:] = np.maximum(other, best[weight:])
        z, left = np.zeros(32), budget
        for item in range(31, -1, -1):
            if taken[item, left]:
                z[item] = 1
                left -= weights[item]
        return z

    return Task(
        f"knapsack, 32 items, budget {budget}",
        32,
        (32,),
        lambda workers: Knapsack(weights.tolist(), budget),
        lambda: solve,
        model=("knapsackModel", (weights[None], [budget])),
    )


def tours(n: int) -> Task:
    """Return the shortest round trip, with a cost for each pair of cities; the plain solver lists all trips."""
    i, j = np.triu_indices(n, 1)
    # Only in the upper triangle: a leg costs the sum of both halves.
    positions = torch.from_numpy(i * n + j)
    return Task(
        f"TSP, {n} cities",
        len(i),
        (n, n),
        lambda workers: TSP(),
        lambda: _pick(_all_tours(n)),
        positions,
        model=("tspDFJModel", (n,)),
    )


@cache
def _all_tours(n: int) -> Any:
    number = {pair: at for at, pair in enumerate(itertools.combinations(range(n), 2))}
    rows = []
    for order in itertools.permutations(range(1, n)):
        if order[0] < order[-1]:
            row = np.zeros(len(number))
            row[[number[min(leg), max(leg)] for leg in itertools.pairwise((0, *order, 0))]] = 1
            rows.append(row)
    return np.stack(rows)


def _pick(listed: Any) -> Plain:
    return lambda costs: listed[(listed @ costs).argmin()]


def assignment(n: int) -> Task:
    """Return the assignment of rows to columns of a square matrix; both solvers are SciPy's."""
    linear_sum_assignment = importlib.import_module("scipy.optimize").linear_sum_assignment

    def solve(costs: Any) -> Any:
        z = np.zeros((n, n))
        z[linear_sum_assignment(costs.reshape(n, n), maximize=True)] = 1
        return z.reshape(-1)

    return Task(f"assignment, {n} x {n}", n**2, (n, n), lambda workers: Assignment(WorkerPool(workers)), lambda: solve)


class _Dijkstra:
    """SciPy's Dijkstra from the first node to the last, on one graph whose costs change."""

    def __init__(self, arcs: list[tuple[int, int]], nodes: int) -> None:
        csr_array = importlib.import_module("scipy.sparse").csr_array
        self.find, self.nodes = importlib.import_module("scipy.sparse.csgraph").dijkstra, nodes
        self.number = {arc: at for at, arc in enumerate(arcs)}
        # The position of the cost of each arc in the order of the graph.
        ends = np.array(arcs).T
        self.order = csr_array((np.arange(1.0, len(arcs) + 1), tuple(ends)), shape=(nodes, nodes)).data.astype(int) - 1
        self.graph = csr_array((np.ones(len(arcs)), tuple(ends)), shape=(nodes, nodes))
        self.enters = self.graph.indices

    def _reversed_path(self) -> list[int]:
        _, before = self.find(self.graph, indices=0, return_predecessors=True)
        path = [self.nodes - 1]
        while path[-1] != 0:
            path.append(int(before[path[-1]]))
        return path

    def by_arcs(self, costs: Any) -> Any:
        """Return the path with a cost for each arc."""
        self.graph.data = np.asarray(costs, dtype=np.float64)[self.order]
        z = np.zeros(len(costs))
        for end, start in itertools.pairwise(self._reversed_path()):
            z[self.number[start, end]] = 1
        return z

    def by_cells(self, costs: Any) -> Any:
        """Return the path with a cost for each node, including the first."""
        self.graph.data = np.asarray(costs, dtype=np.float64)[self.enters]
        z = np.zeros(len(costs))
        z[self._reversed_path()] = 1
        return z


def tasks(*, quick: bool) -> list[Task]:
    """Return all problems, small ones for a quick run."""
    if quick:
        return [top_k(20, 5), arcs(4), cells(5), knapsack(1), tours(5), assignment(5)]
    return [
        top_k(100, 10),
        arcs(5),
        arcs(12),
        cells(12),
        cells(32),
        knapsack(1),
        knapsack(100),
        tours(8),
        assignment(20),
    ]

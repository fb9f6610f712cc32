"""Small combinatorial problems with a list of all feasible points, which the tests compare with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from setgrad.discrete import CombinatorialSolver
from setgrad.discrete.solvers import (
    TSP,
    ArgMax,
    Assignment,
    CallableSolver,
    CardinalityRange,
    GraphMatching,
    GraphPath,
    GridPath,
    IntegerProgram,
    Knapsack,
    Matroid,
    PartitionMatroid,
    PyEPOSolver,
    Ranking,
    SpanningTree,
    Threshold,
    TopK,
    WorkerPool,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A solver for instances that are small enough to list all feasible points."""

    name: str
    # Builds the solver; takes `sense` and `on_failure`.
    build: Callable[..., CombinatorialSolver]
    # (p, *instance), float64
    points: Tensor
    # Whether the solver is exact only for costs (negative scores) of 0 or more.
    costs: bool = False
    # Whether ties go to the point that is 1 at the lowest index where they differ.
    lowest_index_first: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def solver(self) -> CombinatorialSolver:
        return self.build()

    @property
    def shape(self) -> torch.Size:
        """The shape of one instance."""
        return self.points.shape[1:]

    def draw(self, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float64, sense: str | None = None) -> Tensor:
        """Normal theta without ties; absolute values if the solver takes only costs."""
        generator = torch.Generator().manual_seed(seed)
        theta = torch.randn(*batch, *self.shape, generator=generator, dtype=torch.float64).to(dtype)
        return self._allowed(theta, sense)

    def draw_ties(self, *batch: int, seed: int = 0, sense: str | None = None) -> Tensor:
        """Small integers: sums are exact, and many points are equally good."""
        generator = torch.Generator().manual_seed(seed)
        theta = torch.randint(-2, 3, (*batch, *self.shape), generator=generator).double()
        return self._allowed(theta, sense)

    def _allowed(self, theta: Tensor, sense: str | None) -> Tensor:
        if not self.costs:
            return theta
        return theta.abs() if (sense or self.solver.sense) == "min" else -theta.abs()

    def products(self, theta: Tensor) -> Tensor:
        """<theta, z> for every feasible point: (*batch, p)."""
        return theta.double().flatten(-len(self.shape)) @ self.points.flatten(1).T

    def best(self, theta: Tensor, sense: str | None = None) -> Tensor:
        """The best product of each instance."""
        products = self.products(theta)
        return products.amax(-1) if (sense or self.solver.sense) == "max" else products.amin(-1)

    def allowed(self, z: Tensor) -> Tensor:
        """Whether each z is one of the points, exactly."""
        flat = z.double().flatten(-len(self.shape))
        return (flat[..., None, :] == self.points.flatten(1)).all(-1).any(-1)


def _table(rows: list[object]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unique(dim=0)


def binary(n: int, keep: Callable[[Tensor], bool | Tensor] = lambda row: True) -> Tensor:
    """All vectors of zeros and ones of length n that pass."""
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * n)
    return torch.stack([row for row in every if keep(row)])


def permutations(n: int) -> Tensor:
    """All orders of 1 to n."""
    return _table(list(itertools.permutations(range(1, n + 1))))


def matchings(rows: int, columns: int) -> Tensor:
    """All ways to give every row a different column."""
    every = torch.tensor(list(itertools.permutations(range(columns), rows)))
    return torch.nn.functional.one_hot(every, columns).double()


def trees(n: int) -> Tensor:
    """Adjacency of all spanning trees of n nodes: n - 1 edges that connect them."""
    pairs = list(itertools.combinations(range(n), 2))
    points = []
    for chosen in itertools.combinations(pairs, n - 1):
        z = torch.zeros(n, n, dtype=torch.float64)
        for i, j in chosen:
            z[i, j] = z[j, i] = 1
        if torch.linalg.matrix_power(torch.eye(n, dtype=torch.float64) + z, n).all():
            points.append(z)
    return torch.stack(points)


def tours(n: int) -> Tensor:
    """Adjacency of all round trips."""
    points = torch.zeros(math.factorial(n - 1), n, n, dtype=torch.float64)
    for z, rest in zip(points, itertools.permutations(range(1, n)), strict=True):
        for i, j in itertools.pairwise((0, *rest, 0)):
            z[i, j] = z[j, i] = 1
    return points.unique(dim=0)


def simple_paths(edges: list[tuple[int, int]], start: int, goal: int) -> list[list[int]]:
    """The numbers of the edges of every path that visits no node twice."""

    def extend(node: int, visited: frozenset[int]) -> Iterator[list[int]]:
        if node == goal:
            yield []
            return
        for number, (source, target) in enumerate(edges):
            if source == node and target not in visited:
                for rest in extend(target, visited | {target}):
                    yield [number, *rest]

    return list(extend(start, frozenset({start})))


def edge_paths(edges: list[tuple[int, int]], start: int, goal: int) -> Tensor:
    """Paths as 0/1 vectors over edges."""
    return torch.stack([_marks(len(edges), path) for path in simple_paths(edges, start, goal)])


def grid_paths(height: int, width: int, neighbours: int) -> Tensor:
    """Paths from the first cell to the last as 0/1 grids."""
    cells = list(itertools.product(range(height), range(width)))
    reach = {4: lambda r, c: abs(r) + abs(c) == 1, 8: lambda r, c: max(abs(r), abs(c)) == 1}[neighbours]
    edges = [(i, j) for i, a in enumerate(cells) for j, b in enumerate(cells) if reach(a[0] - b[0], a[1] - b[1])]
    paths = simple_paths(edges, 0, len(cells) - 1)
    points = torch.stack([_marks(len(cells), [0, *(edges[number][1] for number in path)]) for path in paths])
    return points.unique(dim=0).reshape(-1, height, width)


def _marks(n: int, where: list[int]) -> Tensor:
    return torch.zeros(n, dtype=torch.float64).index_fill(0, torch.tensor(where, dtype=torch.long), 1)


def graph_matchings(
    nodes_a: int, nodes_b: int, edges_a: list[tuple[int, int]], edges_b: list[tuple[int, int]]
) -> Tensor:
    """Pairs of nodes, then pairs of edges, of all matchings."""
    points = []
    for x in matchings(nodes_a, nodes_b):
        y = [x[u, p] * x[v, q] for u, v in edges_a for p, q in edges_b]
        points.append(torch.cat([x.flatten(), torch.stack(y)]))
    return torch.stack(points)


# A graph with cycles (such as 0-1-2-0), one without, and the edges of a complete graph on 4 nodes.
CIRCULAR = [(0, 1), (1, 2), (2, 0), (0, 2), (2, 3), (1, 3), (3, 1), (3, 4), (2, 4)]
ACYCLIC = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (0, 4)]
COMPLETE = list(itertools.combinations(range(4), 2))
INCIDENCE = torch.stack([_marks(4, [i]) - _marks(4, [j]) for i, j in COMPLETE])


def is_forest(masks: Tensor) -> Tensor:
    """Independent rows of the incidence matrix form no cycle."""
    return torch.linalg.matrix_rank(INCIDENCE.to(masks.device) * masks[..., None]) == masks.sum(-1)


WEIGHTS = [3, 1, 4, 2, 2, 5]
REAL_WEIGHTS = [0.31, 0.12, 0.4, 0.21, 0.25]
GROUPS = [0, 1, 0, 2, 1, 0]
ROWS = [[2.0, 1.0, 3.0, 1.0, 2.0], [1.0, -1.0, 0.0, 2.0, -1.0]]


def _at_most_one_each(row: Tensor) -> bool:
    return all(sum(row[i] for i, group in enumerate(GROUPS) if group == g) <= 1 for g in range(3))


class FakeModel:
    """A PyEPO optModel: two of four entries, one instance at a time."""

    num_cost = 4

    def __init__(self, sense: str = "min") -> None:
        self.modelSense = 1 if sense == "min" else -1

    def setObj(self, c: object) -> None:
        self.costs = torch.as_tensor(c)

    def solve(self) -> tuple[list[float], float]:
        z = TopK(2, sense="min" if self.modelSense == 1 else "max")(self.costs)
        return z.tolist(), float(self.costs @ z)

    def copy(self) -> FakeModel:
        return FakeModel("min" if self.modelSense == 1 else "max")


def _from_pyepo(sense: str = "min", **options: Any) -> CombinatorialSolver:
    return PyEPOSolver(FakeModel(sense), **options)


def _callable(sense: str = "max", **options: Any) -> CombinatorialSolver:
    return CallableSolver(TopK(2, sense=sense), sense=sense, **options)


def _callable_in_pool(sense: str = "max", **options: Any) -> CombinatorialSolver:
    one = TopK(2, sense=sense)
    return CallableSolver(lambda c: one(torch.from_numpy(c)).numpy(), sense=sense, pool=WorkerPool(2), **options)


two_of_four = binary(4, lambda row: row.sum() == 2)
fits = binary(6, lambda row: float(row @ torch.tensor(WEIGHTS).double()) <= 7)
fits_real = binary(5, lambda row: float(row @ torch.tensor(REAL_WEIGHTS).double()) <= 0.7)
rows = torch.tensor(ROWS, dtype=torch.float64)
program = binary(5, lambda row: bool((rows @ row <= torch.tensor([5, 1])).all()))
MATCHING = (3, 3, [(0, 1), (1, 2)], [(0, 1), (1, 0), (1, 2), (2, 1)])
SMALLER = (2, 3, [(0, 1)], [(0, 1), (1, 2), (2, 0)])

PROBLEMS = [
    Problem("argmax", ArgMax, binary(5, lambda row: row.sum() == 1), lowest_index_first=True),
    Problem("top-2", lambda **o: TopK(2, **o), binary(6, lambda row: row.sum() == 2), lowest_index_first=True),
    Problem("ranking", Ranking, permutations(4)),
    Problem("threshold", Threshold, binary(5)),
    Problem("1 to 3", lambda **o: CardinalityRange(1, 3, **o), binary(5, lambda row: 1 <= row.sum() <= 3)),
    Problem("assignment", Assignment, matchings(3, 3)),
    Problem("wide assignment", Assignment, matchings(2, 4)),
    Problem("tall assignment", Assignment, matchings(2, 3).mT),
    Problem("spanning tree", SpanningTree, trees(4)),
    Problem("8-grid path", GridPath, grid_paths(3, 3, 8), costs=True),
    Problem("4-grid path", lambda **o: GridPath(4, **o), grid_paths(3, 4, 4), costs=True),
    Problem("graph path", lambda **o: GraphPath(CIRCULAR, 0, 4, **o), edge_paths(CIRCULAR, 0, 4), costs=True),
    Problem("acyclic path", lambda **o: GraphPath(ACYCLIC, 0, 4, **o), edge_paths(ACYCLIC, 0, 4)),
    Problem("tour", TSP, tours(5)),
    Problem("tour by search", lambda **o: TSP(exact_up_to=0, **o), tours(5)),
    Problem("knapsack", lambda **o: Knapsack(WEIGHTS, 7, **o), fits),
    Problem("real knapsack", lambda **o: Knapsack(REAL_WEIGHTS, 0.7, **o), fits_real),
    Problem("partition", lambda **o: PartitionMatroid(GROUPS, **o), binary(6, _at_most_one_each)),
    Problem(
        "partition bases",
        lambda **o: PartitionMatroid(GROUPS, bases=True, **o),
        binary(6, lambda row: _at_most_one_each(row) and row.sum() == 3),
        lowest_index_first=True,
    ),
    Problem("forest", lambda **o: Matroid(is_forest, **o), binary(6, lambda row: bool(is_forest(row)))),
    Problem("graph matching", lambda **o: GraphMatching(*MATCHING, **o), graph_matchings(*MATCHING)),
    Problem("smaller graph", lambda **o: GraphMatching(*SMALLER, **o), graph_matchings(*SMALLER)),
    Problem("integer program", lambda **o: IntegerProgram(ROWS, [5.0, 1.0], **o), program),
    Problem("callable", _callable, two_of_four, lowest_index_first=True),
    Problem("callable in a pool", _callable_in_pool, two_of_four, lowest_index_first=True),
    Problem("from PyEPO", _from_pyepo, two_of_four, lowest_index_first=True),
]

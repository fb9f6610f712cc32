"""Solvers against other solvers on larger instances, and the properties of single solvers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import bellman_ford, dijkstra, minimum_spanning_tree
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete.solvers import (
    TSP,
    CardinalityRange,
    GraphMatching,
    GraphPath,
    GridPath,
    Knapsack,
    Matroid,
    PartitionMatroid,
    Ranking,
    SpanningTree,
    Threshold,
    TopK,
)
from setgrad.errors import OptionError, ShapeError, SolverError
from tests.discrete.oracles import draws, product


def test_spanning_tree_against_scipy() -> None:
    theta = draws(3, 25, 25)
    z = SpanningTree()(theta)
    assert torch.equal(z, z.mT)
    assert (z.sum((1, 2)) == 2 * 24).all()
    for weights, tree in zip(theta, z, strict=True):
        # SciPy ignores edges of weight 0 and minimises: shift and change the sign.
        cost = 100 - (weights + weights.T).triu(1)
        least = minimum_spanning_tree(np.triu(cost.numpy(), 1)).sum()
        assert product(weights, tree) == pytest.approx(24 * 100 - least)


def test_spanning_tree_of_equal_edges_is_a_star() -> None:
    z = SpanningTree()(torch.ones(5, 5))
    assert (z[0, 1:] == 1).all()
    assert z.sum() == 8


def test_spanning_tree_of_a_disconnected_graph_is_infeasible() -> None:
    allowed = torch.ones(2, 4, 4, dtype=torch.bool)
    allowed[1, :2, 2:] = allowed[1, 2:, :2] = False
    result = SpanningTree(allowed, on_failure="mask").run(draws(2, 4, 4))
    assert result.status.tolist() == [Status.SOLVED, Status.INFEASIBLE]
    assert result.value[0].sum() == 6
    assert not result.value[1].any()


def _grid_edges(size: int, neighbours: int) -> list[tuple[int, int]]:
    cells = list(itertools.product(range(size), range(size)))
    near = (lambda r, c: max(r, c) == 1) if neighbours == 8 else (lambda r, c: r + c == 1)
    return [
        (i, j) for i, a in enumerate(cells) for j, b in enumerate(cells) if near(abs(a[0] - b[0]), abs(a[1] - b[1]))
    ]


def _dijkstra(edges: list[tuple[int, int]], costs: np.ndarray, start: int, nodes: int) -> np.ndarray:
    source, target = np.array(edges).T
    # SciPy reads 0 as no edge; this is too small to change a sum.
    matrix = coo_array((np.maximum(costs, 1e-300), (source, target)), shape=(nodes, nodes)).tocsr()
    return dijkstra(matrix, indices=start)


@pytest.mark.parametrize("neighbours", [4, 8])
def test_grid_path_against_dijkstra(neighbours: int) -> None:
    size = 15
    # Very different costs, so that the best paths wind; a third of the cells cost nothing.
    costs = draws(6, size, size).abs() ** 4 * (draws(6, size, size, seed=1) > -0.4)
    z = GridPath(neighbours)(costs)
    edges = _grid_edges(size, neighbours)
    for cost, path in zip(costs, z, strict=True):
        flat = cost.flatten().numpy()
        away = _dijkstra(edges, flat[[j for _, j in edges]], 0, size * size)
        assert product(cost, path) == pytest.approx(flat[0] + away[-1])
        _assert_path(path, edges)


def _assert_path(path: Tensor, edges: list[tuple[int, int]]) -> None:
    """The marked cells are connected, from the first to the last."""
    cells = set(path.flatten().nonzero().flatten().tolist())
    reached, grown = {0}, True
    while grown:
        new = {j for i, j in edges if i in reached and j in cells}
        grown = not new <= reached
        reached |= new
    assert reached == cells
    assert path.numel() - 1 in cells


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30])
def test_grid_path_across_equal_costs(value: float) -> None:
    # 1e-30 is lost in any sum with 1: the walk back must not enter a cycle.
    costs = torch.full((9, 9), value)
    costs[0, 0] = 1
    path = GridPath()(costs)
    _assert_path(path, _grid_edges(9, 8))
    assert path.sum() == 9


def test_grid_path_between_other_cells_and_with_negative_costs() -> None:
    costs = draws(4, 5, 6)
    solver = GridPath(start=(2, 0), goal=(2, -1))
    z = solver(costs)
    assert torch.equal(z, solver(costs.clamp(min=0)))
    assert (z[:, 2, 0] == 1).all()
    assert (z[:, 2, 5] == 1).all()
    assert GridPath(start=(1, 1), goal=(1, 1))(costs).sum() == 4
    with pytest.raises(ShapeError, match="outside a grid of 5 x 6"):
        GridPath(goal=(5, 0))(costs)
    with pytest.raises(OptionError, match="4 or 8"):
        GridPath(6)


def test_graph_path_against_dijkstra() -> None:
    rng = np.random.default_rng(0)
    edges = sorted({(int(i), int(j)) for i, j in rng.integers(0, 30, (150, 2)) if i != j})
    costs = draws(8, len(edges)).abs() * (draws(8, len(edges), seed=1) > -0.3)
    result = GraphPath(edges, 0, 29, on_failure="mask").run(costs)
    assert (result.status == Status.SOLVED).all()
    for cost, z in zip(costs, result.value, strict=True):
        assert product(cost, z) == pytest.approx(_dijkstra(edges, cost.numpy(), 0, 30)[29])
        chosen = dict(edges[number] for number in z.nonzero().flatten().tolist())
        node, steps = 0, 0
        while node != 29:
            node, steps = chosen[node], steps + 1
        assert steps == len(chosen) == int(z.sum())


def test_graph_path_without_cycles_against_bellman_ford() -> None:
    rng = np.random.default_rng(1)
    # Node numbers do not follow the order, and levels have several nodes.
    names = rng.permutation(40)
    edges = sorted({(int(names[min(i, j)]), int(names[max(i, j)])) for i, j in rng.integers(0, 40, (200, 2)) if i != j})
    costs, starts = draws(6, len(edges)), torch.as_tensor(names[[0, 0, 3, 3, 8, 8]])
    result = GraphPath(edges, starts, int(names[39]), on_failure="mask").run(costs)
    for cost, z, status, start in zip(costs, result.value, result.status, starts.tolist(), strict=True):
        graph = coo_array((cost.numpy(), np.array(edges).T), shape=(40, 40))
        best = bellman_ford(graph, indices=start)[names[39]]
        assert (status == Status.SOLVED) == np.isfinite(best)
        if np.isfinite(best):
            assert product(cost, z) == pytest.approx(best)
            chosen, node = dict(edges[number] for number in z.nonzero().flatten().tolist()), start
            for _ in range(int(z.sum())):
                node = chosen[node]
            assert node == names[39]
    assert (result.status == Status.SOLVED).any()


def test_equal_edges_go_to_the_lower_number_without_cycles() -> None:
    parallel = [(0, 1), (0, 1), (0, 2), (2, 1)]
    assert GraphPath(parallel, 0, 1)(torch.tensor([1.0, 1.0, 0.5, 0.5])).tolist() == [1, 0, 0, 0]
    assert GraphPath(parallel[::-1], 0, 1)(torch.tensor([0.5, 0.5, 1.0, 1.0])).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_largest_floats_are_compared_correctly(dtype: torch.dtype) -> None:
    large = torch.tensor([0.75, 0.5, 0.75], dtype=dtype) * torch.finfo(dtype).max
    assert GraphPath([(0, 1), (0, 1), (0, 1)], 0, 1)(large).tolist() == [0, 1, 0]
    assert GraphPath([(0, 1), (0, 1), (1, 0)], 0, 1)(large).tolist() == [0, 1, 0]
    assert Knapsack([1, 1, 1], 2)(large).tolist() == [1, 0, 1]
    tree = torch.zeros(3, 3, dtype=dtype)
    tree[0, 1], tree[0, 2], tree[1, 2] = large * torch.tensor([1.0, 1.0, 0.9], dtype=dtype)
    assert SpanningTree()(tree)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(2.0),  # type: ignore[arg-type]
        lambda: TopK(True),
        lambda: CardinalityRange(0, 1.5),  # type: ignore[arg-type]
        lambda: PartitionMatroid([0, 0, 0], at_most=1.5),
        lambda: GraphPath([(0.5, 1.7)], 0, 1),
    ],
)
def test_counts_and_node_numbers_must_be_integers(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError, match="whole number"):
        make()


def test_unreachable_goal_is_infeasible() -> None:
    solver = GraphPath([(0, 1), (2, 1)], start=0, goal=torch.tensor([1, 2, 0]), on_failure="mask")
    result = solver.run(draws(3, 2).abs())
    assert result.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert result.value.tolist() == [[1, 0], [0, 0], [0, 0]]
    with pytest.raises(ShapeError, match="2 edges, but theta has 3"):
        solver(draws(3, 3))
    with pytest.raises(OptionError, match="numbered from 0"):
        GraphPath([(0, 1)], start=-1, goal=1)


def test_negative_costs_are_clamped_only_with_cycles() -> None:
    two_ways, circle = [(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2), (0, 2), (2, 0)]
    costs = torch.tensor([1.0, -2.0, 0.5])
    assert GraphPath(two_ways, 0, 2)(costs).tolist() == [1, 1, 0]
    assert GraphPath(circle, 0, 2)(torch.cat([costs, torch.zeros(1)])).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("n", [3, 4, 6, 7])
def test_exact_and_searched_tours_against_all_orders(n: int) -> None:
    points = draws(20, n, 2)
    theta = torch.cdist(points, points)
    orders = torch.tensor([(0, *rest) for rest in itertools.permutations(range(1, n))])
    lengths = theta[:, orders, orders.roll(-1, 1)].sum(-1).amin(1)
    torch.testing.assert_close((TSP()(theta) * theta).sum((1, 2)) / 2, lengths)
    # In the plane, with few cities, one of the starts leads to the best tour.
    torch.testing.assert_close((TSP(exact_up_to=0)(theta) * theta).sum((1, 2)) / 2, lengths)


def test_searched_tour_is_a_2_opt_optimum() -> None:
    n = 16
    theta = draws(3, n, n)
    z = TSP(exact_up_to=12, starts=3)(theta)
    cost = theta + theta.mT
    for tour, weight in zip(z, cost, strict=True):
        assert torch.equal(tour, tour.T)
        assert (tour.sum(1) == 2).all()
        order = _order(tour)
        length = float(sum(weight[i, j] for i, j in itertools.pairwise([*order, 0])))
        for i, j in itertools.combinations(range(1, n + 1), 2):
            turned = order[:i] + order[i:j][::-1] + order[j:]
            assert sum(weight[a, b] for a, b in itertools.pairwise([*turned, 0])) > length - 1e-9
    exact = TSP(exact_up_to=0)(cost[:, :8, :8])
    torch.testing.assert_close((exact * cost[:, :8, :8]).sum(), (TSP()(cost[:, :8, :8]) * cost[:, :8, :8]).sum())


def test_tsp_ignores_the_diagonal() -> None:
    points = draws(5, 14, 2)
    theta = torch.cdist(points, points)
    for solver in (TSP(exact_up_to=0), TSP(exact_up_to=14)):
        assert torch.equal(solver(theta), solver(theta + torch.eye(14) * 1e30))


def _order(tour: Tensor) -> list[int]:
    order, before = [0], -1
    while len(order) < len(tour):
        ends = [i for i in tour[order[-1]].nonzero().flatten().tolist() if i != before]
        before = order[-1]
        order.append(ends[0])
    assert len(set(order)) == len(tour)
    return order


def test_tsp_needs_a_square_of_three_cities() -> None:
    with pytest.raises(ShapeError, match="3 nodes or more"):
        TSP()(torch.zeros(2, 2))
    with pytest.raises(ShapeError, match="square matrices, got 3 x 4"):
        TSP()(torch.zeros(3, 4))
    with pytest.raises(OptionError, match="0 to 16"):
        TSP(exact_up_to=17)


def test_top_k_and_cardinality_range_at_their_limits() -> None:
    theta = torch.tensor([1.0, -1.0, 0.0])
    assert TopK(0)(theta).sum() == 0
    assert TopK(3)(theta).sum() == 3
    with pytest.raises(OptionError, match="cannot choose 4 of 3"):
        TopK(4)(theta)
    assert CardinalityRange()(theta).tolist() == [1, 0, 0]
    assert CardinalityRange(2)(theta).tolist() == [1, 0, 1]
    assert CardinalityRange(0, 9)(theta).tolist() == [1, 0, 0]
    assert CardinalityRange(0, 0)(theta).sum() == 0
    with pytest.raises(OptionError, match="cannot choose 4 of 3"):
        CardinalityRange(4)(theta)
    with pytest.raises(OptionError, match="min_size <= max_size"):
        CardinalityRange(3, 2)


def test_ties_among_many_entries_go_to_the_lower_index() -> None:
    # Sorting a few entries keeps their order by chance; sorting thousands does not.
    theta = (torch.arange(3000) % 2).float()
    first = (torch.arange(3000) < 200).float() * theta
    halves = torch.arange(3000) // 1500
    assert torch.equal(TopK(100)(theta), first)
    assert torch.equal(CardinalityRange(0, 100)(theta), first)
    assert torch.equal(PartitionMatroid(halves, [100, 0])(theta), first)
    assert torch.equal(Matroid(lambda masks: masks.sum(-1) <= 100)(theta), first)
    assert torch.equal(Ranking()(theta)[1::2], torch.arange(1, 1501).float())
    assert torch.equal(Ranking()(theta)[::2], torch.arange(1501, 3001).float())


def test_equal_entries_are_ranked_by_index() -> None:
    theta = torch.tensor([2.0, 5.0, 2.0, 5.0])
    assert Ranking()(theta).tolist() == [3, 1, 4, 2]
    assert Ranking(sense="max")(theta).tolist() == [1, 3, 2, 4]


def test_thresholds_other_than_zero() -> None:
    theta = torch.tensor([0.2, 0.5, 0.9])
    assert Threshold(0.5)(theta).tolist() == [0, 0, 1]
    assert Threshold(0.5, sense="min")(theta).tolist() == [1, 0, 0]
    assert Threshold(torch.tensor([0.1, 0.6, 0.9]))(theta).tolist() == [1, 0, 0]


@pytest.mark.parametrize("sense", ["max", "min"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1), (3, 5), (1, 5), (4, 1, 1), (4, 3, 1), (4, 3, 5)], ids=str)
def test_thresholds_broadcast_to_theta(shape: tuple[int, ...], sense: str) -> None:
    generator = torch.Generator().manual_seed(0)
    theta, level = torch.randn(4, 3, 5, generator=generator), torch.randn(shape, generator=generator)
    better = theta > level if sense == "max" else theta < level
    assert torch.equal(Threshold(level, sense=sense)(theta), better.float())


@pytest.mark.parametrize("shape", [(3,), (4, 1), (2, 4, 3, 1), (3, 0)], ids=str)
def test_thresholds_of_other_shapes_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="does not broadcast"):
        Threshold(torch.zeros(shape))(torch.zeros(4, 3, 5))


def test_partition_matroid_limits_and_invalid_input() -> None:
    theta = torch.tensor([1.0, 2.0, 3.0, 4.0, -1.0])
    groups = [0, 0, 0, 1, 2]
    assert PartitionMatroid(groups, [2, 0, 5])(theta).tolist() == [0, 1, 1, 0, 0]
    assert PartitionMatroid(groups, [2, 0, 5], bases=True)(theta).tolist() == [0, 1, 1, 0, 1]
    with pytest.raises(ShapeError, match="numbers for 2 groups, but there are 3 groups"):
        PartitionMatroid(groups, [1, 1])
    with pytest.raises(OptionError, match="whole numbers from 0"):
        PartitionMatroid([0.5, 1.0])
    with pytest.raises(OptionError, match="at_most must be 0 or more"):
        PartitionMatroid(groups, -1)


def test_matroid_bases_and_invalid_functions() -> None:
    theta = torch.tensor([-1.0, -3.0, -2.0])
    assert Matroid(lambda masks: masks.sum(-1) <= 2, bases=True)(theta).tolist() == [1, 0, 1]
    assert Matroid(lambda masks: masks.sum(-1) <= 2)(theta).tolist() == [0, 0, 0]
    with pytest.raises(SolverError, match="must return bool of shape"):
        Matroid(lambda masks: masks)(theta)
    with pytest.raises(SolverError, match="must return bool of shape"):
        Matroid(lambda masks: masks.sum(-1))(theta)


RING = [(i, (i + 1) % 6) for i in range(6)]


@pytest.mark.parametrize("nodes_b", [6, 8])
def test_searched_matching_is_a_local_optimum(nodes_b: int) -> None:
    edges_b = [(i, j) for i in range(nodes_b) for j in range(nodes_b) if i != j and (i * j) % 3 != 1]
    solver = GraphMatching(6, nodes_b, RING, edges_b, exact_up_to=0)
    theta = solver.pack(draws(10, 6, nodes_b), draws(10, 6, len(edges_b), seed=1))
    z = solver(theta)
    x, y = solver.unpack(z)
    assert (x.sum(-1) == 1).all()
    assert (x.sum(-2) <= 1).all()
    ends_a, ends_b = torch.tensor(RING).T, torch.tensor(edges_b).T
    pairs = x[:, ends_a[0]][..., ends_b[0]] * x[:, ends_a[1]][..., ends_b[1]]
    assert torch.equal(y, pairs)
    best = (theta * z).sum(-1)
    for i, j in itertools.combinations(range(6), 2):
        swapped = x.clone()
        swapped[:, [i, j]] = x[:, [j, i]]
        pairs = swapped[:, ends_a[0]][..., ends_b[0]] * swapped[:, ends_a[1]][..., ends_b[1]]
        assert ((theta * solver.pack(swapped, pairs)).sum(-1) <= best + 1e-9).all()
    exact = GraphMatching(6, nodes_b, RING, edges_b, exact_up_to=30_000)
    truth = (theta * exact(theta)).sum(-1)
    assert (best <= truth + 1e-9).all()
    assert (best / truth).mean() > 0.95
    assert torch.equal(z, torch.stack([solver(instance) for instance in theta]))


def test_invalid_graph_matching_raises() -> None:
    with pytest.raises(OptionError, match="nodes_a <= nodes_b"):
        GraphMatching(3, 2, [], [])
    with pytest.raises(OptionError, match="edges_b contains an edge twice"):
        GraphMatching(2, 2, [(0, 1)], [(0, 1), (0, 1)])
    with pytest.raises(OptionError, match="edges_a contains a node outside 0 to 1"):
        GraphMatching(2, 2, [(0, 2)], [(0, 1)])
    with pytest.raises(ShapeError, match="need 5 scores, but theta has 4"):
        GraphMatching(2, 2, [(0, 1)], [(0, 1)])(torch.zeros(4))
    with pytest.raises(ShapeError, match=r"the graphs need \(2, 2\)"):
        GraphMatching(2, 2, [(0, 1)], [(0, 1)]).pack(torch.zeros(2, 3), torch.zeros(1, 1))
    assert GraphMatching(2, 3, [], [])(torch.tensor([1.0, 0.0, 0.0, 3.0, 0.0, 0.0])).tolist() == [0, 1, 0, 1, 0, 0]


def test_search_with_a_single_node() -> None:
    assert GraphMatching(1, 1, [], [], exact_up_to=0)(torch.tensor([-1.0])).tolist() == [1]

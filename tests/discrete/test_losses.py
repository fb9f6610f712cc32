"""Losses against loops that follow their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from setgrad.discrete.losses import (
    hamming_loss,
    log_rank_loss,
    loglog_rank_loss,
    normalized_regret,
    recall_at_k,
    recall_loss,
    regret,
)
from setgrad.discrete.solvers import Ranking, SpanningTree, TopK
from setgrad.errors import DataError, OptionError, ShapeError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_front(ranks: list[float], relevant: list[bool]) -> list[float]:
    """For each relevant item, the irrelevant ones before it."""
    pairs = list(zip(ranks, relevant, strict=True))
    return [sum(other < rank and not good for other, good in pairs) for rank, is_relevant in pairs if is_relevant]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


RANK_LOSSES: list[tuple[Callable[[Tensor, Tensor], Tensor], Callable[[float], float]]] = [
    (lambda ranks, relevant: recall_loss(ranks, relevant, k=3), lambda count: min(count, 3) / 3),
    (log_rank_loss, lambda count: math.log(1 + count)),
    (loglog_rank_loss, lambda count: math.log(1 + math.log(1 + count))),
]


@pytest.mark.parametrize(("loss", "term"), RANK_LOSSES, ids=["recall", "log", "loglog"])
def test_rank_losses(loss: Callable[[Tensor, Tensor], Tensor], term: Callable[[float], float]) -> None:
    ranks = Ranking()(draw(5, 4, 9))
    relevant = draw(4, 9, seed=1) > 0.3
    relevant[2] = False
    values = loss(ranks, relevant)
    assert values.shape == (5, 4) and not values[:, 2].any()
    for s in range(5):
        for b in range(4):
            counts = in_front(ranks[s, b].tolist(), relevant[b].tolist())
            assert values[s, b].item() == pytest.approx(mean([term(count) for count in counts]), abs=1e-12)


@pytest.mark.parametrize(("loss", "term"), RANK_LOSSES, ids=["recall", "log", "loglog"])
def test_gradients_of_rank_losses_reach_relevant_items(
    loss: Callable[[Tensor, Tensor], Tensor], term: Callable[[float], float]
) -> None:
    """With constant ranks among the relevant items, against finite differences."""
    ranks = torch.tensor([6.0, 2.0, 1.0, 3.0, 5.0, 4.0], dtype=torch.float64, requires_grad=True)
    relevant = torch.tensor([True, True, False, False, True, False])
    (slope,) = torch.autograd.grad(loss(ranks, relevant), ranks)
    expected, step = [], 1e-6
    for count, is_relevant in zip([3, 1, 0, 0, 3, 0], relevant.tolist(), strict=True):
        # from below, because recall_loss(k=3) has a kink at 3
        expected.append((term(count) - term(count - step)) / step / 3 if is_relevant else 0.0)
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_recall_loss_has_no_gradient_beyond_k() -> None:
    ranks = torch.tensor([4.0, 1.0, 2.0, 3.0], requires_grad=True)
    loss = recall_loss(ranks, torch.tensor([1, 0, 0, 0]), k=2)
    (slope,) = torch.autograd.grad(loss, ranks)
    assert loss.item() == 1 and not slope.any()


def test_recall_loss_at_1_is_one_minus_recall() -> None:
    ranks, relevant = Ranking()(draw(20, 6)), draw(20, 6, seed=1) > 0
    relevant[:, 0] = True
    one = torch.zeros_like(relevant)
    one[:, 0] = True
    assert torch.equal(recall_loss(ranks, one, k=1), 1 - recall_at_k(ranks, one, k=1))
    assert (recall_loss(ranks, relevant, k=1) >= 1 - recall_at_k(ranks, relevant, k=1)).all()


def test_recall_at_k() -> None:
    ranks, relevant = Ranking()(draw(30, 8)), draw(30, 8, seed=1) > 1
    for k in (1, 3, 8):
        expected = [
            any(rank <= k and is_relevant for rank, is_relevant in zip(*row, strict=True))
            for row in zip(ranks.tolist(), relevant.tolist(), strict=True)
        ]
        assert recall_at_k(ranks, relevant, k=k).tolist() == [float(value) for value in expected]
        assert torch.equal(recall_at_k(ranks, relevant.double(), k=k), recall_at_k(ranks, relevant, k=k))


def test_hamming_loss() -> None:
    z = (draw(3, 4, 5) > 0).double().requires_grad_()
    target = draw(4, 5, seed=1) > 0
    assert torch.equal(hamming_loss(z, target), (z != target).sum(-1).double())
    assert torch.equal(hamming_loss(z, target, dims=2), (z != target).sum((-2, -1)).double())
    (slope,) = torch.autograd.grad(hamming_loss(z, target).sum(), z)
    assert torch.equal(slope, (1 - 2 * target.double()).expand(3, 4, 5))


@pytest.mark.parametrize("sense", ["min", "max"])
def test_regret(sense: str) -> None:
    solver, cost, z = TopK(2, sense=sense), draw(4, 6, seed=1), TopK(2)(draw(3, 4, 6))
    values = regret(z, cost, solver=solver)
    ordered = cost.sort(-1, descending=sense == "max").values[..., :2].sum(-1)
    expected = (cost * z).sum(-1) - ordered
    torch.testing.assert_close(values, expected if sense == "min" else -expected)
    assert values.shape == (3, 4) and (values >= 0).all()
    assert regret(solver(cost), cost, solver=solver).abs().max() < 1e-12
    torch.testing.assert_close(regret(z, cost, solver=solver, best=solver(cost)), values)
    torch.testing.assert_close(
        normalized_regret(z, cost, solver=solver), values.sum() / ordered.expand(3, 4).abs().sum()
    )


def test_regret_calls_the_solver_only_without_best() -> None:
    solver, cost = TopK(2), draw(4, 6)
    best = solver(cost)
    solver.counter.reset()
    regret(best, cost, solver=solver, best=best)
    assert solver.counter.calls == 0
    regret(best, cost, solver=solver)
    assert solver.counter.calls == 1


def test_regret_of_matrices() -> None:
    cost = draw(3, 5, 5)
    solver = SpanningTree()
    assert regret(solver(draw(3, 5, 5, seed=1)), cost, solver=solver).shape == (3,)


def test_regret_is_nan_without_a_best_solution() -> None:
    solver, cost = TopK(1, on_failure="mask"), draw(3, 4)
    cost[1, 2] = torch.nan
    z = TopK(1)(draw(3, 4, seed=1))
    values = regret(z, cost, solver=solver)
    assert values.isnan().tolist() == [False, True, False]
    known = torch.tensor([0, 2])
    expected = normalized_regret(z[known], cost[known], solver=solver)
    torch.testing.assert_close(normalized_regret(z, cost, solver=solver), expected)


def test_nan_solutions_have_nan_regret() -> None:
    z, cost = torch.tensor([[torch.nan, 1, 0], [1, 0, 0]]), torch.tensor([[1.0, 2, 3], [3, 2, 1]])
    assert normalized_regret(z, cost, solver=TopK(1)).isnan()


@pytest.mark.parametrize("empty", ["worthless", "unsolved", "no instance"])
def test_normalized_regret_with_zero_best_values_raises(empty: str) -> None:
    cost = {"worthless": torch.zeros(2, 3), "unsolved": torch.full((2, 3), torch.nan), "no instance": torch.zeros(0, 3)}
    z = torch.zeros_like(cost[empty])
    with pytest.raises(DataError, match=r"sum to 0.*use regret\(\)"):
        normalized_regret(z, cost[empty], solver=TopK(1, on_failure="mask"))


def test_invalid_input_raises() -> None:
    with pytest.raises(ShapeError, match="hamming_loss got answers"):
        hamming_loss(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ShapeError, match="hamming_loss got answers"):
        hamming_loss(torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="regret got answers"):
        regret(torch.zeros(2, 3), torch.zeros(2, 3), solver=TopK(1), best=torch.zeros(2, 1))
    with pytest.raises(ShapeError, match="recall_at_k got answers"):
        recall_at_k(torch.zeros(2, 3), torch.zeros(4, 3), k=1)
    with pytest.raises(OptionError, match="k of 1 or more"):
        recall_loss(torch.ones(3), torch.ones(3), k=0)


def test_boolean_solutions() -> None:
    z, target = torch.tensor([[True, False], [True, True]]), torch.tensor([True, True])
    assert hamming_loss(z, target).tolist() == [1.0, 0.0]

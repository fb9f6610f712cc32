"""Losses against loops that follow their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from setgrad.discrete.losses import (
    hamming,
    log_rank_loss,
    loglog_rank_loss,
    normalized_regret,
    recall_at,
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
    return [sum(other < rank and not good for other, good in pairs) for rank, wanted in pairs if wanted]


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
def test_gradients_of_rank_losses_go_to_relevant_items(
    loss: Callable[[Tensor, Tensor], Tensor], term: Callable[[float], float]
) -> None:
    """With the ranks among the relevant held still, against differences of the term."""
    ranks = torch.tensor([6.0, 2.0, 1.0, 3.0, 5.0, 4.0], dtype=torch.float64, requires_grad=True)
    relevant = torch.tensor([True, True, False, False, True, False])
    (slope,) = torch.autograd.grad(loss(ranks, relevant), ranks)
    expected, step = [], 1e-6
    for count, wanted in zip([3, 1, 0, 0, 3, 0], relevant.tolist(), strict=True):
        # from below, because a count of 3 is where recall_loss(k=3) has its bend
        expected.append((term(count) - term(count - step)) / step / 3 if wanted else 0.0)
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_recall_loss_gives_up_items_far_behind() -> None:
    ranks = torch.tensor([4.0, 1.0, 2.0, 3.0], requires_grad=True)
    loss = recall_loss(ranks, torch.tensor([1, 0, 0, 0]), k=2)
    (slope,) = torch.autograd.grad(loss, ranks)
    assert loss.item() == 1 and not slope.any()


def test_recall_loss_of_1_is_one_minus_the_share_in_front() -> None:
    ranks, relevant = Ranking()(draw(20, 6)), draw(20, 6, seed=1) > 0
    relevant[:, 0] = True
    one = torch.zeros_like(relevant)
    one[:, 0] = True
    assert torch.equal(recall_loss(ranks, one, k=1), 1 - recall_at(ranks, one, k=1))
    assert (recall_loss(ranks, relevant, k=1) >= 1 - recall_at(ranks, relevant, k=1)).all()


def test_recall_at() -> None:
    ranks, relevant = Ranking()(draw(30, 8)), draw(30, 8, seed=1) > 1
    for k in (1, 3, 8):
        expected = [
            any(rank <= k and wanted for rank, wanted in zip(*row, strict=True))
            for row in zip(ranks.tolist(), relevant.tolist(), strict=True)
        ]
        assert recall_at(ranks, relevant, k=k).tolist() == [float(value) for value in expected]
        assert torch.equal(recall_at(ranks, relevant.double(), k=k), recall_at(ranks, relevant, k=k))


def test_hamming() -> None:
    z = (draw(3, 4, 5) > 0).double().requires_grad_()
    target = draw(4, 5, seed=1) > 0
    assert torch.equal(hamming(z, target), (z != target).sum(-1).double())
    assert torch.equal(hamming(z, target, dims=2), (z != target).sum((-2, -1)).double())
    (slope,) = torch.autograd.grad(hamming(z, target).sum(), z)
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


def test_regret_calls_the_solver_once_and_only_without_the_best() -> None:
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


def test_regret_is_unknown_where_there_is_no_best() -> None:
    solver, cost = TopK(1, on_failure="mask"), draw(3, 4)
    cost[1, 2] = torch.nan
    z = TopK(1)(draw(3, 4, seed=1))
    values = regret(z, cost, solver=solver)
    assert values.isnan().tolist() == [False, True, False]
    known = torch.tensor([0, 2])
    expected = normalized_regret(z[known], cost[known], solver=solver)
    torch.testing.assert_close(normalized_regret(z, cost, solver=solver), expected)


def test_answers_without_numbers_are_not_taken_for_perfect() -> None:
    z, cost = torch.tensor([[torch.nan, 1, 0], [1, 0, 0]]), torch.tensor([[1.0, 2, 3], [3, 2, 1]])
    assert normalized_regret(z, cost, solver=TopK(1)).isnan()


@pytest.mark.parametrize("empty", ["worthless", "unsolved", "no instance"])
def test_regret_without_a_unit_is_refused(empty: str) -> None:
    cost = {"worthless": torch.zeros(2, 3), "unsolved": torch.full((2, 3), torch.nan), "no instance": torch.zeros(0, 3)}
    z = torch.zeros_like(cost[empty])
    with pytest.raises(DataError, match=r"sum to 0.*use regret\(\)"):
        normalized_regret(z, cost[empty], solver=TopK(1, on_failure="mask"))


def test_errors() -> None:
    with pytest.raises(ShapeError, match="hamming got answers"):
        hamming(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ShapeError, match="hamming got answers"):
        hamming(torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="regret got answers"):
        regret(torch.zeros(2, 3), torch.zeros(2, 3), solver=TopK(1), best=torch.zeros(2, 1))
    with pytest.raises(ShapeError, match="recall_at got answers"):
        recall_at(torch.zeros(2, 3), torch.zeros(4, 3), k=1)
    with pytest.raises(OptionError, match="k of 1 or more"):
        recall_loss(torch.ones(3), torch.ones(3), k=0)


def test_answers_that_are_true_or_false_are_counted() -> None:
    z, target = torch.tensor([[True, False], [True, True]]), torch.tensor([True, True])
    assert hamming(z, target).tolist() == [1.0, 0.0]

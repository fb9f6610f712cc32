"""Half precision and extreme numbers: solutions and gradients agree with single precision."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.discrete import (
    AIMLE,
    IMLE,
    TSP,
    ArgMax,
    FenchelYoung,
    GraphMatching,
    GraphPath,
    GridPath,
    Gumbel,
    GumbelSoftmax,
    IntegerProgram,
    Knapsack,
    KSubset,
    PlackettLuce,
    RandomSpanningTree,
    Ranking,
    ReinMax,
    SoftSub,
    SpanningTree,
    TopK,
)
from setgrad.discrete.estimators import PerInstanceRule, PublishedRule, ReferenceCodeRule, StepRule
from setgrad.errors import OptionError, ShapeError, SolverError
from tests.discrete.estimators import CASES, Case, N
from tests.discrete.oracles import draws

HALVES = [torch.float16, torch.bfloat16]
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)


def pulled(layer: torch.nn.Module, theta: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    leaf = theta.detach().clone().requires_grad_()
    z = layer(leaf)
    (grad,) = torch.autograd.grad((z * slope.to(z.dtype)).sum(), leaf)
    return z.detach(), grad


@halves
@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_is_single_precision_rounded(case: Case, dtype: torch.dtype) -> None:
    # Large logits: half precision has no digits left for noise.
    theta, slope = (20 * draws(5, N, dtype=torch.float32)).to(dtype), draws(5, N, seed=1).to(dtype)
    z, grad = pulled(case.build(), theta, slope)
    truth, expected = pulled(case.build(), theta.float(), slope.float())
    assert z.dtype == grad.dtype == dtype
    close: dict[str, Any] = {"rtol": 2 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps}
    torch.testing.assert_close(z.float(), truth, **close)
    torch.testing.assert_close(grad.float(), expected, **close)


@halves
@pytest.mark.parametrize("make", [lambda **o: IMLE(ArgMax(), noise=Gumbel(), **o), ReinMax, GumbelSoftmax])
def test_noise_does_not_round_to_ties(make: object, dtype: torch.dtype) -> None:
    # Ties go to the lower index; one in eight bfloat16 sums near 100 would be a tie.
    draws_ = 4000
    layer = make(samples=draws_, generator=torch.Generator().manual_seed(0))  # type: ignore[operator]
    first = (layer(torch.full((2,), 100.0, dtype=dtype))[:, 0] > 0.5).double().mean()
    assert abs(first - 0.5) < 4 * 0.5 / draws_**0.5


@halves
def test_fenchel_young_loss_does_not_overflow(dtype: torch.dtype) -> None:
    theta = torch.full((400,), 300.0, dtype=dtype)
    loss = FenchelYoung(TopK(300), noise=None)(theta, TopK(300)(theta))
    assert loss == 0


@pytest.mark.parametrize("mode", [PerInstanceRule(), PublishedRule(), ReferenceCodeRule()], ids=str)
def test_large_theta_in_half_precision(mode: StepRule) -> None:
    theta, slope = (30 * draws(16, 600)).half(), (0.02 * draws(16, 600, seed=1)).half()
    actual = [
        pulled(AIMLE(TopK(2), noise=None, mode=mode, alpha=0.5), theta.to(dtype), slope)[1].double()
        for dtype in (torch.float16, torch.float32)
    ]
    assert actual[1].any()
    torch.testing.assert_close(*actual, rtol=2e-3, atol=1e-6)


@halves
@pytest.mark.parametrize("mode", [PerInstanceRule(), PublishedRule(), ReferenceCodeRule()], ids=str)
def test_state_adapts_in_a_half_precision_model(mode: StepRule, dtype: torch.dtype) -> None:
    theta, slope = draws(5, N).to(dtype), draws(5, N, seed=1)
    actual: list[AIMLE] = []
    for layer in (AIMLE(TopK(2), noise=None, mode=mode, alpha=0.9, rate=1e-4, target=3.0) for _ in range(2)):
        actual.append(layer.to(dtype) if actual else layer)
        for _ in range(5):
            pulled(layer, theta, slope)
    assert actual[0].alpha > 0.9
    assert actual[0].alpha == actual[1].alpha
    assert actual[1].average.dtype == torch.float32


@halves
def test_ranks_beyond_a_dtype_raise(dtype: torch.dtype) -> None:
    most = {torch.float16: 2048, torch.bfloat16: 256}[dtype]
    assert Ranking()(torch.zeros(most, dtype=dtype)).double().unique().numel() == most
    with pytest.raises(ShapeError, match=r"use theta.float\(\)"):
        Ranking()(torch.zeros(most + 1, dtype=dtype))


@pytest.mark.parametrize("size", [1e30, 3e38])
def test_sums_of_very_large_numbers(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    signs = torch.randn(20, 5, 5, generator=generator).sign()
    for solver in (TSP(), TSP(exact_up_to=0)):
        z = solver(size * signs)
        assert (z.sum(-1) == 2).all()
        assert torch.equal(z, solver(signs))
    assert torch.equal(SpanningTree()(size * signs), SpanningTree()(signs))
    costs, tame = torch.where(signs > 0, size, 1.0), torch.where(signs > 0, 1e4, 1.0)
    assert torch.equal(GridPath()(costs), GridPath()(tame))
    assert torch.equal(GridPath()(torch.full((5, 5), size)), torch.eye(5))
    for edges in ([(0, 1), (1, 2), (0, 3), (3, 2)], [(0, 1), (1, 2), (0, 3), (3, 2), (2, 0)]):
        count, path = len(edges), GraphPath(edges, 0, 2)
        assert torch.equal(path(torch.full((count,), size)), path(torch.ones(count)))
        assert torch.equal(path(costs.flatten(1)[:, :count]), path(tame.flatten(1)[:, :count]))


@pytest.mark.parametrize("rest", [[1.0, 3.0], [1.5, 3.0]])
@pytest.mark.parametrize("heavy", [1e13, 1e19, 1e30])
def test_weights_too_large_for_integers(heavy: float, rest: list[float]) -> None:
    assert Knapsack([heavy, *rest], 3)(torch.tensor([5.0, 1.0, 2.0])).tolist() == [0, 0, 1]
    if heavy < 1e15:  # HiGHS treats larger budgets as infinity
        assert Knapsack([heavy, *rest], heavy)(torch.tensor([5.0, 1.0, 2.0])).tolist() == [1, 0, 0]


MASKS = [-1e5, -1e9, -1e20, -1e30, torch.finfo(torch.float32).min]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("k", [0, 1, 20, 60, 100])
def test_subsets_with_a_large_negative_mask(mask: float, k: int) -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    truth = KSubset(logits[:, :100].double(), k)
    logits[:, 100:] = mask
    logits.requires_grad_()
    q = KSubset(logits, k)
    torch.testing.assert_close(q.marginals[:, :100].double(), truth.marginals, rtol=0, atol=1e-5)
    assert not q.marginals[:, 100:].any()
    torch.testing.assert_close(q.entropy().double(), truth.entropy(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q.log_partition.double(), truth.log_partition, rtol=1e-4, atol=1e-3)
    z = q.sample(3, generator=torch.Generator().manual_seed(0))
    assert (z.sum(-1) == k).all()
    assert not z[..., 100:].any()
    q.entropy().sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("mask", MASKS)
def test_rankings_and_trees_with_a_large_negative_mask(mask: float) -> None:
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0))
    truth = PlackettLuce(logits[:5], 3)
    logits[5] = mask
    q = PlackettLuce(logits, 3)
    torch.testing.assert_close(q.entropy(), truth.entropy())
    torch.testing.assert_close(q.marginals[:5], truth.marginals)
    torch.testing.assert_close(q.log_prob(q.mode), truth.log_prob(truth.mode))
    edges = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    edges[0, 1] = -torch.inf
    trees = RandomSpanningTree(edges)
    edges = torch.where(edges.isinf(), mask, edges)
    torch.testing.assert_close(RandomSpanningTree(edges).marginals, trees.marginals)
    torch.testing.assert_close(RandomSpanningTree(edges).entropy(), trees.entropy())


def test_fully_masked_instance_raises() -> None:
    lowest = torch.finfo(torch.float32).min
    with pytest.raises(OptionError, match="lower k"):
        KSubset(torch.tensor([0.0, lowest]), 2)
    with pytest.raises(OptionError, match="do not connect"):
        RandomSpanningTree(torch.full((2, 2), lowest))


@pytest.mark.parametrize("gap", [10.0, 50.0, 200.0, 1e4])
def test_soft_sub_never_picks_an_item_twice(gap: float) -> None:
    theta = torch.tensor([gap, 0.0, 1.0], requires_grad=True)
    soft = SoftSub(2, noise=None, temperature=0.1)(theta)
    torch.testing.assert_close(soft, torch.tensor([1.0, 0.0, 1.0]), rtol=0, atol=1e-4)
    soft[1].backward()
    assert theta.grad.isfinite().all()
    assert theta.grad[1] > 0


def test_relaxed_top_k_of_extreme_logits() -> None:
    theta = 5 * draws(20, N)
    logits, total = theta, torch.zeros_like(theta)
    for _ in range(3):
        picked = (logits / 2).softmax(-1)
        total, logits = total + picked, logits + (1 - picked).log()
    torch.testing.assert_close(SoftSub(3, noise=None, temperature=2.0)(theta), total)


@pytest.mark.parametrize("size", [1e-30, 1e-25, 1e20, 1e35])
@pytest.mark.parametrize(
    "make", [lambda: AIMLE(TopK(2), noise=None), lambda: IMLE(TopK(2), lam=0.5, noise=None, relative=True)]
)
def test_relative_steps_do_not_depend_on_the_scale_of_theta(make: Callable[[], torch.nn.Module], size: float) -> None:
    theta, slope = draws(3, 6).float(), draws(3, 6, seed=1).float()
    expected = pulled(make(), theta, slope)[1]
    torch.testing.assert_close(size * pulled(make(), size * theta, slope)[1], expected)


def test_matchings_of_very_large_scores() -> None:
    solver = GraphMatching(2, 2, edges_a=[(0, 1)], edges_b=[(0, 1), (1, 0)])
    theta = solver.pack(torch.tensor([[2e38, 3e38], [3e38, 2e38]]), torch.zeros(1, 2))
    assert solver.unpack(solver(theta))[0].tolist() == [[0, 1], [1, 0]]


def test_integers_beyond_a_dtype_raise() -> None:
    program = IntegerProgram([[1.0, 0.0]], upper=[259.0], max_value=259.0)
    assert program(torch.tensor([1.0, -1.0])).tolist() == [259, 0]
    with pytest.raises(SolverError, match="bfloat16 cannot hold; give theta as float32"):
        program(torch.tensor([1.0, -1.0]).bfloat16())


def test_single_precision_budgets_allow_for_rounding() -> None:
    assert Knapsack([0.1, 0.2, 0.6], budget=torch.tensor(0.9))(torch.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(OptionError, match="divide weights and budget"):
        Knapsack(torch.tensor([2**60, 7]), budget=2**60)

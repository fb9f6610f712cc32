"""Distributions that are too large to list: closed forms, other algorithms, and memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from setgrad.discrete.distributions import KSubset, PlackettLuce, RandomSpanningTree
from setgrad.errors import OptionError

N, K = 10_000, 100


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequential_log_partitions(logits: np.ndarray, k: int) -> np.ndarray:
    """Log-partitions of 0 to k items, one item after the other, in log space."""
    logs = np.full(k + 1, -np.inf)
    logs[0] = 0
    for logit in logits:
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + logit)
    return logs


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_k_subset_against_a_sequential_sum(scale: float) -> None:
    logits = scale * draw(N)
    q = KSubset(logits, K)
    expected = sequential_log_partitions(logits.numpy(), K)[K]
    assert q.log_partition.item() == pytest.approx(expected, rel=1e-11)
    # The sums with and without an item give its probability.
    for item in (0, int(logits.argmax()), int(logits.topk(K).indices[-1])):
        others = sequential_log_partitions(np.delete(logits.numpy(), item), K)[K - 1]
        assert q.marginals[item].item() == pytest.approx(
            math.exp(others + logits[item].item() - expected), rel=1e-7, abs=1e-12
        )
    assert q.marginals.sum().item() == pytest.approx(K, rel=1e-11)


@pytest.mark.parametrize("k", [0, 1, K, N - 1, N])
def test_k_subset_of_equal_items(k: int) -> None:
    """Ties: binomial counts and equal marginals, with a common shift far outside the range of exp."""
    q = KSubset(torch.full((N,), 1e4, dtype=torch.float64), k)
    ways = math.lgamma(N + 1) - math.lgamma(k + 1) - math.lgamma(N - k + 1)
    assert q.entropy().item() == pytest.approx(ways, rel=1e-9, abs=1e-7)
    assert q.log_prob(q.mode).item() == pytest.approx(-ways, rel=1e-9, abs=1e-7)
    torch.testing.assert_close(q.marginals, torch.full((N,), k / N, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_k_subset_in_single_precision() -> None:
    logits = 3 * draw(N)
    single, double = KSubset(logits.float(), K), KSubset(logits.float().double(), K)
    torch.testing.assert_close(single.marginals.double(), double.marginals, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=1e-5, atol=1e-3)


def test_k_subset_samples_have_k_items_and_the_right_means() -> None:
    q, samples = KSubset(draw(1000), K), 2000
    drawn = q.sample(samples, generator=torch.Generator().manual_seed(0))
    assert set(drawn.sum(-1).tolist()) == {float(K)}
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    error = (q.marginals * (1 - q.marginals) / samples).sqrt()
    assert ((drawn.mean(0) - q.marginals).abs() / error).square().mean().item() == pytest.approx(1, abs=0.2)


def test_gumbel_top_k_is_another_distribution() -> None:
    """Drawing without replacement chooses a likely item less often."""
    logits = torch.tensor([3.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    ranks = PlackettLuce(logits, length=2)
    placed = (ranks.sample(20_000, generator=torch.Generator().manual_seed(0)) <= 2).double().mean(0)
    assert abs(placed[0] - KSubset(logits, 2).marginals[0]) > 0.02


class Largest(TorchDispatchMode):
    """Record the number of entries of the largest tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                # Count memory: an expanded view has many entries and few numbers.
                self.entries = max(self.entries, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


QUANTITIES: dict[str, Callable[[KSubset], Tensor]] = {
    "log_partition": lambda q: q.log_partition,
    "marginals": lambda q: q.marginals,
    "entropy": lambda q: q.entropy(),
    "log_prob": lambda q: q.log_prob(q.mode),
    "kl": lambda q: q.kl(KSubset(torch.zeros_like(q.logits), q.k)),
}


@pytest.mark.parametrize("name", QUANTITIES)
def test_k_subset_uses_linear_memory(name: str) -> None:
    """Nothing grows with n times k: the largest tensor has 2 numbers for each item, and the graph a few tens."""
    logits = draw(N).requires_grad_()
    saved_bytes: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        saved_bytes[storage.data_ptr()] = storage.nbytes()
        return saved

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        value = QUANTITIES[name](KSubset(logits, K))
        numbers = sum(saved_bytes.values()) / 8
        value.sum().backward()
    assert largest.entries <= 2 * N + 2
    assert numbers <= 80 * N < N * K


def test_k_subset_samples_with_linear_memory() -> None:
    with Largest() as largest:
        KSubset(draw(N), K).sample(3, generator=torch.Generator().manual_seed(0))
    assert largest.entries <= 3 * (2 * N + 2)


def test_k_subset_of_a_large_batch() -> None:
    logits = draw(50, 4, 20)
    q = KSubset(logits, 10)
    for i in (0, 49):
        for j in (0, 3):
            assert q.log_partition[i, j].item() == pytest.approx(
                sequential_log_partitions(logits[i, j].numpy(), 10)[10], rel=1e-12
            )


def test_tree_counts_of_complete_graphs_and_grids() -> None:
    q = RandomSpanningTree(torch.zeros(40, 40, dtype=torch.float64))
    assert q.log_partition.item() == pytest.approx(38 * math.log(40), rel=1e-12)
    places = torch.cartesian_prod(torch.arange(5), torch.arange(6)).double()
    edges = torch.cdist(places, places, p=1) == 1
    grid = RandomSpanningTree(torch.where(edges, 0.0, -torch.inf).double())
    laplacian = torch.diag(edges.sum(-1)).double() - edges.double()
    assert grid.log_partition.item() == pytest.approx(torch.linalg.slogdet(laplacian[1:, 1:])[1].item(), rel=1e-12)
    assert grid.marginals.sum().item() == pytest.approx(2 * 29, rel=1e-12)


def test_tree_of_extreme_weights_is_the_maximum_tree() -> None:
    """Where a determinant by LU has lost all digits, the samples equal the mode."""
    logits = 1e4 * draw(30, 30)
    q = RandomSpanningTree(logits)
    score = (logits * q.mode).sum().item()
    assert q.log_partition.item() == pytest.approx(score, rel=1e-12)
    torch.testing.assert_close(q.marginals, q.mode)
    assert torch.equal(q.sample(generator=torch.Generator().manual_seed(0))[0], q.mode)


def test_tree_samples_are_trees_with_the_right_means() -> None:
    q, samples = RandomSpanningTree(draw(2, 12, 12)), 1000
    drawn = q.sample(samples, generator=torch.Generator().manual_seed(0))
    assert q.log_prob(drawn).isfinite().all()
    means = q.marginals
    edges = torch.ones(12, 12).triu(1).bool() & (means > 0.01)
    error = (means * (1 - means) / samples).sqrt()
    assert ((drawn.mean(0) - means) / error)[edges].square().mean().item() == pytest.approx(1, abs=0.35)


def test_long_rankings() -> None:
    logits = 10 * draw(2000)
    q = PlackettLuce(logits)
    drawn = q.sample(2, generator=torch.Generator().manual_seed(0))
    order = drawn.argsort(-1)
    taken = logits[order]
    expected = (taken - taken.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)
    torch.testing.assert_close(q.log_prob(drawn), expected, rtol=1e-11, atol=1e-8)
    assert q.marginals.sum().item() == pytest.approx(2000 * 2001 / 2, rel=1e-12)
    for quantity in (q.entropy, lambda: q.kl(q), lambda: PlackettLuce(logits, 5).marginals):
        with pytest.raises(OptionError, match="estimate it as a mean over sample"):
            quantity()

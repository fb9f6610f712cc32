"""Small distributions with a list of all their points and probabilities, which the tests compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from setgrad.discrete.distributions import Categorical, Distribution, KSubset, PlackettLuce, RandomSpanningTree
from tests.discrete.oracles import subsets
from tests.discrete.problems import trees


@dataclass(frozen=True, eq=False)
class DistributionCase:
    """A distribution that is small enough to list all its points."""

    name: str
    build: Callable[[Tensor], Distribution]
    points: Tensor  # (p, *instance), float64
    oracle: Callable[[Tensor, Tensor], Tensor]  # logits (*batch, *instance), points -> (p, *batch)
    excluded: tuple[int, ...] | None = None  # an entry that may be minus infinity

    def __str__(self) -> str:
        return self.name

    @property
    def shape(self) -> torch.Size:
        return self.points.shape[1:]

    @property
    def dims(self) -> int:
        return len(self.shape)

    def draw(self, *batch: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return scale * torch.randn(*batch, *self.shape, generator=generator, dtype=torch.float64)

    def exclude(self, logits: Tensor) -> Tensor:
        """Minus infinity at one entry, finite logits and their gradients elsewhere."""
        assert self.excluded is not None
        out = torch.zeros(self.shape, dtype=torch.bool)
        out[self.excluded] = True
        return torch.where(out, -torch.inf, logits)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probability of every point, (p, *batch)."""
        points = self.points.reshape(-1, *(1,) * (logits.ndim - self.dims), *self.shape)
        return self.oracle(logits, points)

    def weigh(self, probs: Tensor) -> Tensor:
        """The mean of z for probabilities (p, *batch)."""
        return torch.tensordot(probs.movedim(0, -1), self.points, 1)


def linear(dims: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Probability proportional to exp <logits, z>."""

    def log_probs(logits: Tensor, points: Tensor) -> Tensor:
        scores = torch.where(points == 1, logits, 0).flatten(-dims).sum(-1)
        return scores - scores.logsumexp(0)

    return log_probs


def drawn(places: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Items drawn without replacement, place by place, as in the definition."""

    def log_probs(logits: Tensor, points: Tensor) -> Tensor:
        total = torch.zeros(torch.broadcast_shapes(points.shape, logits.shape)[:-1], dtype=logits.dtype)
        for place in range(1, places + 1):
            left = torch.where(points >= place, logits, -torch.inf).logsumexp(-1)
            total = total + torch.where(points == place, logits, 0).sum(-1) - left
        return total

    return log_probs


def rankings(n: int, places: int) -> Tensor:
    """All ways to fill the places; items that are not placed have the rank places + 1."""
    rows = {tuple(min(rank, places + 1) for rank in row) for row in itertools.permutations(range(1, n + 1))}
    return torch.tensor(sorted(rows), dtype=torch.float64)


def k_subset(n: int, k: int) -> DistributionCase:
    excluded = (n - 2,) if k < n else None
    return DistributionCase(f"{k} of {n}", lambda logits: KSubset(logits, k), subsets(n, k), linear(1), excluded)


def plackett_luce(n: int, places: int | None) -> DistributionCase:
    filled = n if places is None else places
    return DistributionCase(
        f"{places} places of {n}",
        lambda logits: PlackettLuce(logits, places),
        rankings(n, filled),
        drawn(filled),
        (1,) if filled < n else None,
    )


def tree(n: int) -> DistributionCase:
    return DistributionCase(f"tree of {n}", RandomSpanningTree, trees(n), linear(2), (n - 1, 1) if n > 2 else None)


DISTRIBUTIONS = [
    DistributionCase("one of 5", Categorical, subsets(5, 1), linear(1), (3,)),
    DistributionCase("one of 1", Categorical, subsets(1, 1), linear(1)),
    k_subset(6, 0),
    k_subset(6, 1),
    k_subset(7, 3),
    k_subset(5, 4),
    k_subset(5, 5),
    k_subset(1, 1),
    plackett_luce(4, None),
    plackett_luce(4, 3),
    plackett_luce(5, 2),
    plackett_luce(3, 0),
    tree(1),
    tree(2),
    tree(3),
    tree(4),
]

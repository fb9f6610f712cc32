"""Classifiers of bags: features of each instance, one or two poolings, a logit from each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.encoders import ABMIL, DSMIL, UMBC, DeepSets, MaxPool, SetTransformer, TransformerHead
from setgrad.sets import Sets

SLOTS = 8


@final
class Classifier(nn.Module):
    """Logits `(b, streams)`. The loss is the mean over streams, and so is the probability (paper 001, eq. 18 to 20)."""

    def __init__(self, phi: nn.Module, pools: Sequence[nn.Module]) -> None:
        super().__init__()
        self.phi, self.pools = phi, nn.ModuleList(pools)

    def forward(self, bags: Sets) -> Tensor:
        """Every pooling sees the same features."""
        seen = bags.with_values(self.phi(bags.values))
        return torch.cat([pool(seen) for pool in self.pools], 1)


@final
class _BothStreams(nn.Module):
    """DSMIL with a loss on either stream, as it was published."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pool = DSMIL(dim, hidden=dim)

    def forward(self, bags: Sets) -> Tensor:
        return torch.cat(self.pool.streams(bags), 1)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each stream."""
    return binary_cross_entropy_with_logits(logits, labels[:, None].expand_as(logits))


def probability(logits: Tensor) -> Tensor:
    """Mean over the streams, `(b,)`."""
    return logits.sigmoid().mean(1)


def _last(count: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(1), nn.Linear(count, 1))


def _umbc(dim: int, *, transformer: bool) -> UMBC:
    head = nn.Sequential(TransformerHead(dim), _last(dim)) if transformer else _last(SLOTS * dim)
    return UMBC(dim, dim=dim, slots=SLOTS, head=head)


def _best(dim: int) -> nn.Module:
    return MaxPool(dim, nn.Linear(dim, 1))


# From the dim of the features to the poolings.
POOLS: dict[str, Callable[[int], list[nn.Module]]] = {
    "mean": lambda dim: [DeepSets(dim, nn.Identity(), pooling="mean", head=_last(dim))],
    "max": lambda dim: [MaxPool(dim, nn.Identity(), head=_last(dim))],
    "abmil": lambda dim: [ABMIL(dim, hidden=dim, head=_last(dim))],
    "dsmil": lambda dim: [_BothStreams(dim)],
    "set-transformer": lambda dim: [SetTransformer(dim, dim, head=_last(dim))],
    "umbc linear": lambda dim: [_umbc(dim, transformer=False)],
    "umbc transformer": lambda dim: [_umbc(dim, transformer=True)],
    "umbc two streams": lambda dim: [_best(dim), _umbc(dim, transformer=True)],
}

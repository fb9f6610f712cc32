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

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = DSMIL(width, hidden=width)

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


def _umbc(width: int, *, transformer: bool) -> UMBC:
    head = nn.Sequential(TransformerHead(width), _last(width)) if transformer else _last(SLOTS * width)
    return UMBC(width, dim=width, slots=SLOTS, head=head)


def _best(width: int) -> nn.Module:
    return MaxPool(width, nn.Linear(width, 1))


# From the width of the features to the poolings.
POOLS: dict[str, Callable[[int], list[nn.Module]]] = {
    "mean": lambda width: [DeepSets(width, nn.Identity(), pooling="mean", head=_last(width))],
    "max": lambda width: [MaxPool(width, nn.Identity(), head=_last(width))],
    "abmil": lambda width: [ABMIL(width, hidden=width, head=_last(width))],
    "dsmil": lambda width: [_BothStreams(width)],
    "set-transformer": lambda width: [SetTransformer(width, width, head=_last(width))],
    "umbc linear": lambda width: [_umbc(width, transformer=False)],
    "umbc transformer": lambda width: [_umbc(width, transformer=True)],
    "umbc two streams": lambda width: [_best(width), _umbc(width, transformer=True)],
}

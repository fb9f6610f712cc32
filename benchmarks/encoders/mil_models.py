"""Classifiers of bags: features of each instance, one or two poolings, a logit from each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.encoders import ABMIL, DSMIL, UMBC, DeepSets, MaxPool, SetTransformer, TransformerHead
from setgrad.encoders.activations import ACTIVATIONS, Activation, Softmax
from setgrad.sets import Sets

SLOTS = 8


@final
class Classifier(nn.Module):
    """Returns logits `(b, streams)`; loss and probability are means over streams (arXiv:2208.12401, eq. 18 to 20)."""

    def __init__(self, phi: nn.Module, pools: Sequence[nn.Module]) -> None:
        super().__init__()
        self.phi, self.pools = phi, nn.ModuleList(pools)

    def forward(self, bags: Sets) -> Tensor:
        """Return the logits; every pooling gets the same features."""
        features = bags.with_values(self.phi(bags.values))
        return torch.cat([pool(features) for pool in self.pools], 1)


@final
class _BothStreams(nn.Module):
    """DSMIL with a loss on either stream, as it was published."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pool = DSMIL(dim, hidden=dim)

    def forward(self, bags: Sets) -> Tensor:
        return torch.cat(self.pool.streams(bags), 1)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the streams."""
    return binary_cross_entropy_with_logits(logits, labels[:, None].expand_as(logits))


def probability(logits: Tensor) -> Tensor:
    """Return the mean probability of the streams, `(b,)`."""
    return logits.sigmoid().mean(1)


def _last(count: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(1), nn.Linear(count, 1))


def _umbc(dim: int, *, transformer: bool, activation: Activation = Softmax()) -> UMBC:  # noqa: B008 -- a frozen value
    head = nn.Sequential(TransformerHead(dim), _last(dim)) if transformer else _last(SLOTS * dim)
    return UMBC(dim, dim=dim, slots=SLOTS, activation=activation, head=head)


def _best(dim: int) -> nn.Module:
    return MaxPool(dim, nn.Linear(dim, 1))


# Poolings by name; each is built from the dimension of the features.
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


def _activated(kind: Activation, dim: int) -> list[nn.Module]:
    return [_umbc(dim, transformer=True, activation=kind)]


# UMBC with the other activations, for the table of activations.
USUAL = "umbc transformer"
ACTIVATED: dict[str, Callable[[int], list[nn.Module]]] = {
    f"{USUAL} {name}": partial(_activated, kind) for name, kind in ACTIVATIONS.items() if kind != Softmax()
}

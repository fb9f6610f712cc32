"""The encoders of the clustering experiment, each followed by a decoder that predicts a mixture of Gaussians.

All see a point through the same two layers. Encoders of the library that can read a set in chunks do so by their state;
the others get the mean of the codes of the chunks, as in Willette et al., 2023 (arXiv:2208.12401, appendix E).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.encoders.mixtures import COMPONENTS, NUMBERS, Mixture
from setgrad import encoders
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.encoders.attention import SelfAttention
from setgrad.sets import Layout, Sets

HEADS = 4
# The suffix of an activation that is not divided by the weight of the set.
SUM = "-sum"


@final
@dataclass(frozen=True)
class Sizes:
    """Dimensions of points and codes, and the number of slots."""

    points: int = 2
    dim: int = 128
    slots: int = 64


@final
class Clusterer(nn.Module):
    """Maps sets of points to a code, and the code to the five numbers of each component."""

    def __init__(self, encoder: encoders.SetEncoder, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, sets: Sets) -> Tensor:
        """Return the numbers `(b, components, 5)` of whole sets."""
        return self.decoder(self.code(sets))

    def code(self, sets: Sets) -> Tensor:
        """Return the codes of whole sets."""
        if isinstance(self.encoder, encoders.MergeableEncoder):
            encoder = self.encoder
            return encoder.finish(encoder.read(sets, unit_weights(sets), encoder.queries(), None))
        return self.encoder(sets)

    def mixture(self, code: Tensor) -> Mixture:
        """Return the mixtures of codes."""
        return Mixture.from_numbers(self.decoder(code))


@final
class CodeAttention(nn.Module):
    """Self-attention among the vectors of a code."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block, self.norm = SelfAttention(dim, HEADS), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors after attention."""
        return self.norm(self.block(x, None))


def _phi(sizes: Sizes) -> nn.Module:
    dim = sizes.dim
    return nn.Sequential(nn.Linear(sizes.points, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())


def _flat(code: int, dim: int) -> nn.Module:
    """Return a decoder of codes that are one vector of any scale."""
    return nn.Sequential(
        nn.Flatten(1),
        nn.LayerNorm(code),
        nn.Linear(code, 2 * dim),
        nn.ReLU(),
        nn.Linear(2 * dim, 2 * dim),
        nn.ReLU(),
        nn.Linear(2 * dim, COMPONENTS * NUMBERS),
        nn.Unflatten(1, (COMPONENTS, NUMBERS)),
    )


def _umbc(sizes: Sizes, activation: str, head: nn.Module) -> encoders.UMBC:
    name = activation.removesuffix(SUM)
    return encoders.UMBC(
        sizes.points,
        sizes.dim,
        sizes.slots,
        heads=HEADS,
        activation=ACTIVATIONS[name],
        normalize=name == activation,
        phi=_phi(sizes),
        head=head,
    )


def umbc_transformer(sizes: Sizes, activation: str = "softmax") -> Clusterer:
    """Return UMBC followed by a Set Transformer on its slots."""
    head = encoders.TransformerHead(sizes.dim, outputs=COMPONENTS, layers=2, decode=1, heads=HEADS)
    return Clusterer(_umbc(sizes, activation, head), nn.Linear(sizes.dim, NUMBERS))


def _deep_umbc(sizes: Sizes, activation: str) -> Clusterer:
    """Return UMBC with three passes and a Set Transformer on fewer slots with one block less, to save time."""
    encoder = encoders.DeepUMBC(
        sizes.points,
        sizes.dim,
        max(1, sizes.slots // 2),
        passes=3,
        heads=HEADS,
        activation=ACTIVATIONS[activation],
        phi=_phi(sizes),
        head=encoders.TransformerHead(sizes.dim, outputs=COMPONENTS, layers=1, decode=1, heads=HEADS),
    )
    return Clusterer(encoder, nn.Linear(sizes.dim, NUMBERS))


def _umbc_fspool(sizes: Sizes, activation: str) -> Clusterer:
    head = encoders.OnSlots(encoders.FSPool(sizes.dim))
    return Clusterer(_umbc(sizes, activation, head), _flat(sizes.dim, sizes.dim))


def _umbc_diff_em(sizes: Sizes, activation: str) -> Clusterer:
    head = encoders.OnSlots(encoders.DiffEM(sizes.dim, components=COMPONENTS, mixtures=2, steps=1))
    return Clusterer(_umbc(sizes, activation, head), _flat(2 * COMPONENTS * (1 + 2 * sizes.dim), sizes.dim))


def _deep_sets(sizes: Sizes, _: str) -> Clusterer:
    return Clusterer(encoders.DeepSets(sizes.points, _phi(sizes), pooling="mean"), _flat(sizes.dim, sizes.dim))


def _max_pool(sizes: Sizes, _: str) -> Clusterer:
    return Clusterer(encoders.MaxPool(sizes.points, _phi(sizes)), _flat(sizes.dim, sizes.dim))


def _sse(sizes: Sizes, _: str) -> Clusterer:
    encoder = encoders.SSE(sizes.points, sizes.dim, sizes.slots, heads=HEADS, phi=_phi(sizes))
    return Clusterer(encoder, _flat(sizes.slots * sizes.dim, sizes.dim))


def _hierarchical(sizes: Sizes, _: str) -> Clusterer:
    levels = [(sizes.slots, sizes.dim), (COMPONENTS, sizes.dim)]
    encoder = encoders.hierarchical_sse(sizes.points, levels, heads=HEADS, phi=_phi(sizes))
    return Clusterer(encoder, _flat(COMPONENTS * sizes.dim, sizes.dim))


def _abmil(sizes: Sizes, _: str) -> Clusterer:
    encoder = encoders.ABMIL(sizes.points, _phi(sizes), hidden=sizes.dim, branches=2 * COMPONENTS)
    return Clusterer(encoder, _flat(2 * COMPONENTS * sizes.dim, sizes.dim))


def _dsmil(sizes: Sizes, _: str) -> Clusterer:
    classes = COMPONENTS * NUMBERS
    encoder = encoders.DSMIL(sizes.points, _phi(sizes), classes=classes, hidden=sizes.dim)
    return Clusterer(encoder, _flat(classes, sizes.dim))


def _set_transformer(sizes: Sizes, _: str) -> Clusterer:
    encoder = encoders.SetTransformer(
        sizes.points, sizes.dim, outputs=COMPONENTS, layers=2, decode=0, heads=HEADS, slots=16, phi=_phi(sizes)
    )
    return Clusterer(encoder, nn.Sequential(CodeAttention(sizes.dim), nn.Linear(sizes.dim, NUMBERS)))


def _fspool(sizes: Sizes, _: str) -> Clusterer:
    return Clusterer(encoders.FSPool(sizes.points, _phi(sizes)), _flat(sizes.dim, sizes.dim))


def _diff_em(sizes: Sizes, _: str) -> Clusterer:
    encoder = encoders.DiffEM(sizes.points, _phi(sizes), components=COMPONENTS, mixtures=2, steps=3)
    return Clusterer(encoder, _flat(2 * COMPONENTS * (1 + 2 * sizes.dim), sizes.dim))


@final
@dataclass(frozen=True)
class Contender:
    """An encoder: its constructor, its name in the tables, the published NLL, and the rough cost of a step.

    `consistent` says that chunks are read with the result of the whole set, in that many passes. Others are read whole,
    or as published: in chunks whose codes are averaged, even if several passes (0: none) would do better.
    """

    title: str
    make: Callable[[Sizes, str], Clusterer]
    consistent: bool
    published: float | None = None
    cost: float = 1.0
    passes: int = 1


CONTENDERS: dict[str, Contender] = {
    "umbc-st": Contender("UMBC + Set Transformer", umbc_transformer, True, 1.84, 3),
    "deep-umbc": Contender("UMBC in 3 passes + Set Transformer", _deep_umbc, True, None, 6, passes=3),
    "umbc-fspool": Contender("UMBC + FSPool", _umbc_fspool, True, 2.01, 2),
    "umbc-diff-em": Contender("UMBC + Diff-EM", _umbc_diff_em, True, 2.13, 2),
    "deep-sets": Contender("DeepSets", _deep_sets, True, 2.43),
    "max": Contender("DeepSets (max)", _max_pool, True),
    "sse": Contender("SSE", _sse, True, 2.13, 1.5),
    "hierarchical-sse": Contender("SSE (hierarchical)", _hierarchical, True, 2.38, 2),
    "ab-mil": Contender("AB-MIL", _abmil, True),
    "set-transformer": Contender("Set Transformer", _set_transformer, False, 11.6, 4, passes=0),
    "fspool": Contender("FSPool", _fspool, False, 3.52, 2, passes=0),
    "diff-em": Contender("Diff-EM", _diff_em, False, 5.58, 4, passes=4),
    "ds-mil": Contender("DS-MIL", _dsmil, False, None, 2, passes=2),
}


def make(name: str, sizes: Sizes, *, activation: str = "softmax", seed: int = 0) -> Clusterer:
    """Return a new model on the CPU, with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CONTENDERS[name].make(sizes, activation)


def unit_weights(sets: Sets) -> Tensor:
    """Return a weight of 1 for each item."""
    return torch.ones(sets.layout.total, device=sets.device)


def as_sets(points: Tensor) -> Sets:
    """Return sets of equal size from `(b, n, d)`."""
    return Sets(points.flatten(0, 1), _even(len(points), points.shape[1], points.device))


@lru_cache(maxsize=32)
def _even(count: int, size: int, device: torch.device) -> Layout:
    """Return the layout, which is cached so that its offsets stay on the device."""
    return Layout.from_lengths([size] * count, device)

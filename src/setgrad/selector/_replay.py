"""Steps recorded once and played again: the GPU then starts a few hundred short operations by itself.

Only where every batch looks alike: a recording knows no other sizes than those it was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from setgrad.functions import FreshNoise
from setgrad.selector._weights import Batch
from setgrad.sets import Layout

# Steps done as usual before one is recorded: libraries set themselves up in the first ones.
_WARM_UP = 3
# Recordings kept: each holds the memory of a whole step. Batches of sets that are all alike come in two sizes.
_KINDS = 4


def looks_alike(batch: Batch) -> bool:
    """Whether other batches of as many sets have the same sizes everywhere."""
    return batch.sets.layout.uniform and batch.coordinates is None


@final
class Replay:
    """Does `work` on batches; on a GPU, after the first ones of a kind, by playing it again.

    `work` must do the same operations every time, on tensors that stay where they are, and draw from the noise alone.
    """

    def __init__(self, warm_up: int = _WARM_UP) -> None:
        self.warm_up = warm_up
        self.seen: dict[tuple[int, int], int] = {}
        self.recordings: dict[tuple[int, int], _Recording] = {}

    def __call__(self, work: Callable[[Batch, FreshNoise], Tensor], batch: Batch, noise: FreshNoise) -> Tensor:
        """What `work` returns."""
        layout = batch.sets.layout
        if layout.device.type != "cuda" or not looks_alike(batch):
            return work(batch, noise)
        kind = (len(layout), layout.longest)
        count = self.seen[kind] = self.seen.get(kind, 0) + 1
        if count <= self.warm_up or (kind not in self.recordings and len(self.recordings) == _KINDS):
            return work(batch, noise)
        if kind not in self.recordings:
            self.recordings[kind] = _Recording(work, batch)
        return self.recordings[kind].play(batch, noise)


@final
class _Recording:
    """One kind of batch: places for its tensors, a generator of its own, and the operations."""

    def __init__(self, work: Callable[[Batch, FreshNoise], Tensor], batch: Batch) -> None:
        layout = batch.sets.layout
        shared = Layout.from_equal_lengths(len(layout), layout.longest, layout.device)
        self.batch = replace(
            batch,
            sets=type(batch.sets)(batch.sets.values.clone(), shared),
            subsets=type(batch.subsets)(batch.subsets.values.clone(), shared),
            weights=None if batch.weights is None else batch.weights.clone(),
        )
        noise = FreshNoise()
        self.generator = noise.generator(layout.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.device(layout.device), torch.cuda.graph(self.graph):
            self.result = work(self.batch, noise)

    def play(self, batch: Batch, noise: FreshNoise) -> Tensor:
        """Put the batch into its places, and go on in the noise where it stands."""
        self.batch.sets.values.copy_(batch.sets.values)
        self.batch.subsets.values.copy_(batch.subsets.values)
        if self.batch.weights is not None and batch.weights is not None:
            self.batch.weights.copy_(batch.weights)
        source = noise.generator(batch.sets.device)
        self.generator.manual_seed(source.initial_seed())
        self.generator.set_offset(source.get_offset())
        self.graph.replay()
        source.set_offset(self.generator.get_offset())
        return self.result.clone()

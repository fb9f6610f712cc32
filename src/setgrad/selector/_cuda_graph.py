"""Training steps replayed as CUDA graphs: the GPU then launches a few hundred short operations by itself.

Only where all batches have the same shape, because a captured graph works for the shapes it was captured with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from setgrad.functions import FreshNoise
from setgrad.selector._trainable_weights import Batch
from setgrad.sets import Layout

# Steps that run normally before one is captured, because libraries initialise themselves in the first ones.
_WARM_UP = 3
# Largest number of graphs, each of which holds the memory of a whole step. Batches of sets of one size have two shapes.
_MAX_GRAPHS = 4


def has_static_shape(batch: Batch) -> bool:
    """Return whether all batches with this number of sets have the same shapes."""
    return batch.sets.layout.uniform and batch.coordinates is None


@final
class CUDAGraphReplay:
    """Calls a function on batches; on a GPU, after the first batches of a shape, by replaying it as a CUDA graph.

    The function must run the same operations every time, on tensors that stay in place, and draw random numbers from
    the noise only.

    Args:
        warm_up: Number of batches of a shape that are computed normally.
    """

    def __init__(self, warm_up: int = _WARM_UP) -> None:
        self.warm_up = warm_up
        self.counts: dict[tuple[int, int], int] = {}
        self.graphs: dict[tuple[int, int], _CapturedStep] = {}

    def __call__(self, work: Callable[[Batch, FreshNoise], Tensor], batch: Batch, noise: FreshNoise) -> Tensor:
        """Return the result of `work`."""
        layout = batch.sets.layout
        if layout.device.type != "cuda" or not has_static_shape(batch):
            return work(batch, noise)
        shape = (len(layout), layout.longest)
        count = self.counts[shape] = self.counts.get(shape, 0) + 1
        if count <= self.warm_up or (shape not in self.graphs and len(self.graphs) == _MAX_GRAPHS):
            return work(batch, noise)
        if shape not in self.graphs:
            self.graphs[shape] = _CapturedStep(work, batch)
        return self.graphs[shape].replay(batch, noise)


@final
class _CapturedStep:
    """The captured graph for one shape of batch, with its input tensors and its random generator."""

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

    def replay(self, batch: Batch, noise: FreshNoise) -> Tensor:
        """Copy the batch to the input tensors, replay the graph, and advance the noise."""
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

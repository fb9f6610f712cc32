"""F of a set that is too large for memory, with phi="umbc": its items are encoded chunk by chunk.

The slots gather the context of V in a first pass. Given it, `encode` returns the features of all items by a second one,
for mean field, which asks for gains again and again. `ChunkedBoundFunction` keeps no features: its second pass sums the
chosen items, and given both sums the gain of every item depends on that item alone. The items themselves may stay on
disk. The graph of a chunk is not kept: the backward pass computes every chunk again, for the exact gradient, or one
random chunk of each pass, weighted by the number of chunks, so that its expectation is the exact gradient (Willette et
al., 2023, arXiv:2208.12401).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import torch
from torch import Tensor

from setgrad.encoders import MergeableEncoder, State, UMBCItems
from setgrad.encoders._checkpoint import checkpointed
from setgrad.encoders._mergeable import unit_counts
from setgrad.functions import BoundSetFunction
from setgrad.functions._additive import AdditiveBoundFunction
from setgrad.sets import Sets

# What a chunk gives: tensors that are functions of its items and of earlier results.
Work = Callable[..., tuple[Tensor, ...]]


@final
@dataclass(frozen=True, eq=False)
class Chunks:
    """The items of one set, in chunks.

    Attributes:
        values: The items `(total, ...)`, which may be mapped from a file.
        size: Items of a chunk.
        is_sampled: Whether the gradient is that of one random chunk of every pass.
        generator: Draws that chunk; None for torch's global generator.
    """

    values: Tensor
    size: int
    is_sampled: bool = False
    generator: torch.Generator | None = None

    def each(
        self, work: Work, masks: Tensor | None = None, shared: Sequence[Tensor] = ()
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the results of all chunks, whose graphs are computed again in the backward pass.

        Args:
            work: Maps the items of a chunk, the masks of these items and the shared tensors to results.
            masks: One column for each item, `(m, total)`.
            shared: Results of earlier passes, which get a gradient too.
        """
        chunks = self.values.split(self.size)
        parts = [None] * len(chunks) if masks is None else masks.split(self.size, 1)
        sampled = None
        if self.is_sampled and torch.is_grad_enabled():
            sampled = self._draw(len(chunks))
        for number, (chunk, mask) in enumerate(zip(chunks, parts, strict=True)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and sampled in (None, number)):
                results = checkpointed(work, chunk, mask, *shared)
            yield results if sampled is None else tuple(_with_gradient_times(len(chunks), x) for x in results)

    def _draw(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator))


@final
class ChunkedBoundFunction(BoundSetFunction):
    """A set function with phi="umbc", bound to one set whose items are encoded again in every pass.

    Args:
        sets: One set, with raw items.
        chunks: Its chunks.
        encoder: Gathers the context of V.
        prepare: Makes the items that the encoder reads from raw items.
        bind_part: Binds the function to some of the items, given the context.
        context: What was gathered from V already; None to gather it now.
    """

    relaxed = False
    in_chunks = True

    def __init__(
        self,
        sets: Sets,
        chunks: Chunks,
        encoder: MergeableEncoder,
        prepare: Callable[[Sets], Sets],
        bind_part: Callable[[Sets, Tensor], AdditiveBoundFunction],
        context: Tensor | None = None,
    ) -> None:
        self.sets, self.chunks, self.prepare, self.bind_part = sets, chunks, prepare, bind_part
        self.context = encoder.finish(gather(encoder, prepare, chunks)) if context is None else context

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the gain of every item, or of the items `coordinates`, `(m, k)`."""
        pooled = self._pooled(masks)
        if coordinates is not None:
            return self._gains_of(self.chunks.values[coordinates], masks[:, coordinates], self.context, *pooled)[0]
        parts = self.chunks.each(self._gains_of, masks, (self.context, *pooled))
        return torch.cat([gains for (gains,) in parts], 1)

    def value(self, masks: Tensor) -> Tensor:
        """Return F of each subset, `(m, 1)`."""
        nothing = self._bind(self.chunks.values[:0], self.context)
        return nothing.beside(self._pooled(masks)).value(masks[:, :0])

    def among(self, items: Tensor, chosen: Tensor) -> BoundSetFunction:
        """Return the function of subsets of some items, with these items encoded in memory."""
        others = chosen.index_fill(0, items, False)
        part = self._bind(self.chunks.values[items], self.context)
        return part.beside(self._pooled(others[None])) if bool(others.any()) else part

    def _pooled(self, masks: Tensor) -> list[Tensor]:
        """Return the sums over each subset."""
        is_chosen = masks.any(0)
        rows = is_chosen.nonzero()[:, 0]
        chosen = replace(self.chunks, values=rows)

        def work(rows: Tensor, masks: Tensor, context: Tensor) -> tuple[Tensor, ...]:
            return self._bind(self.chunks.values[rows], context).pooled(masks)

        parts = chosen.each(work, masks[:, rows], (self.context,))
        return list(reduce(lambda a, b: tuple(map(torch.add, a, b)), parts))

    def _gains_of(self, items: Tensor, masks: Tensor, context: Tensor, *pooled: Tensor) -> tuple[Tensor]:
        bound = self._bind(items, context)
        others = [whole - own for whole, own in zip(pooled, bound.pooled(masks), strict=True)]
        return (bound.beside(others).gains(masks),)

    def _bind(self, items: Tensor, context: Tensor) -> AdditiveBoundFunction:
        return self.bind_part(self.prepare(one_set(items)), context)


def gather(encoder: MergeableEncoder, prepare: Callable[[Sets], Sets], chunks: Chunks) -> State:
    """Return the state of all items of a set, which are read in chunks."""
    queries = encoder.queries()

    def work(items: Tensor, _: None, *queries: Tensor) -> tuple[Tensor, ...]:
        part = prepare(one_set(items))
        state = encoder.read(part, unit_counts(part), queries[0] if queries else None, None)
        return (*state.sums, state.count, *([] if state.level is None else [state.level]))

    empty = encoder.begin()
    has_level, count = empty.level is not None, len(empty.sums)
    shared = [] if queries is None else [queries]
    states = (
        State(sums[:count], sums[count + 1] if has_level else None, sums[count], queries)
        for sums in chunks.each(work, shared=shared)
    )
    return replace(reduce(State.merge, states), encoder=empty.encoder)


def encode(
    phi: UMBCItems, prepare: Callable[[Sets], Sets], chunks: Chunks, context: Tensor | None, *, keep_items: bool
) -> tuple[Tensor, Tensor]:
    """Return the features of all items of a set, and the items as the encoder reads them, `(total, ...)` each.

    Args:
        phi: The encoder.
        prepare: Makes the items that it reads from raw items.
        chunks: The chunks of the set.
        context: What was gathered from the set already; None to gather it now.
        keep_items: Whether the second result is needed; it is empty if not.
    """

    def work(items: Tensor, _: None, context: Tensor) -> tuple[Tensor, ...]:
        part = prepare(one_set(items))
        return phi.describe(part, context), part.values if keep_items else part.values[:0]

    if context is None:
        context = phi.context.finish(gather(phi.context, prepare, chunks))
    features, items = zip(*chunks.each(work, shared=(context,)), strict=True)
    return torch.cat(features), torch.cat(items)


def one_set(items: Tensor) -> Sets:
    """Return items as one set."""
    return Sets.from_lengths(items, [len(items)])


def _with_gradient_times(factor: float, x: Tensor) -> Tensor:
    """Return the same numbers with a gradient that is multiplied by a factor; without a graph they have none."""
    return factor * x + (x - factor * x).detach() if x.requires_grad else x

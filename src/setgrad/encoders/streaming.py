"""Read sets that do not fit into memory in chunks, with the gradient of the whole set.

There are three gradients. "full" keeps the graph of every chunk. "exact" reads all chunks without a graph, and reads
them again one at a time in the backward pass: all chunks share the cotangent of the state, so that one chunk at a time
is in memory. "sample" does this for a few chunks of each set, drawn without replacement and weighted so that its
expectation is the exact gradient.

Encoders with several passes, each of which uses the result of the one before, are differentiated pass by pass from the
last to the first. Chunks are drawn independently for each pass, so that the expectation of the product is the product
of the expectations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._autograd import has_tangent, in_forward_mode, in_transform
from setgrad.encoders._base import first_tensor
from setgrad.encoders._chunks import check_untracked, peek_batch_size, select_sets, with_prefetch
from setgrad.encoders._guard import StreamGuard, check_finite
from setgrad.encoders._max_state import distinct_items, max_state
from setgrad.encoders._mergeable import ChunkedEncoder, check_itemwise, check_no_batch_norm, sum_dtype, unit_counts
from setgrad.encoders._passes import InMemoryPasses, Passes, Ranks, Reader, TopItems, Transform, padded_top_items
from setgrad.encoders._snapshot import (
    EncoderSnapshot,
    check_graph_inputs,
    is_modified,
    reverse_mode_only,
    tensor_versions,
)
from setgrad.encoders._state import State
from setgrad.encoders.sources import Chunks
from setgrad.errors import DataError, OptionError, unknown_name
from setgrad.sets import Sets

GRADIENTS = ("full", "exact", "sample")
# The largest relative difference between the values of two runs that is taken for rounding.
_TOLERANCE = 1e-3


def stream(
    encoder: ChunkedEncoder,
    source: Any,
    *,
    gradient: str = "exact",
    chunk_size: int = 4096,
    samples: int = 1,
    generator: torch.Generator | None = None,
    verbose: int = 0,
    prefetch: bool | None = None,
) -> Tensor:
    """Return the codes of sets that are read in chunks, `(b, ...)`, with a gradient of the whole set.

    Args:
        encoder: `UMBC` or another `ChunkedEncoder`. Most read the source once, and once more for the gradient; `DSMIL`
            twice, `DiffEM` once more than it has steps, `DeepUMBC` as often as it has passes.
        source: `Sets`; one set as an array or tensor, possibly memory-mapped; a list of chunks, each of them `Sets`
            with a part of every set, or an array with a part of the only set; `NpyChunks` or `ParquetChunks`; or a
            function that returns such chunks from the start at every call.
        gradient: "full" keeps the graph of every chunk, and is the only one with second derivatives and forward mode.
            "exact" reads every chunk again in the backward pass, so that one chunk at a time is in memory. "sample"
            does so for a few random chunks; its expectation is the exact gradient.
        chunk_size: Items of each set in a chunk, unless the source defines the chunks.
        samples: Chunks of each set that "sample" differentiates.
        generator: Draws these chunks; None for a new generator with a random seed.
        verbose: 1 shows a progress bar for each pass.
        prefetch: Whether to read the next chunk in a thread during the computation; None does so for files. A function
            that draws from torch's global generator must not be read ahead.

    Raises:
        OptionError: If an option is unknown or out of range, or the encoder cannot read sets in chunks.
        DataError: If the source cannot be read, is not finite, or gives other chunks in a later pass.
        ShapeError: If chunks differ in the number of sets or the shape of items.

    Examples:
        >>> from setgrad.encoders import UMBC
        >>> encoder = UMBC(3, dim=8, slots=4)
        >>> x = torch.arange(30.0).reshape(10, 3) / 30
        >>> z = stream(encoder, x, chunk_size=4)
        >>> torch.allclose(z, encoder(Sets.from_list([x])), atol=1e-6)
        True
    """
    check_stream_options(encoder, gradient, chunk_size, samples, generator)
    batch, chunks = peek_batch_size(source, chunk_size, first_tensor(encoder).device)
    if batch is None:
        raise DataError("the source gave no chunk; for sets without items, pass one chunk of empty sets")
    chunks = with_prefetch(chunks, source, chunk_size, verbose=verbose, prefetch=prefetch)
    if gradient == "full" and (torch.is_grad_enabled() or in_forward_mode() or in_transform()):
        return encoder.encode(InMemoryPasses(lambda: guarded(chunks, batch), checked=True))
    sampled = samples if gradient == "sample" else None
    passes = ReplayedPasses(encoder, check_untracked(chunks), batch, sampled, generator, EncoderSnapshot(encoder))
    return encoder.encode(passes)


def check_stream_options(
    encoder: ChunkedEncoder, gradient: str, chunk_size: int, samples: int, generator: object = None
) -> None:
    """Raise an OptionError for what no stream supports."""
    # torch.compile and DistributedDataParallel wrap a module and only forward calls.
    wrapped = getattr(encoder, "_orig_mod", getattr(encoder, "module", None))
    if isinstance(wrapped, ChunkedEncoder):
        raise OptionError(
            f"{type(encoder).__name__} is a wrapper that only reads whole sets; pass the encoder inside it. To "
            "compile, compile the module in phi (phi=torch.compile(module)); for DistributedDataParallel wrap "
            "Sharded(encoder)"
        )
    if not isinstance(encoder, ChunkedEncoder):
        raise OptionError(
            f"{type(encoder).__name__} needs all items of a set at once; let UMBC read the chunks, and put it on "
            "the slots: UMBC(..., head=OnSlots(encoder)), or head=TransformerHead(...) for a Set Transformer; or use "
            "DeepUMBC, in which items attend to each other and which reads chunks in several passes"
        )
    check_itemwise(encoder.phi, type(encoder).__name__)
    if gradient not in GRADIENTS:
        raise unknown_name("gradient", gradient, GRADIENTS)
    if chunk_size < 1 or samples < 1:
        raise OptionError(f"chunk_size and samples must be at least 1, not {chunk_size} and {samples}")
    if generator is not None and not isinstance(generator, torch.Generator):
        kind = type(generator)
        raise OptionError(
            f"generator must be a torch.Generator (torch.Generator().manual_seed(seed)), not {kind.__module__}."
            f"{kind.__qualname__}"
        )
    check_no_batch_norm(encoder)


def guarded(chunks: Chunks, batch: int) -> Iterator[tuple[Sets, Tensor]]:
    """Yield chunks and the counts of their items, which are all 1; raise a DataError if a chunk is not finite."""
    guard = StreamGuard(batch)
    for chunk in chunks():
        yield guard.observe(chunk), unit_counts(chunk)
    guard.digest()


@final
@dataclass(frozen=True, eq=False)
class ReplayedPasses(Passes):
    """Chunks that are read without a graph, and read again for the gradient: `samples` of them, all if None."""

    encoder: ChunkedEncoder
    chunks: Chunks
    batch: int
    samples: int | None
    generator: torch.Generator | None
    snapshot: EncoderSnapshot
    slot_generator: torch.Generator | None = None
    ranks: Ranks | None = None
    features: Callable[[Sets], Tensor] | None = None
    # What transforms items after that, and the results of earlier passes that it uses.
    transforms: tuple[Transform, ...] = ()
    contexts: tuple[Tensor, ...] = ()

    def map(self, features: Callable[[Sets], Tensor]) -> ReplayedPasses:
        """Compute the features again in every pass."""
        return replace(self, features=features)

    def condition(self, transform: Transform, context: Tensor) -> ReplayedPasses:
        """Transform the items again in every pass."""
        return replace(self, transforms=(*self.transforms, transform), contexts=(*self.contexts, context))

    def apply(self, chunk: Sets) -> Sets:
        """Return a chunk with its features computed and transformed."""
        items = chunk if self.features is None else chunk.with_values(self.features(chunk))
        for transform, context in zip(self.transforms, self.contexts, strict=True):
            items = items.with_values(transform(items, context))
        return items

    def observed(self, guard: StreamGuard) -> Iterator[tuple[int, Sets]]:
        """Yield the numbered chunks of one pass; raise a DataError at its end if they differ from the first pass."""
        for number, chunk in enumerate(self.chunks()):
            yield number, guard.observe(chunk)
        self.snapshot.check_pass(guard.digest())

    def sums(self, read: Reader, queries: Tensor | None) -> State:
        """Do one pass now, and one more in the backward pass."""
        inputs = self.contexts if queries is None else (queries, *self.contexts)
        if in_forward_mode() and any(has_tangent(p) for p in (*inputs, *self.encoder.parameters())):
            raise reverse_mode_only()
        parameters = [p for p in self.encoder.parameters() if p.requires_grad]
        if torch.is_grad_enabled():
            # The graph of an empty chunk has the same leaves as any other.
            empty = self.encoder.empty_sets(self.batch)
            graph = read(self.apply(empty), unit_counts(empty), queries, None)
            check_graph_inputs(graph.sums, [*inputs, *parameters])
        *sums, count, level = _ReplayedSums.apply(self, read, queries, *self.contexts, *parameters)
        state = State(tuple(sums), level if level.dim() else None, count, queries)
        return state if self.ranks is None else self.ranks.total(state)

    def top_items(self, score: Callable[[Tensor], Tensor]) -> TopItems:
        """Find the top items in one pass without a graph, then run these few again with a graph."""
        with torch.no_grad(), self.snapshot.restored():
            empty = self.encoder.empty_sets(self.batch)
            state = max_state(score(self.apply(empty).values), empty, unit_counts(empty))
            for number, chunk in self.observed(StreamGuard(self.batch)):
                with self.snapshot.seeded(number, chunk):
                    values = score(self.apply(chunk).values)
                state = state.merge(max_state(values, chunk, unit_counts(chunk)))
        check_finite(state.value[state.number >= 0])
        state = state if self.ranks is None else self.ranks.maximum(state)
        items, index = distinct_items(state)
        exists = state.number >= 0
        top = padded_top_items(self.apply(Sets.from_lengths(items, [len(items)])).values, index, exists)
        values = top.gather(score(top.features).detach())
        tolerance = max(_TOLERANCE, 4 * torch.finfo(values.dtype).eps)
        if not torch.allclose(values[exists], state.value[exists], rtol=tolerance, atol=tolerance):
            raise OptionError(
                "phi gave other values when it was run again, as dropout and batch normalisation do while training; "
                "put it into evaluation mode (encoder.phi.eval()) or use gradient='full'"
            )
        return top


@final
class _ReplayedSums(torch.autograd.Function):
    """The state of a source as a function of the queries, the contexts of earlier passes and the parameters."""

    @staticmethod
    def forward(
        ctx: Any, passes: ReplayedPasses, read: Reader, queries: Tensor | None, *others: Tensor
    ) -> tuple[Tensor, ...]:
        """Read everything in a first pass and keep the state."""
        guard = StreamGuard(passes.batch, record_filled=passes.samples is not None)
        empty = passes.encoder.empty_sets(passes.batch)
        with passes.snapshot.restored():
            state = read(passes.apply(empty), unit_counts(empty), queries, None)
            for number, chunk in passes.observed(guard):
                with passes.snapshot.seeded(number, chunk):
                    state = state.merge(read(passes.apply(chunk), unit_counts(chunk), queries, None))
        check_finite(*state.sums)
        state = state if passes.ranks is None else passes.ranks.synchronise(state)
        ctx.passes, ctx.read, ctx.has_queries, ctx.filled = passes, read, queries is not None, guard.filled
        ctx.versions = None if passes.samples is None else tensor_versions(passes.encoder)
        level = state.count.new_zeros(()) if state.level is None else state.level
        ctx.save_for_backward(level, state.sums[0], *([] if queries is None else [queries]), *others)
        ctx.mark_non_differentiable(state.count, level)
        return (*state.sums, state.count, level)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Read all chunks again, or the sampled ones, one graph at a time, against the one cotangent of the state."""
        if torch.is_grad_enabled():
            raise OptionError(
                "a gradient of a gradient was requested (create_graph=True), which only gradient='full' supports"
            )
        level, first_sum, *inputs = ctx.saved_tensors
        # Parameters are leaves already; queries and contexts become leaves of the graph of a chunk.
        earlier = ctx.has_queries + len(ctx.passes.contexts)
        inputs[:earlier] = [x.detach().requires_grad_() for x in inputs[:earlier]]
        queries = inputs[0] if ctx.has_queries else None
        passes: ReplayedPasses = replace(ctx.passes, contexts=tuple(inputs[ctx.has_queries : earlier]))
        # In half precision a sum over many chunks would stop growing.
        totals = [torch.zeros_like(p, dtype=sum_dtype(p.dtype)) for p in inputs]
        # A shard may have no chunk.
        filled = np.array(ctx.filled, dtype=bool).reshape(len(ctx.filled), passes.batch)
        weights = None if passes.samples is None else draw_chunk_weights(filled, passes.samples, passes.generator)
        second_sum = torch.zeros_like(first_sum)
        # Sampled chunks do not add up to the sums of the first pass. All chunks are read again only if a tensor of the
        # encoder was written to.
        compared = weights is None or is_modified(passes.encoder, ctx.versions)

        def read_chunk(chunk: Sets) -> State:
            read: Reader = ctx.read
            return read(passes.apply(chunk), unit_counts(chunk), queries, level if level.dim() else None)

        def add_sums(number: int, chunk: Sets) -> None:
            """Add the sums of a whole chunk without a graph, as in the first pass."""
            with passes.snapshot.seeded(number, chunk):
                second_sum.add_(read_chunk(chunk).sums[0])

        def add_gradient(number: int, chunk: Sets) -> None:
            """Add the gradient of one chunk. In a function, so that its graph is freed before the next chunk."""
            outputs = list(cotangents[: len(cotangents) - 2])
            if weights is not None:
                weight = torch.as_tensor(weights[number], device=chunk.device)
                outputs = [g * weight.to(g).reshape(-1, *[1] * (g.dim() - 1)) for g in outputs]
                # Dropout draws for all items of a chunk, so none may be left out then.
                if not passes.snapshot.is_random:
                    chunk = select_sets(chunk, weights[number] > 0)
            with torch.enable_grad(), passes.snapshot.seeded(number, chunk):
                state = read_chunk(chunk)
                outputs = [g.to(s) for g, s in zip(outputs, state.sums, strict=True)]
                gradients = torch.autograd.grad(state.sums, inputs, outputs, allow_unused=True)
            if weights is None:
                second_sum.add_(state.sums[0].detach())
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)

        with passes.snapshot.restored():
            for number, chunk in passes.observed(StreamGuard(passes.batch)):
                if compared and weights is not None:
                    add_sums(number, chunk)
                if weights is None or (number < len(weights) and weights[number].any()):
                    add_gradient(number, chunk)
        if compared and first_sum.numel():
            _check_same_sums(first_sum, second_sum)
        gradients = [total.to(p.dtype) for total, p in zip(totals, inputs, strict=True)]
        return (None, None, *([] if ctx.has_queries else [None]), *gradients)


def _check_same_sums(first: Tensor, second: Tensor) -> None:
    """Raise an OptionError if the second pass gave other sums than the first."""
    if bool((second - first).abs().amax() > _TOLERANCE * first.abs().amax()):
        raise OptionError(
            "the encoder gave other values for the same items in the second pass; its modules may draw random numbers "
            "from torch's global generator only, and must keep their parameters and buffers until the backward pass"
        )


def draw_chunk_weights(filled: np.ndarray, samples: int, generator: torch.Generator | None) -> np.ndarray:
    """Return weights `(chunks, sets)`: for `samples` chunks of each set the inverse of their probability, else 0.

    All sets follow one random order of the chunks, so that sets with items in the same chunks share them, and few
    chunks need a graph.

    Args:
        filled: Which sets have items in which chunks, `(chunks, sets)`.
        samples: Chunks to draw for each set, without replacement.
        generator: Draws the order; None for a new generator with a random seed.
    """
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    order = torch.randperm(len(filled), generator=generator, device=generator.device).numpy(force=True)
    # How many chunks of a set come before each of its chunks in that order.
    before = np.empty_like(filled, dtype=np.int64)
    before[order] = filled[order].cumsum(0) - filled[order]
    count = filled.sum(0)
    return np.where(filled & (before < samples), count / np.clip(count, 1, samples), 0.0)

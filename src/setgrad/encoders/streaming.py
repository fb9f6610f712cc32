"""Sets that do not fit into memory: read in chunks, with the gradient of the whole set.

Three gradients. "full" keeps the graph of every chunk. "exact" reads all chunks without a graph, and in the backward
pass reads them again, one at a time: the cotangent of the state is the same for all of them, so that memory is that of
one chunk. "sample" does so for a few pieces of each set, drawn without replacement and weighted so that its mean is the
exact gradient.

Encoders that need several passes, each with what the last one found, get their gradient pass by pass from the last to
the first. The chunks of each are drawn independently, so that the mean of the product is the product of the means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._autograd import has_tangent, in_forward_mode, in_transform
from setgrad.encoders._base import place_of
from setgrad.encoders._chunks import begun, only, watched, without_graph
from setgrad.encoders._max_state import distinct_items, max_state
from setgrad.encoders._mergeable import ChunkedEncoder, item_weights, refuse_batch_norm, require_itemwise, wide
from setgrad.encoders._moment import Moment, is_changed, only_backward, require_known, versions
from setgrad.encoders._passes import Change, Kept, Passes, Ranks, Read, Winners, winners
from setgrad.encoders._state import State
from setgrad.encoders._watch import Watch, require_finite
from setgrad.encoders.sources import Chunks
from setgrad.errors import DataError, OptionError, unknown_name
from setgrad.sets import Sets

GRADIENTS = ("full", "exact", "sample")
# Values of a second run may differ from those of the first by rounding, not by more.
_CHANGED = 1e-3


def stream(
    encoder: ChunkedEncoder,
    source: Any,
    *,
    gradient: str = "exact",
    chunk_size: int = 4096,
    samples: int = 1,
    generator: np.random.Generator | None = None,
    verbose: int = 0,
    prefetch: bool | None = None,
) -> Tensor:
    """Code of sets that are read in chunks.

    Args:
        encoder: `UMBC` or another encoder that reads in pieces. Most read the source once, and again for the gradient;
            `DSMIL` twice, `DiffEM` once more than it has steps, `DeepUMBC` as often as its slots ask.
        source: `Sets`; one set as an array or tensor, which may be mapped from disk; a list of chunks, each a `Sets`
            with a piece of every set, or an array with a piece of the one set; `NpyChunks` or `ParquetChunks`; or a
            function that gives such chunks anew at every call.
        gradient: "full", "exact" or "sample".
        chunk_size: Items of each set in a chunk, where the source does not say.
        samples: Pieces of each set that "sample" differentiates.
        generator: Draws them.
        verbose: 1 shows a bar for each pass.
        prefetch: Read the next chunk in a thread while the last one is computed; None does so for files. A function
            that draws from torch's global generator must not be read ahead.

    Example:
        >>> from setgrad.encoders import UMBC
        >>> encoder = UMBC(3, dim=8, slots=4)
        >>> x = torch.arange(30.0).reshape(10, 3) / 30
        >>> z = stream(encoder, x, chunk_size=4)
        >>> torch.allclose(z, encoder(Sets.from_list([x])), atol=1e-6)
        True
    """
    check_options(encoder, gradient, chunk_size, samples, generator)
    device = place_of(encoder).device
    batch, chunks = begun(source, chunk_size, device)
    if batch is None:
        raise DataError("the source gave no chunk; for sets without items give one chunk of empty pieces")
    chunks = watched(chunks, source, chunk_size, verbose, prefetch)
    if gradient == "full" and (torch.is_grad_enabled() or in_forward_mode() or in_transform()):
        return encoder.encode(Kept(lambda: noted(chunks, batch), checked=True))
    drawn = samples if gradient == "sample" else None
    return encoder.encode(Again(encoder, without_graph(chunks), batch, drawn, generator, Moment(encoder)))


def check_options(
    encoder: ChunkedEncoder, gradient: str, chunk_size: int, samples: int, generator: object = None
) -> None:
    """Refuse what no stream can do."""
    # torch.compile and DistributedDataParallel wrap a module, and call it whole.
    inside = getattr(encoder, "_orig_mod", getattr(encoder, "module", None))
    if isinstance(inside, ChunkedEncoder):
        raise OptionError(
            f"{type(encoder).__name__} is a wrapper, whose call reads whole sets; give the encoder inside it. To "
            "compile, compile what phi is made of (phi=torch.compile(module)); for DistributedDataParallel wrap "
            "Sharded(encoder)"
        )
    if not isinstance(encoder, ChunkedEncoder):
        raise OptionError(
            f"{type(encoder).__name__} must see all items of a set at once; let UMBC read the chunks, and put it on "
            "the slots: UMBC(..., head=OnSlots(encoder)), or head=TransformerHead(...) for a Set Transformer; or use "
            "DeepUMBC, in which items look at each other and which reads chunks in several passes"
        )
    require_itemwise(encoder.phi, type(encoder).__name__)
    if gradient not in GRADIENTS:
        raise unknown_name("gradient", gradient, GRADIENTS)
    if chunk_size < 1 or samples < 1:
        raise OptionError(f"chunk_size and samples must be at least 1, not {chunk_size} and {samples}")
    if generator is not None and not hasattr(generator, "permutation"):
        raise OptionError(
            f"chunks are drawn by a NumPy generator (numpy.random.default_rng(seed)), not by {type(generator).__name__}"
        )
    refuse_batch_norm(encoder)


def noted(chunks: Chunks, batch: int) -> Iterator[tuple[Sets, Tensor]]:
    """Chunks and the weights of their items, which are all 1; an error at the end if there was NaN."""
    watch = Watch(batch)
    for chunk in chunks():
        yield watch.note(chunk), item_weights(None, chunk)
    watch.close()


@final
@dataclass(frozen=True, eq=False)
class Again(Passes):
    """Chunks that are read without a graph, and again for the gradient: `samples` of them, all if None."""

    encoder: ChunkedEncoder
    chunks: Chunks
    batch: int
    samples: int | None
    generator: np.random.Generator | None
    moment: Moment
    slots: torch.Generator | None = None
    ranks: Ranks | None = None
    features: Callable[[Sets], Tensor] | None = None
    # What changes items after that, and by what.
    changes: tuple[Change, ...] = ()
    found: tuple[Tensor, ...] = ()

    def through(self, features: Callable[[Sets], Tensor]) -> Again:
        """Features are computed anew in every pass."""
        return replace(self, features=features)

    def told(self, change: Change, found: Tensor) -> Again:
        """Items are changed anew in every pass."""
        return replace(self, changes=(*self.changes, change), found=(*self.found, found))

    def seen(self, chunk: Sets) -> Sets:
        """A chunk as it comes to those who read it."""
        items = chunk if self.features is None else chunk.with_values(self.features(chunk))
        for change, found in zip(self.changes, self.found, strict=True):
            items = items.with_values(change(items, found))
        return items

    def sums(self, read: Read, queries: Tensor | None) -> State:
        """One pass now, and one in the backward pass."""
        asked = self.found if queries is None else (queries, *self.found)
        if any(has_tangent(p) for p in (*asked, *self.encoder.parameters())):
            raise only_backward()
        parameters = [p for p in self.encoder.parameters() if p.requires_grad]
        if torch.is_grad_enabled():
            # Nothing has the same graph as something.
            nothing = self.encoder.nothing(self.batch)
            graph = read(self.seen(nothing), item_weights(None, nothing), queries, None)
            require_known(graph.sums, [*asked, *parameters])
        *sums, count, level = _Sums.apply(self, read, queries, *self.found, *parameters)
        state = State(tuple(sums), level if level.dim() else None, count, queries)
        return state if self.ranks is None else self.ranks.total(state)

    def best(self, score: Callable[[Tensor], Tensor]) -> Winners:
        """One pass that keeps the winners; these few are run again, with a graph."""
        watch = Watch(self.batch)
        with torch.no_grad(), self.moment.again():
            nothing = self.encoder.nothing(self.batch)
            state = max_state(score(self.seen(nothing).values), nothing, item_weights(None, nothing))
            for number, chunk in enumerate(self.chunks()):
                with self.moment.drawn(number, chunk):
                    values = score(self.seen(watch.note(chunk)).values)
                state = state.merge(max_state(values, chunk, item_weights(None, chunk)))
            self.moment.remember(watch.close())
        require_finite(state.value[state.number >= 0])
        state = state if self.ranks is None else self.ranks.largest(state)
        items, place = distinct_items(state)
        rows, some = self.seen(Sets.from_lengths(items, [len(items)])).values, state.number >= 0
        found = winners(rows, place, some)
        values = found.pick(score(found.rows).detach())
        off = max(_CHANGED, 4 * torch.finfo(values.dtype).eps)
        if not torch.allclose(values[some], state.value[some], rtol=off, atol=off):
            raise OptionError(
                "phi gave other values when it was run again, as dropout and batch normalisation do while training; "
                "put it into evaluation mode (encoder.phi.eval()) or use gradient='full'"
            )
        return found


@final
class _Sums(torch.autograd.Function):
    """The state of a source as a function of what earlier passes found and of the encoder's parameters.

    What was found is what items are compared with (the queries) and what they were told.
    """

    @staticmethod
    def forward(ctx: Any, way: Again, read: Read, queries: Tensor | None, *others: Tensor) -> tuple[Tensor, ...]:
        """First pass: read everything, keep the state."""
        nothing, watch = way.encoder.nothing(way.batch), Watch(way.batch, pieces=way.samples is not None)
        with way.moment.again():
            state = read(way.seen(nothing), item_weights(None, nothing), queries, None)
            for number, chunk in enumerate(way.chunks()):
                with way.moment.drawn(number, chunk):
                    state = state.merge(read(way.seen(watch.note(chunk)), item_weights(None, chunk), queries, None))
            way.moment.remember(watch.close())
        require_finite(*state.sums)
        ctx.filled = watch.filled
        state = state if way.ranks is None else way.ranks.settle(state)
        ctx.way, ctx.read, ctx.asked = way, read, queries is not None
        ctx.versions = None if way.samples is None else versions(way.encoder)
        level = state.count.new_zeros(()) if state.level is None else state.level
        ctx.save_for_backward(level, state.sums[0], *([] if queries is None else [queries]), *others)
        ctx.mark_non_differentiable(state.count, level)
        return (*state.sums, state.count, level)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Second pass: every chunk, or some, with a graph of its own, against the one cotangent of the state."""
        if torch.is_grad_enabled():
            raise OptionError(
                "a gradient of a gradient was asked for (create_graph=True), which only gradient='full' can give"
            )
        level, first_sum, *wanted = ctx.saved_tensors
        # Parameters keep their graph, which is none; what was found gets one that begins here.
        earlier = ctx.asked + len(ctx.way.found)
        wanted[:earlier] = [found.detach().requires_grad_() for found in wanted[:earlier]]
        queries = wanted[0] if ctx.asked else None
        way: Again = replace(ctx.way, found=tuple(wanted[ctx.asked : earlier]))
        # In half precision a sum over many chunks would stop growing.
        totals = [torch.zeros_like(p, dtype=wide(p.dtype)) for p in wanted]
        # A shard may have no chunk.
        filled = np.array(ctx.filled, dtype=bool).reshape(len(ctx.filled), way.batch)
        weights = None if way.samples is None else draw_pieces(filled, way.samples, way.generator)
        watch, second_sum = Watch(way.batch), torch.zeros_like(first_sum)
        # Some pieces do not add up to the first pass. All are read again only where the encoder was written to.
        compared = weights is None or is_changed(way.encoder, ctx.versions)

        def state_of(chunk: Sets) -> State:
            state: State = ctx.read(way.seen(chunk), item_weights(None, chunk), queries, level if level.dim() else None)
            return state

        def compare(number: int, chunk: Sets) -> None:
            """One chunk as in the first pass: whole, without a graph."""
            with way.moment.drawn(number, chunk):
                second_sum.add_(state_of(chunk).sums[0])

        def add(number: int, chunk: Sets) -> None:
            """One chunk. In a function of its own, so that nothing of it is left when the next one comes."""
            asked = list(cotangents[: len(cotangents) - 2])
            if weights is not None:
                weight = torch.as_tensor(weights[number], device=chunk.device)
                asked = [g * weight.to(g).reshape(-1, *[1] * (g.dim() - 1)) for g in asked]
                # Dropout draws for all items of a chunk, so that there none may be left out.
                if not way.moment.draws:
                    chunk = only(chunk, weights[number] > 0)
            with torch.enable_grad(), way.moment.drawn(number, chunk):
                state = state_of(chunk)
                slopes = [g.to(s) for g, s in zip(asked, state.sums, strict=True)]
                found = torch.autograd.grad(state.sums, wanted, slopes, allow_unused=True)
            if weights is None:
                second_sum.add_(state.sums[0].detach())
            for total, gradient in zip(totals, found, strict=True):
                if gradient is not None:
                    total.add_(gradient)

        with way.moment.again():
            for number, chunk in enumerate(way.chunks()):
                watch.note(chunk)
                if compared and weights is not None:
                    compare(number, chunk)
                if weights is None or (number < len(weights) and weights[number].any()):
                    add(number, chunk)
            way.moment.remember(watch.close())
        if compared and first_sum.numel():
            _require_same_sums(first_sum, second_sum)
        found = [total.to(p.dtype) for total, p in zip(totals, wanted, strict=True)]
        return (None, None, *([] if ctx.asked else [None]), *found)


def _require_same_sums(first: Tensor, second: Tensor) -> None:
    """Refuse a second pass that found other numbers than the first."""
    if bool((second - first).abs().amax() > _CHANGED * first.abs().amax()):
        raise OptionError(
            "the encoder gave other values for the same items in the second pass; its modules must draw from torch's "
            "generator or not at all, and keep their weights and buffers until the backward pass"
        )


def draw_pieces(filled: np.ndarray, samples: int, generator: np.random.Generator | None) -> np.ndarray:
    """Weights `(chunks, sets)` of pieces: 0 for most, and for `samples` of each set the inverse of their probability.

    All sets follow one order of the chunks, so that those with pieces in the same chunks share them, and few chunks
    need a graph.
    """
    order = (generator or np.random.default_rng()).permutation(len(filled))
    # How many pieces of a set come before each of its own in that order.
    before = np.empty_like(filled, dtype=np.int64)
    before[order] = filled[order].cumsum(0) - filled[order]
    count = filled.sum(0)
    return np.where(filled & (before < samples), count / np.clip(count, 1, samples), 0.0)

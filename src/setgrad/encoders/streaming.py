"""Sets that do not fit into memory: read in chunks, with the gradient of the whole set.

Three gradients. "full" keeps the graph of every chunk. "exact" reads all chunks without a graph, and in the backward
pass reads them again, one at a time: the cotangent of the state is the same for all of them, so that memory is that of
one chunk. "sample" does so for a few chunks drawn without replacement, weighted so that its mean is the exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.encoders._mergeable import MergeableEncoder, item_weights
from setgrad.encoders._state import State
from setgrad.encoders.sources import Chunks, prefetched, reads_disk, shown
from setgrad.errors import DataError, OptionError, unknown_name
from setgrad.sets import Layout, Sets

GRADIENTS = ("full", "exact", "sample")
# Sums of the second pass may differ from those of the first by rounding, not by more.
_CHANGED = 1e-3


def stream(
    encoder: MergeableEncoder,
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
        encoder: `UMBC` or another encoder whose state adds up.
        source: `Sets`; one set as an array or tensor, which may be mapped from disk; a list of chunks, each a `Sets`
            with a piece of every set, or an array with a piece of the one set; `NpyChunks` or `ParquetChunks`; or a
            function that gives such chunks anew at every call.
        gradient: "full", "exact" or "sample".
        chunk_size: Items of each set in a chunk, where the source does not say.
        samples: Chunks that "sample" differentiates.
        generator: Draws them.
        verbose: 1 shows a bar for each pass where the number of chunks is known.
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
    check_options(gradient, chunk_size, samples)
    device = next(encoder.parameters()).device
    batch = pieces_of(source, chunk_size, device, gradient)
    if batch is None:
        raise DataError("the source gave no chunk; for sets without items give one chunk of empty pieces")
    chunks = watched(source, chunk_size, device, verbose, prefetch)
    drawn = None if gradient == "exact" else samples
    plan = Plan(encoder, chunks, batch, drawn, generator)
    return encoder.finish(state_of(plan, encoder.queries(), graph=gradient == "full"))


def check_options(gradient: str, chunk_size: int, samples: int) -> None:
    """Refuse what no stream can do."""
    if gradient not in GRADIENTS:
        raise unknown_name("gradient", gradient, GRADIENTS)
    if chunk_size < 1 or samples < 1:
        raise OptionError(f"chunk_size and samples must be at least 1, not {chunk_size} and {samples}")


def pieces_of(source: Any, chunk_size: int, device: torch.device, gradient: str) -> int | None:
    """How many sets a chunk has pieces of; None if there is no chunk."""
    first = next(iter(chunks_of(source, chunk_size, device)()), None)
    if first is None:
        return None
    if first.values.requires_grad and gradient != "full":
        raise OptionError("items that require a gradient are only differentiated with gradient='full'")
    return len(first)


def watched(source: Any, chunk_size: int, device: torch.device, verbose: int, prefetch: bool | None) -> Chunks:
    """The chunks of a source, read ahead and with a bar if that is wanted."""
    chunks = chunks_of(source, chunk_size, device)
    ahead = reads_disk(source) if prefetch is None else prefetch
    return shown(prefetched(chunks) if ahead else chunks, _count(source, chunk_size), verbose)


def chunks_of(source: Any, chunk_size: int, device: torch.device) -> Chunks:
    """A function that gives the chunks of a source from its beginning, at every call, on a device."""
    if isinstance(source, Sets):
        return lambda: (piece.to(device) for piece in _pieces(source, chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return lambda: (
            _as_chunk(source[start : start + chunk_size], device) for start in range(0, max(1, len(source)), chunk_size)
        )
    if callable(source):
        return lambda: (_as_chunk(chunk, device) for chunk in source())
    if isinstance(source, Iterator):
        raise DataError(
            "this source can be read only once, and the backward pass reads it again; give a list of chunks, or a "
            "function that returns a new iterator at every call"
        )
    if isinstance(source, Iterable):
        return lambda: (_as_chunk(chunk, device) for chunk in source)
    raise DataError(f"chunks cannot be read from {type(source).__name__}; give Sets, an array, a list or a function")


def _count(source: Any, chunk_size: int) -> int | None:
    if isinstance(source, Sets):
        return max(1, math.ceil(source.layout.longest / chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return max(1, math.ceil(len(source) / chunk_size))
    return len(source) if hasattr(source, "__len__") else None


@final
@dataclass(frozen=True)
class Plan:
    """What is read, and how: `samples` chunks are differentiated, all if None.

    `settle` turns what the first pass found into a state with the same content at a level that others agree on.
    """

    encoder: MergeableEncoder
    chunks: Chunks
    batch: int
    samples: int | None
    generator: np.random.Generator | None
    settle: Callable[[State], State] | None = None


def state_of(plan: Plan, queries: Tensor | None, *, graph: bool) -> State:
    """The state of a source, with the graph of every chunk or with a second pass for the gradient."""
    encoder = plan.encoder
    if graph:
        state = _start(plan, queries)
        for chunk in plan.chunks():
            state = encoder.update(state, _checked(chunk))
        return state if plan.settle is None else plan.settle(state)
    _refuse_batch_norm(encoder)
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    *sums, count, level = _Read.apply(plan, queries, *parameters)
    return State(tuple(sums), level if level.dim() else None, count, queries)


def _start(plan: Plan, queries: Tensor | None) -> State:
    """The state of sets without items."""
    nothing = plan.encoder.nothing(plan.batch)
    return plan.encoder.read(nothing, item_weights(None, nothing), queries, None)


@final
class _Read(torch.autograd.Function):
    """The state of a source as a function of the encoder's parameters."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, queries: Tensor | None, *parameters: Tensor) -> tuple[Tensor, ...]:
        """First pass: read everything, keep the state."""
        encoder = plan.encoder
        # In evaluation nothing is drawn, and the caller's generator stays as it is.
        ctx.seed = int(torch.randint(2**62, ())) if encoder.training else 0
        state = _start(plan, queries)
        number = -1
        for number, chunk in enumerate(plan.chunks()):
            with _replayed(ctx.seed, number, chunk):
                state = state.merge(encoder.read(_checked(chunk), item_weights(None, chunk), queries, None))
        state = state if plan.settle is None else plan.settle(state)
        ctx.plan, ctx.number, ctx.slots = plan, number + 1, queries is not None
        level = state.count.new_zeros(()) if state.level is None else state.level
        ctx.save_for_backward(level, state.sums[0], *([] if queries is None else [queries]), *parameters)
        ctx.mark_non_differentiable(state.count, level)
        return (*state.sums, state.count, level)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Second pass: every chunk, or some, with a graph of its own, against the one cotangent of the state."""
        if torch.is_grad_enabled():
            raise OptionError(
                "a gradient of a gradient was asked for (create_graph=True), which only gradient='full' can give"
            )
        plan, encoder = ctx.plan, ctx.plan.encoder
        level, first_sum, *saved = ctx.saved_tensors
        queries = saved[0].detach().requires_grad_() if ctx.slots else None
        parameters = saved[1:] if ctx.slots else saved
        wanted = ([queries] if queries is not None else []) + list(parameters)
        totals = [torch.zeros_like(p) for p in wanted]
        chosen, weight = _choose(ctx.number, plan)
        seen, number = torch.zeros_like(first_sum), -1
        for number, chunk in enumerate(plan.chunks()):
            if number not in chosen:
                continue
            with torch.enable_grad(), _replayed(ctx.seed, number, chunk):
                state = encoder.read(
                    _checked(chunk), item_weights(None, chunk), queries, level if level.dim() else None
                )
                gradients = torch.autograd.grad(
                    state.sums,
                    wanted,
                    [g.to(s) for g, s in zip(cotangents, state.sums, strict=False)],
                    allow_unused=True,
                )
            seen = seen + state.sums[0].detach()
            totals = [t if g is None else t + weight * g for t, g in zip(totals, gradients, strict=True)]
        whole = plan.samples is None
        changed = whole and float((seen - first_sum).abs().max()) > _CHANGED * float(first_sum.abs().max() + 1e-30)
        if number + 1 != ctx.number or changed:
            raise DataError(
                "the source gave other chunks in the second pass than in the first; it must give the same ones at "
                "every call (no shuffling, no augmentation that draws anew)"
            )
        head = [totals[0]] if queries is not None else [None]
        return (None, *head, *totals[len(wanted) - len(parameters) :])


def _choose(count: int, plan: Plan) -> tuple[Any, float]:
    """Numbers of the chunks to differentiate, and the inverse of the probability that one is among them."""
    if plan.samples is None or plan.samples >= count:
        return range(count), 1.0
    generator = plan.generator or np.random.default_rng()
    return set(generator.choice(count, plan.samples, replace=False).tolist()), count / plan.samples


def _pieces(sets: Sets, size: int) -> Iterator[Sets]:
    """Items 0 to size - 1 of each set, then the next ones, and so on; at least one piece."""
    layout = sets.layout
    for start in range(0, max(1, layout.longest), size):
        lengths = np.clip(layout.host_lengths - start, 0, size)
        piece = Layout.from_lengths(lengths, sets.device)
        first = np.repeat(layout.host[:-1] + start - piece.host[:-1], lengths)
        yield Sets(sets.values[layout.to_device(first + np.arange(piece.total))], piece)


def _as_chunk(chunk: Any, device: torch.device) -> Sets:
    if not isinstance(chunk, Sets):
        # A copy: what is mapped from disk may be read-only.
        chunk = Sets.from_list([torch.as_tensor(np.array(chunk) if isinstance(chunk, np.ndarray) else chunk)])
    return chunk.to(device)


def _checked(chunk: Sets) -> Sets:
    if chunk.dtype.is_floating_point and not bool(chunk.values.isfinite().all()):
        raise DataError("a chunk holds NaN or infinity; remove or impute such items first")
    return chunk


@contextmanager
def _replayed(seed: int, number: int, chunk: Sets) -> Iterator[None]:
    """A block in which dropout draws the same numbers in both passes."""
    with torch.random.fork_rng(devices=[chunk.device] if chunk.device.type == "cuda" else []):
        torch.manual_seed((seed + number) % 2**63)
        yield


def _refuse_batch_norm(encoder: MergeableEncoder) -> None:
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training and module.track_running_stats:
            raise OptionError(
                f"{name} normalises over the items of a chunk, so that the result would depend on the partition; put "
                "it into evaluation mode (encoder.eval()) or use LayerNorm"
            )

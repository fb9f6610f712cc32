"""The state of every beginning of a set: after each chunk, and after each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from setgrad.encoders._base import place_of
from setgrad.encoders._chunks import as_chunk, chunks_of, watched
from setgrad.encoders._max_state import MaxState
from setgrad.encoders._mergeable import MergeableEncoder, item_weights
from setgrad.encoders._state import State
from setgrad.encoders.max_pool import MaxPool
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets

Kind = TypeVar("Kind", State, MaxState)


@overload
def chunk_prefixes(encoder: MergeableEncoder, source: Any, *, chunk_size: int = ...) -> Iterator[State]: ...
@overload
def chunk_prefixes(encoder: MaxPool, source: Any, *, chunk_size: int = ...) -> Iterator[MaxState]: ...
def chunk_prefixes(encoder: Any, source: Any, *, chunk_size: int = 4096) -> Iterator[Any]:
    """The state after each chunk of a source, as it is read.

    Sources are those of `setgrad.encoders.stream`, and iterators that can be read only once. With a graph, if torch
    makes graphs; under `torch.no_grad()` the memory is that of one chunk.

    Example:
        >>> from setgrad.encoders import DeepSets
        >>> encoder = DeepSets(1, torch.nn.Identity())
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> [encoder.finish(state).item() for state in chunk_prefixes(encoder, x, chunk_size=2)]
        [3.0, 6.0]
    """
    _require_state(encoder)
    if chunk_size < 1:
        raise OptionError(f"chunk_size must be at least 1, not {chunk_size}")
    device = place_of(encoder).device
    chunks: Iterable[Sets]
    if isinstance(source, Iterator):
        chunks = (as_chunk(chunk, device) for chunk in source)
    else:
        chunks = watched(chunks_of(source, chunk_size, device), source, chunk_size)()
    return _after_each(encoder, chunks)


def _after_each(encoder: Any, chunks: Iterable[Sets]) -> Iterator[Any]:
    state = None
    for chunk in chunks:
        state = encoder.update(encoder.begin(len(chunk)) if state is None else state, chunk)
        yield state


@overload
def item_prefixes(encoder: MergeableEncoder, sets: Sets, weights: Tensor | None = ...) -> State: ...
@overload
def item_prefixes(encoder: MaxPool, sets: Sets, weights: Tensor | None = ...) -> MaxState: ...
def item_prefixes(encoder: Any, sets: Sets, weights: Tensor | None = None) -> Any:
    """The state after each item of each set, all at once: a state of `total` rows, one for each item.

    `encoder.finish` gives the code of the first item of a set, of its first two, and so on. Memory is that of one
    state for each item; time grows with the logarithm of the longest set beside that.

    Example:
        >>> from setgrad.encoders import DeepSets
        >>> encoder = DeepSets(1, torch.nn.Identity())
        >>> sets = Sets.from_list([[[1.0], [2.0], [3.0]], [[10.0], [20.0]]])
        >>> encoder.finish(item_prefixes(encoder, sets)).flatten().tolist()
        [1.0, 3.0, 6.0, 10.0, 30.0]
    """
    _require_state(encoder)
    alone = Sets(sets.values, Layout.from_lengths([1] * sets.layout.total, sets.device))
    start = encoder.begin(len(alone))
    return _scan(encoder.update(start, alone, item_weights(weights, sets)), sets.layout)


def _scan(state: Kind, layout: Layout) -> Kind:
    """Merge each row with all rows of its set before it, over twice the distance in every round."""
    rows, step = torch.arange(layout.total, device=layout.device), 1
    while step < layout.longest:
        before = state.take((rows - step).clamp(min=0)).only(layout.positions >= step)
        state = before.merge(state)
        step *= 2
    return state


def _require_state(encoder: Any) -> None:
    if not isinstance(encoder, MergeableEncoder | MaxPool):
        raise OptionError(
            f"{type(encoder).__name__} keeps no state that could be gone on with; let UMBC read the items, with "
            "head=OnSlots(encoder)"
        )

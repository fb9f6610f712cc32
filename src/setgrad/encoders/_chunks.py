"""From a source to chunks on a device, and from a set to its pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.data import DataLoader

from setgrad._autograd import has_tangent, in_forward_mode, is_tracked
from setgrad._progress import track
from setgrad.encoders.sources import Chunks, prefetched, reads_disk
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Layout, Sets
from setgrad.sets._arrays import as_tensor


def chunks_of(source: Any, chunk_size: int, device: torch.device) -> Chunks:
    """A function that gives the chunks of a source from its beginning, at every call, on a device."""
    if isinstance(source, Sets):
        return lambda: (piece.to(device) for piece in _pieces(source, chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return lambda: (
            as_chunk(source[start : start + chunk_size], device) for start in range(0, max(1, len(source)), chunk_size)
        )
    if isinstance(source, str | Path):
        raise DataError(f"a path is no source of chunks; give NpyChunks({str(source)!r}) or ParquetChunks(...)")
    if isinstance(source, Iterator):
        raise _once()
    if callable(source):
        return lambda: (as_chunk(chunk, device) for chunk in source())
    if isinstance(source, Iterable):
        return lambda: (as_chunk(chunk, device) for chunk in source)
    raise DataError(f"chunks cannot be read from {type(source).__name__}; give Sets, an array, a list or a function")


def begun(source: Any, chunk_size: int, device: torch.device) -> tuple[int | None, Chunks]:
    """How many sets a chunk has pieces of, None if there is no chunk; and the chunks.

    The first pass goes on with what was begun to look at the first chunk, so that none is lost where a source turns out
    to give every chunk only once; the second pass finds that out.
    """
    if isinstance(source, Tensor | np.ndarray) and source.ndim < 1:
        raise ShapeError("a single number is no set; give an array with one row for each item")
    chunks = chunks_of(source, chunk_size, device)
    if isinstance(source, Sets | Tensor | np.ndarray):
        return len(source) if isinstance(source, Sets) else 1, chunks
    one = source() if callable(source) else iter(source)
    # Also an iterator that a function or an object gives again and again begins only once. One of a DataLoader with
    # persistent workers begins anew. What is no iterator can be gone through again, and may have cost much to make.
    if isinstance(one, Iterator) and not isinstance(source, DataLoader):
        other = source() if callable(source) else iter(source)
        if one is other:
            raise _once()
    rest = (as_chunk(chunk, device) for chunk in one)
    first = next(rest, None)
    if first is None:
        return None, chunks
    started = [_resumed([first], rest)]
    return len(first), lambda: started.pop() if started else chunks()


def _resumed(first: list[Sets], rest: Iterator[Sets]) -> Iterator[Sets]:
    # Popped, so that the first chunk does not stay in memory beside the others.
    yield first.pop()
    yield from rest


def watched(chunks: Chunks, source: Any, chunk_size: int, verbose: int = 0, prefetch: bool | None = None) -> Chunks:
    """The chunks of a source, read ahead and with a bar if that is wanted."""
    ahead = reads_disk(source) if prefetch is None else prefetch
    read = prefetched(chunks) if ahead else chunks
    return lambda: track(read(), "reading chunks", _count(source, chunk_size), enabled=verbose > 0)


def without_graph(chunks: Chunks) -> Chunks:
    """The same chunks; an error for one that requires a gradient or has a tangent, which would be lost."""
    wanted = torch.is_grad_enabled()
    if not wanted and not in_forward_mode():
        return chunks

    def read() -> Iterator[Sets]:
        left = iter(chunks())
        while True:
            # Passes make no graphs, and what a source computes inside one would not show that it wants a gradient.
            with torch.set_grad_enabled(wanted), forward_ad._set_fwd_grad_enabled(True):
                chunk = next(left, None)
                followed = chunk is not None and ((wanted and is_tracked(chunk.values)) or has_tangent(chunk.values))
            if chunk is None:
                return
            if followed:
                raise OptionError("items that require a gradient are only differentiated with gradient='full'")
            yield chunk

    return read


def _once() -> DataError:
    return DataError(
        "this source can be read only once, and it is read more often, in the backward pass at the latest; give a list "
        "of chunks, or a function that returns a new iterator at every call"
    )


def _count(source: Any, chunk_size: int) -> int | None:
    if isinstance(source, Sets):
        return max(1, math.ceil(source.layout.longest / chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return max(1, math.ceil(len(source) / chunk_size))
    return len(source) if hasattr(source, "__len__") else None


def _pieces(sets: Sets, size: int) -> Iterator[Sets]:
    """Items 0 to size - 1 of each set, then the next ones, and so on; at least one piece."""
    layout = sets.layout
    for start in range(0, max(1, layout.longest), size):
        lengths = np.clip(layout.host_lengths - start, 0, size)
        piece = Layout.from_lengths(lengths, sets.device)
        first = np.repeat(layout.host_offsets[:-1] + start - piece.host_offsets[:-1], lengths)
        yield Sets(sets.values[layout.to_device(first + np.arange(piece.total))], piece)


def only(chunk: Sets, wanted: np.ndarray) -> Sets:
    """The chunk with the pieces of some sets alone; the others are empty."""
    lengths = chunk.layout.host_lengths
    places = chunk.layout.to_device(np.flatnonzero(np.repeat(wanted, lengths)))
    return Sets(chunk.values[places], Layout.from_lengths(lengths * wanted, chunk.device))


def as_chunk(chunk: Any, device: torch.device) -> Sets:
    """A piece of one set, or of every set of a batch, as `Sets` on a device."""
    if isinstance(chunk, np.ndarray):
        chunk = as_tensor(_readable(chunk))
    if isinstance(chunk, Tensor) and chunk.dim():
        chunk = Sets.from_lengths(chunk, [len(chunk)])
    elif not isinstance(chunk, Sets):
        chunk = Sets.from_list([chunk])
    return chunk.to(device)


def _readable(array: np.ndarray) -> np.ndarray:
    """An array of a type and an order of bytes that torch knows. What is in memory is copied only for that."""
    kind = array.dtype.newbyteorder("=")
    if kind.kind not in "fiub" or kind.itemsize > 8:
        raise DataError(f"items must be numbers of at most 64 bits, not {array.dtype}; convert them (array.astype)")
    if kind.kind == "u" and kind.itemsize > 1:
        # Torch can hardly compute with these.
        kind = np.dtype(np.int64)
    # What is mapped from disk is copied once.
    return np.array(array, kind) if isinstance(array, np.memmap) else array.astype(kind, copy=False)

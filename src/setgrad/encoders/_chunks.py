"""Turn a source into chunks on a device, and split sets into chunks."""

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
from setgrad.sets._sets import as_tensor


def chunk_factory(source: Any, chunk_size: int, device: torch.device) -> Chunks:
    """Return a function that gives the chunks of a source on a device, from the start at every call."""
    if isinstance(source, Sets):
        return lambda: (chunk.to(device) for chunk in _split_sets(source, chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return lambda: (
            as_chunk(source[start : start + chunk_size], device) for start in range(0, max(1, len(source)), chunk_size)
        )
    if isinstance(source, str | Path):
        raise DataError(f"a path is not a source of chunks; pass NpyChunks({str(source)!r}) or ParquetChunks(...)")
    if isinstance(source, Iterator):
        raise _single_pass_source()
    if callable(source):
        return lambda: (as_chunk(chunk, device) for chunk in source())
    if isinstance(source, Iterable):
        return lambda: (as_chunk(chunk, device) for chunk in source)
    raise DataError(f"chunks cannot be read from {type(source).__name__}; pass Sets, an array, a list or a function")


def peek_batch_size(source: Any, chunk_size: int, device: torch.device) -> tuple[int | None, Chunks]:
    """Return the number of sets in the first chunk, None if there is no chunk; and a function that gives the chunks.

    The first pass continues the iterator that was opened to look at the first chunk. So no chunk is lost where a source
    turns out to give each chunk only once; the second pass detects that.
    """
    if isinstance(source, Tensor | np.ndarray) and source.ndim < 1:
        raise ShapeError("a single number is not a set; pass an array with one row for each item")
    chunks = chunk_factory(source, chunk_size, device)
    if isinstance(source, Sets | Tensor | np.ndarray):
        return len(source) if isinstance(source, Sets) else 1, chunks
    opened = source() if callable(source) else iter(source)
    # A function or object that returns the same iterator again can be read only once, but a DataLoader with persistent
    # workers resets its iterator. What is not an iterator, such as a list, can be iterated again and may be expensive.
    if isinstance(opened, Iterator) and not isinstance(source, DataLoader):
        reopened = source() if callable(source) else iter(source)
        if opened is reopened:
            raise _single_pass_source()
    rest = (as_chunk(chunk, device) for chunk in opened)
    first = next(rest, None)
    if first is None:
        return None, chunks
    started = [_chain([first], rest)]
    return len(first), lambda: started.pop() if started else chunks()


def _chain(first: list[Sets], rest: Iterator[Sets]) -> Iterator[Sets]:
    # Popped, so that the first chunk does not stay in memory beside the others.
    yield first.pop()
    yield from rest


def with_prefetch(
    chunks: Chunks, source: Any, chunk_size: int, *, verbose: int = 0, prefetch: bool | None = None
) -> Chunks:
    """Return the chunks of a source, read ahead in a thread and with a progress bar if requested."""
    read = prefetched(chunks) if (reads_disk(source) if prefetch is None else prefetch) else chunks
    if verbose < 1:
        return read
    return lambda: track(read(), "reading chunks", _chunk_count(source, chunk_size))


def check_untracked(chunks: Chunks) -> Chunks:
    """Return the same chunks; raise an OptionError at one that is differentiated, since its gradient would be lost."""
    grad_enabled = torch.is_grad_enabled()
    if not grad_enabled and not in_forward_mode():
        return chunks

    def read() -> Iterator[Sets]:
        rest, forward_mode = iter(chunks()), in_forward_mode()
        while True:
            # Passes disable gradients, which would hide that a source computes items from tensors that require them.
            with torch.set_grad_enabled(grad_enabled), forward_ad._set_fwd_grad_enabled(True):
                chunk = next(rest, None)
                if chunk is None:
                    return
                tracked = (grad_enabled and is_tracked(chunk.values)) or (forward_mode and has_tangent(chunk.values))
            if tracked:
                raise OptionError("items that require a gradient are only differentiated with gradient='full'")
            yield chunk

    return read


def _single_pass_source() -> DataError:
    return DataError(
        "this source can be read only once, but it is read again, in the backward pass at the latest; pass a list of "
        "chunks, or a function that returns a new iterator at every call"
    )


def _chunk_count(source: Any, chunk_size: int) -> int | None:
    if isinstance(source, Sets):
        return max(1, math.ceil(source.layout.longest / chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return max(1, math.ceil(len(source) / chunk_size))
    return len(source) if hasattr(source, "__len__") else None


def _split_sets(sets: Sets, size: int) -> Iterator[Sets]:
    """Yield items 0 to size - 1 of each set, then the next ones, and so on; at least one chunk."""
    layout = sets.layout
    for start in range(0, max(1, layout.longest), size):
        lengths = np.clip(layout.host_lengths - start, 0, size)
        part = Layout.from_lengths(lengths, sets.device)
        first = np.repeat(layout.host_offsets[:-1] + start - part.host_offsets[:-1], lengths)
        yield Sets(sets.values[layout.to_device(first + np.arange(part.total))], part)


def select_sets(chunk: Sets, selected: np.ndarray) -> Sets:
    """Return the chunk with the items of the selected sets only; the other sets are empty."""
    lengths = chunk.layout.host_lengths
    rows = chunk.layout.to_device(np.flatnonzero(np.repeat(selected, lengths)))
    return Sets(chunk.values[rows], Layout.from_lengths(lengths * selected, chunk.device))


def as_chunk(chunk: Any, device: torch.device) -> Sets:
    """Return a part of one set, or of every set of a batch, as `Sets` on a device."""
    if isinstance(chunk, np.ndarray):
        chunk = as_tensor(_torch_array(chunk))
    if isinstance(chunk, Tensor) and chunk.dim():
        return Sets.from_lengths(chunk.to(device), [len(chunk)])
    return (chunk if isinstance(chunk, Sets) else Sets.from_list([chunk])).to(device)


def _torch_array(array: np.ndarray) -> np.ndarray:
    """Return an array with a dtype and byte order that torch supports; copied only if that is needed."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise DataError(f"items must be numbers of at most 64 bits, not {array.dtype}; convert them (array.astype)")
    if dtype.kind == "u" and dtype.itemsize > 1:
        # Torch has few operations for these dtypes.
        dtype = np.dtype(np.int64)
    # A memory-mapped array is copied once.
    return np.array(array, dtype) if isinstance(array, np.memmap) else array.astype(dtype, copy=False)

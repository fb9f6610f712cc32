"""From a source to chunks on a device, and a look at them on the way: NaN, and chunks that are others than before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.encoders.sources import Chunks, prefetched, reads_disk, shown
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Layout, Sets

# How far the sum of all numbers may be off in a second pass, relative to the sum of their sizes: rounding, as of a
# network that makes the items on a GPU, is far below, and other items are far above.
_CHANGED = 1e-7


def chunks_of(source: Any, chunk_size: int, device: torch.device) -> Chunks:
    """A function that gives the chunks of a source from its beginning, at every call, on a device."""
    if isinstance(source, Sets):
        return lambda: (piece.to(device) for piece in _pieces(source, chunk_size))
    if isinstance(source, Tensor | np.ndarray):
        return lambda: (
            as_chunk(source[start : start + chunk_size], device) for start in range(0, max(1, len(source)), chunk_size)
        )
    if isinstance(source, Iterator):
        raise _once()
    if callable(source):
        return lambda: (as_chunk(chunk, device) for chunk in source())
    if isinstance(source, Iterable):
        return lambda: (as_chunk(chunk, device) for chunk in source)
    raise DataError(f"chunks cannot be read from {type(source).__name__}; give Sets, an array, a list or a function")


def pieces_of(source: Any, chunk_size: int, device: torch.device, gradient: str) -> int | None:
    """How many sets a chunk has pieces of; None if there is no chunk."""
    if isinstance(source, Tensor | np.ndarray) and source.ndim < 1:
        raise ShapeError("a single number is no set; give an array with one row for each item")
    if isinstance(source, Sets | Tensor | np.ndarray):
        first = next(iter(chunks_of(source, chunk_size, device)()))
    else:
        chunks_of(source, chunk_size, device)
        begun, again = (source() if callable(source) else iter(source) for _ in range(2))
        # Also an iterator that a function or an object gives again and again begins only once.
        if begun is again and isinstance(begun, Iterator):
            raise _once()
        some = next(iter(begun), None)
        if some is None:
            return None
        first = as_chunk(some, device)
    if first.values.requires_grad and gradient != "full":
        raise OptionError("items that require a gradient are only differentiated with gradient='full'")
    return len(first)


def watched(source: Any, chunk_size: int, device: torch.device, verbose: int, prefetch: bool | None) -> Chunks:
    """The chunks of a source, read ahead and with a bar if that is wanted."""
    chunks = chunks_of(source, chunk_size, device)
    ahead = reads_disk(source) if prefetch is None else prefetch
    return shown(prefetched(chunks) if ahead else chunks, _count(source, chunk_size), verbose)


@final
class Watch:
    """What is noted of the chunks of one pass. It waits for a GPU once, at the end of the pass.

    With `pieces`, `filled` says of each chunk which sets have items in it: the only thing here that grows with chunks.
    """

    def __init__(self, batch: int, *, pieces: bool = False) -> None:
        self.batch, self.number, self.pieces = batch, 0, pieces
        self.filled: list[np.ndarray] = []
        self._noted: Tensor | None = None
        self._bad: Tensor | None = None

    def note(self, chunk: Sets) -> Sets:
        """Note a chunk and give it back."""
        if len(chunk) != self.batch:
            raise ShapeError(
                f"the first chunk has pieces of {self.batch} sets, another one of {len(chunk)}; give one piece for "
                "each set, empty where there is nothing"
            )
        x = chunk.values.detach()
        whole = not x.dtype.is_floating_point
        size = x.abs().sum(dtype=torch.float64) if whole else torch.linalg.vector_norm(x, 1, dtype=torch.float64)
        if x.device.type == "cpu" and not bool(size.isfinite()):
            raise _spoilt(self.number)
        # The place of a number among the others of its chunk makes no difference, and its chunk does.
        found = torch.stack([x.sum(dtype=torch.float64) * (1 + self.number % 7), size * 7])
        here = torch.where(size.isfinite(), -1, self.number)
        self._noted = found if self._noted is None else self._noted + found
        self._bad = here if self._bad is None else torch.where(self._bad < 0, here, self._bad)
        self.number += 1
        if self.pieces:
            self.filled.append(chunk.layout.host_lengths > 0)
        return chunk

    def close(self) -> tuple[int, float, float]:
        """What was noted, once all chunks are read; an error if there was NaN or infinity."""
        if self._noted is None or self._bad is None:
            return 0, 0.0, 0.0
        total, size, bad = torch.cat([self._noted, self._bad[None].double()]).tolist()
        if bad >= 0:
            raise _spoilt(int(bad))
        return self.number, total, size


def require_same(first: tuple[int, float, float], second: tuple[int, float, float]) -> None:
    """Refuse a second pass that saw other items than the first."""
    if first[0] != second[0] or abs(first[1] - second[1]) > _CHANGED * first[2] or first[2] == 0.0 != second[2]:
        raise DataError(
            "the source gave other chunks in the second pass than in the first; it must give the same ones at every "
            "call (no shuffling, no augmentation that draws anew)"
        )


def _spoilt(number: int) -> DataError:
    return DataError(f"chunk {number} holds NaN or infinity; remove or impute such items first")


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
        first = np.repeat(layout.host[:-1] + start - piece.host[:-1], lengths)
        yield Sets(sets.values[layout.to_device(first + np.arange(piece.total))], piece)


def only(chunk: Sets, wanted: np.ndarray) -> Sets:
    """The chunk with the pieces of some sets alone; the others are empty."""
    lengths = chunk.layout.host_lengths
    places = chunk.layout.to_device(np.flatnonzero(np.repeat(wanted, lengths)))
    return Sets(chunk.values[places], Layout.from_lengths(lengths * wanted, chunk.device))


def as_chunk(chunk: Any, device: torch.device) -> Sets:
    """A piece of one set, or of every set of a batch, as `Sets` on a device."""
    if isinstance(chunk, np.ndarray):
        # What is mapped from disk is copied once; what is in memory, never.
        chunk = torch.as_tensor(np.array(chunk) if isinstance(chunk, np.memmap) or not chunk.flags.writeable else chunk)
    if isinstance(chunk, Tensor) and chunk.dim():
        chunk = Sets.from_lengths(chunk, [len(chunk)])
    elif not isinstance(chunk, Sets):
        chunk = Sets.from_list([chunk])
    return chunk.to(device)

"""Checks of the chunks of a stream: NaN, and items that differ from those of the first pass."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Sets

# How far the sum of a column may differ in a later pass, relative to the root of its sum of squares. Rounding errors,
# such as those of a network that computes the items on a GPU, are random and far below; one changed item is above.
_TOLERANCE = 1e-5
# Numbers that are checked at a time. Their float64 copies stay small beside a chunk of large items and fit into the
# cache of a CPU; a GPU is faster with fewer and longer steps.
_CPU_BLOCK, _GPU_BLOCK = 2**16, 2**22


@final
@dataclass(frozen=True, eq=False)
class PassDigest:
    """A summary of the chunks of one pass, to compare passes.

    Attributes:
        chunks: Number of chunks.
        lengths: Checksum of the numbers of items.
        sums: Sum of each column of the items, weighted by position; empty without chunks.
        squares: Sum of squares of each column, not weighted.
    """

    chunks: int
    lengths: int
    sums: Tensor
    squares: Tensor


@final
class StreamGuard:
    """Checks the chunks of one pass and summarises them. It waits for a GPU only once, at the end of the pass.

    With `record_filled`, `filled` lists for each chunk which sets have items in it; it is the only attribute that grows
    with the number of chunks.
    """

    def __init__(self, batch: int, *, record_filled: bool = False) -> None:
        self.batch, self.record_filled = batch, record_filled
        self.filled: list[np.ndarray] = []
        self._chunks = self._lengths = 0
        self._shape: tuple[int, ...] | None = None
        # Sums and squares, `(2, columns)`, and the weights of positions.
        self._totals, self._positions = torch.zeros(2, 0, dtype=torch.float64), torch.zeros(0)
        # Number of the first chunk that is not finite, or -1; only on a GPU.
        self._nonfinite: Tensor | None = None

    def observe(self, chunk: Sets) -> Sets:
        """Check a chunk, add it to the summary and return it."""
        lengths = chunk.layout.host_lengths
        if len(lengths) != self.batch:
            raise ShapeError(
                f"the first chunk holds items of {self.batch} sets, another one of {len(lengths)}; every chunk needs "
                "one part for each set, empty where there are no items"
            )
        shape = tuple(chunk.values.shape[1:])
        if self._shape is not None and shape != self._shape:
            raise ShapeError(
                f"chunk {self._chunks} holds items of shape {shape}, earlier chunks of shape {self._shape}; all items "
                "need the same shape"
            )
        totals = self._summarise(chunk.values)
        if self._shape is None:
            self._shape, self._totals = shape, torch.zeros_like(totals)
        # Chunks and positions have different weights, so that exchanged items count as changed.
        totals[0] *= 0.5 + math.modf(self._chunks * 0.6180339887)[0]
        self._totals += totals
        self._lengths = zlib.crc32(lengths.tobytes(), self._lengths)
        self._check_finite(totals[0])
        self._chunks += 1
        if self.record_filled:
            self.filled.append(lengths > 0)
        return chunk

    def _summarise(self, values: Tensor) -> Tensor:
        """Return the sums of the columns, weighted by position, and of their squares, `(2, columns)`."""
        total, columns = len(values), math.prod(values.shape[1:])
        x = values.detach().reshape(total, columns)
        rows = max(1, (_CPU_BLOCK if x.device.type == "cpu" else _GPU_BLOCK) // max(1, columns))
        if len(self._positions) < total or self._positions.device != x.device:
            self._positions = 1 + torch.arange(total, dtype=torch.float64, device=x.device).cos() / 2
        result = torch.zeros(2, columns, dtype=torch.float64, device=x.device)
        for start in range(0, total, rows):
            block = x[start : start + rows].double()
            result[0] += self._positions[start : start + len(block)] @ block
            result[1] += block.square().sum(0)
        return result

    def _check_finite(self, sums: Tensor) -> None:
        """Raise at once on the CPU; on a GPU, record the first nonfinite chunk for the end of the pass."""
        finite = sums.isfinite().all()
        if sums.device.type == "cpu":
            if not bool(finite):
                raise _nonfinite_chunk(self._chunks)
            return
        number = torch.where(finite, -1, self._chunks)
        self._nonfinite = (
            number if self._nonfinite is None else torch.where(self._nonfinite < 0, number, self._nonfinite)
        )

    def digest(self) -> PassDigest:
        """Return the summary after the last chunk; raise a DataError if a chunk was not finite."""
        totals = self._totals.flatten()
        if self._nonfinite is not None:
            *numbers, nonfinite = torch.cat([totals, self._nonfinite[None].double()]).tolist()
            if nonfinite >= 0:
                raise _nonfinite_chunk(int(nonfinite))
            totals = torch.tensor(numbers, dtype=torch.float64)
        sums, squares = totals.reshape(2, -1)
        return PassDigest(self._chunks, self._lengths, sums, squares)


def check_same_chunks(first: PassDigest, later: PassDigest) -> None:
    """Raise a DataError if a later pass read other items than the first."""
    same = (first.chunks, first.lengths, first.sums.shape) == (later.chunks, later.lengths, later.sums.shape)
    # Squares of numbers above 1e150 overflow to infinity; such items are not compared.
    if not same or bool(((first.sums - later.sums).abs() > _TOLERANCE * first.squares.sqrt()).any()):
        raise DataError(
            "the source gave other chunks in a later pass than in the first; it must give the same chunks at every "
            "call (no shuffling, no random augmentation, no exhausted generator)"
        )


def check_finite(*sums: Tensor) -> None:
    """Raise a DataError if sums over finite items are not finite."""
    if not bool(torch.stack([x.isfinite().all() for x in sums]).all()):
        raise DataError(
            "phi, or a sum of its features, is NaN or infinite for finite items; look at encoder.features(sets). The "
            "items may be outside the domain of phi (the logarithm of 0) or too large for the dtype of the encoder: "
            "scale them, or use encoder.double(). Or parameters of the encoder are NaN"
        )


def _nonfinite_chunk(number: int) -> DataError:
    return DataError(f"chunk {number} holds NaN or infinity; remove or impute such items first")

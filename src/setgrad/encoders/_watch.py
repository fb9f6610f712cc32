"""A look at chunks on their way: NaN, and items that are others than in the first pass."""

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

# How far the sum of a column may be off in a second pass, relative to the root of its sum of squares: rounding, as of a
# network that makes the items on a GPU, is random and far below, and one other item is above.
_CHANGED = 1e-5
# Numbers that are looked at together: their copies in float64 stay small beside a chunk of large items, and in the
# cache of a CPU; a GPU likes fewer and longer steps.
_ON_CPU, _ON_GPU = 2**16, 2**22


@final
@dataclass(frozen=True, eq=False)
class Noted:
    """What is known of a pass.

    Attributes:
        number: Chunks.
        lengths: A checksum of their layouts.
        sums: Of each column of the items, weighed by their places; empty without chunks.
        squares: The same for squares, not weighed.
    """

    number: int
    lengths: int
    sums: Tensor
    squares: Tensor


@final
class Watch:
    """What is noted of the chunks of one pass. It waits for a GPU once, at the end of the pass.

    With `pieces`, `filled` says of each chunk which sets have items in it: the only thing here that grows with chunks.
    """

    def __init__(self, batch: int, *, pieces: bool = False) -> None:
        self.batch, self.number, self.pieces = batch, 0, pieces
        self.filled: list[np.ndarray] = []
        self._lengths = 0
        self._shape: tuple[int, ...] | None = None
        # Sums and squares, `(2, width)`, the marks of places, and the number of the first chunk with NaN or -1.
        self._noted, self._marks = torch.zeros(2, 0, dtype=torch.float64), torch.zeros(0)
        self._bad: Tensor | None = None

    def note(self, chunk: Sets) -> Sets:
        """Note a chunk and give it back."""
        if len(chunk) != self.batch:
            raise ShapeError(
                f"the first chunk has pieces of {self.batch} sets, another one of {len(chunk)}; give one piece for "
                "each set, empty where there is nothing"
            )
        shape = tuple(chunk.item_shape)
        if self._shape is not None and shape != self._shape:
            raise ShapeError(
                f"chunk {self.number} holds items of shape {shape}, those before {self._shape}; give items of one shape"
            )
        found = self._look(chunk)
        if self._shape is None:
            self._shape, self._noted = shape, torch.zeros_like(found)
        # Chunks count differently, and so do their places: items that change places are other items.
        found[0] *= 0.5 + math.modf(self.number * 0.6180339887)[0]
        self._noted += found
        self._lengths = zlib.crc32(chunk.layout.host_lengths.tobytes(), self._lengths)
        self._refuse_spoilt(found[0])
        self.number += 1
        if self.pieces:
            self.filled.append(chunk.layout.host_lengths > 0)
        return chunk

    def _look(self, chunk: Sets) -> Tensor:
        """Sums of the columns, weighed by place, and of their squares, `(2, width)`, in few steps over the numbers."""
        total, width = chunk.layout.total, math.prod(chunk.item_shape)
        x = chunk.values.detach().reshape(total, width)
        rows = max(1, (_ON_CPU if x.device.type == "cpu" else _ON_GPU) // max(1, width))
        if len(self._marks) < total or self._marks.device != x.device:
            self._marks = 1 + torch.arange(total, dtype=torch.float64, device=x.device).cos() / 2
        found = torch.zeros(2, width, dtype=torch.float64, device=x.device)
        for start in range(0, total, rows):
            some = x[start : start + rows].double()
            found[0] += self._marks[start : start + len(some)] @ some
            found[1] += some.square().sum(0)
        return found

    def _refuse_spoilt(self, sums: Tensor) -> None:
        """Raise at once on the CPU; on a GPU, remember the first chunk for the end."""
        fine = sums.isfinite().all()
        if sums.device.type == "cpu":
            if not bool(fine):
                raise _spoilt(self.number)
            return
        here = torch.where(fine, -1, self.number)
        self._bad = here if self._bad is None else torch.where(self._bad < 0, here, self._bad)

    def close(self) -> Noted:
        """What was noted, once all chunks are read; an error if there was NaN or infinity."""
        noted = self._noted.flatten()
        if self._bad is not None:
            *numbers, bad = torch.cat([noted, self._bad[None].double()]).tolist()
            if bad >= 0:
                raise _spoilt(int(bad))
            noted = torch.tensor(numbers, dtype=torch.float64)
        sums, squares = noted.reshape(2, -1)
        return Noted(self.number, self._lengths, sums, squares)


def require_same(first: Noted, later: Noted) -> None:
    """Refuse a pass that saw other items than the first."""
    same = (first.number, first.lengths, first.sums.shape) == (later.number, later.lengths, later.sums.shape)
    # Squares of numbers above 1e150 are infinite; of such items nothing is compared.
    if not same or bool(((first.sums - later.sums).abs() > _CHANGED * first.squares.sqrt()).any()):
        raise DataError(
            "the source gave other chunks in a later pass than in the first; it must give the same ones at every "
            "call (no shuffling, no augmentation that draws anew, no generator that is used up)"
        )


def require_finite(*numbers: Tensor) -> None:
    """Refuse what was made of finite items if it is not finite."""
    if not bool(torch.stack([x.isfinite().all() for x in numbers]).all()):
        raise DataError(
            "phi, or what is summed of it, gave NaN or infinity for items that are finite; look at "
            "encoder.features(sets). Items may be out of phi's range (the logarithm of 0), or too large for the type "
            "of the encoder: scale them, or use encoder.double(); or weights of the encoder are NaN themselves"
        )


def _spoilt(number: int) -> DataError:
    return DataError(f"chunk {number} holds NaN or infinity; remove or impute such items first")

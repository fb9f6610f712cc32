"""What an encoder keeps of the items that it has read: sums, and the level that they are relative to.

States add up: reading a set in pieces, in any order, on any machine, and merging what was kept gives what reading it
at once gives. Sums of exponentials are kept relative to the largest exponent so far, so that none can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from setgrad._files import read_tensors, write_tensors
from setgrad.errors import ShapeError, StateError

# What must be left of a sum after a subtraction, in units of rounding, for a few digits to be right.
_LEFT = 1e3
Peaks = tuple[Tensor, ...]
_FORMAT = "setgrad encoder state 1"


@final
@dataclass(frozen=True, eq=False)
class State:
    """Sums over the items read so far, for each set of a batch.

    Attributes:
        sums: Tensors `(b, ...)` that add up over items.
        level: Exponent `(b, heads, slots)` that the sums are relative to, -inf for sets without items; None where the
            sums are absolute.
        count: Weight of all items of each set, `(b,)`.
        slots: What the items were compared with, `(slots, width)`; None for encoders without slots. States of
            different slots cannot be merged.
        peaks: Largest number that something was removed from, for each of `sums`: as the level, or `(b,)` without one.
            Rounding since then is relative to it. None where nothing was removed.
    """

    sums: tuple[Tensor, ...]
    level: Tensor | None
    count: Tensor
    slots: Tensor | None
    peaks: Peaks | None = None

    def __len__(self) -> int:
        return len(self.count)

    def merge(self, other: State) -> State:
        """The state of all items of both. Associative, and `encoder.begin` is its identity."""
        self._check(other)
        if self.level is None or other.level is None:
            sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
            return replace(self, sums=sums, count=self.count + other.count, peaks=_highest(self.peaks, other.peaks))
        level = torch.maximum(self.level, other.level)
        mine, theirs = self.at(level), other.at(level)
        sums = tuple(a + b for a, b in zip(mine.sums, theirs.sums, strict=True))
        return State(sums, level, self.count + other.count, self.slots, _highest(mine.peaks, theirs.peaks))

    def at(self, level: Tensor) -> State:
        """The same content relative to another level, which is not below its own."""
        if self.level is None:
            return self
        factor = shrink(self.level, level)
        peaks = None if self.peaks is None else tuple(p * factor for p in self.peaks)
        return replace(self, sums=tuple(times(s, factor) for s in self.sums), level=level, peaks=peaks)

    def remove(self, other: State) -> State:
        """The state without the items of another that was merged before.

        Raises where too few digits would be left: those of the largest number of a set's sums count, and what was
        removed before counts too. A set of which all items are removed is as it was at the beginning.
        """
        self._check(other)
        never, rounding = False, _LEFT * torch.finfo(self.sums[0].dtype).eps
        if self.level is not None and other.level is not None:
            # Items that are read anew, in other company, may have a level that is larger by rounding.
            slack = rounding * (1 + torch.where(self.level == -torch.inf, 0.0, self.level).abs())
            never, other = bool((other.level > self.level + slack).any()), other.at(self.level)
        sums = tuple(a - b for a, b in zip(self.sums, other.sums, strict=True))
        left = replace(self, sums=sums, count=self.count - other.count, peaks=None)
        some = left.count != 0
        lost = some & ~(left.count >= rounding * self.count)
        peaks = _highest(self.peaks, other.peaks, self._sizes(), other._sizes()) or ()
        for size, peak in zip(left._sizes(), peaks, strict=True):
            there = some.reshape(-1, *[1] * (size.dim() - 1))
            # What is left of everything is rounding, and of something it is more.
            wrong = torch.where(there, size < rounding * peak, size > rounding * peak)
            lost = lost | wrong.flatten(1).any(1) if wrong.dim() > 1 else lost | wrong
        if self.level is not None:
            # Sums of exponentials come first, and none is negative.
            lost = lost | (some & (sums[0] < 0).flatten(1).any(1))
        if never or bool(lost.any()):
            raise StateError(
                "the items to be removed hold nearly all of the weight, or were never merged: the rest would be "
                "rounding. Read the remaining items anew, or keep states in float64"
            )
        return replace(left, peaks=peaks).only(some)

    def _sizes(self) -> Peaks:
        """The largest number of each sum, in the shape of peaks."""
        axes = 1 if self.level is None else self.level.dim()
        found = (s.detach().abs() for s in self.sums)
        return tuple(s.flatten(axes).amax(-1) if s.dim() > axes else s for s in found)

    def detach(self) -> State:
        """The same numbers without a graph."""
        level, slots = (None if t is None else t.detach() for t in (self.level, self.slots))
        return State(tuple(s.detach() for s in self.sums), level, self.count.detach(), slots, self.peaks)

    def take(self, numbers: Tensor) -> State:
        """The states of the sets with these numbers, `(m,)`."""
        level = None if self.level is None else self.level[numbers]
        peaks = None if self.peaks is None else tuple(p[numbers] for p in self.peaks)
        return State(tuple(s[numbers] for s in self.sums), level, self.count[numbers], self.slots, peaks)

    def only(self, some: Tensor) -> State:
        """The same state where `some` `(b,)` is true, and that of nothing elsewhere."""
        sums, peaks = (
            tuple(torch.where(some.reshape(-1, *[1] * (s.dim() - 1)), s, 0.0) for s in part)
            for part in (self.sums, self.peaks or ())
        )
        level = None if self.level is None else torch.where(some[:, None, None], self.level, -torch.inf)
        return State(sums, level, torch.where(some, self.count, 0.0), self.slots, peaks or None)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, to be read back by `State.load` and gone on with."""
        named = {f"sums.{i}": s for i, s in enumerate(self.sums)} | {"count": self.count}
        named |= {f"peaks.{i}": p for i, p in enumerate(self.peaks or ())}
        named |= {name: t for name, t in (("level", self.level), ("slots", self.slots)) if t is not None}
        write_tensors(path, named, _FORMAT)

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> State:
        """Read a state that `save` wrote."""
        named, _ = read_tensors(path, _FORMAT, remedy="write it again with state.save", device=device)
        sums, peaks = (
            tuple(named[f"{kind}.{i}"] for i in range(sum(name.startswith(f"{kind}.") for name in named)))
            for kind in ("sums", "peaks")
        )
        return State(sums, named.get("level"), named["count"], named.get("slots"), peaks or None)

    def _check(self, other: State) -> None:
        if not isinstance(other, State):
            raise StateError(f"sums can be merged with those of another State, not with a {type(other).__name__}")
        mine, theirs = ([tuple(s.shape) for s in state.sums] for state in (self, other))
        if mine != theirs or (self.level is None) != (other.level is None):
            raise ShapeError(
                f"states of different encoders or batches cannot be merged: sums of shapes {mine} and {theirs}"
            )
        ours, others = self.slots, other.slots
        if ours is others:
            return
        if ours is None or others is None or ours.dtype != others.dtype or not torch.equal(ours, others):
            raise StateError(
                "these states were made with different slots: begin once, and give the other readers that state "
                "(state.save, State.load)"
            )


def shrink(old: Tensor, level: Tensor) -> Tensor:
    """Factor from one level to a higher one; 0 from none."""
    return torch.where(old == -torch.inf, 0.0, (old - torch.where(level == -torch.inf, 0.0, level)).exp())


def times(x: Tensor, factor: Tensor) -> Tensor:
    """Sums `(b, ...)` times a factor for their first axes."""
    return x * factor.reshape(*factor.shape, *[1] * (x.dim() - factor.dim()))


def _highest(*many: Peaks | None) -> Peaks | None:
    """The largest of each number; None if nobody knows any."""
    known = [some for some in many if some is not None]
    return reduce(lambda a, b: tuple(map(torch.maximum, a, b)), known) if known else None

"""What an encoder keeps of the items that it has read: sums, and the level that they are relative to.

States add up: reading a set in pieces, in any order, on any machine, and merging what was kept gives what reading it
at once gives. Sums of exponentials are kept relative to the largest exponent so far, so that none can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from setgrad.encoders._state_files import read_tensors, write_tensors
from setgrad.errors import ShapeError, StateError

# What must be left of a sum of exponentials after a subtraction, in units of rounding, for a few digits to be right.
_LEFT = 1e3
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
    """

    sums: tuple[Tensor, ...]
    level: Tensor | None
    count: Tensor
    slots: Tensor | None

    def __len__(self) -> int:
        return len(self.count)

    def merge(self, other: State) -> State:
        """The state of all items of both. Associative, and `encoder.begin` is its identity."""
        self._check(other)
        if self.level is None or other.level is None:
            sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
            return replace(self, sums=sums, count=self.count + other.count)
        level = torch.maximum(self.level, other.level)
        mine, theirs = (shrink(old, level) for old in (self.level, other.level))
        sums = tuple(times(a, mine) + times(b, theirs) for a, b in zip(self.sums, other.sums, strict=True))
        return State(sums, level, self.count + other.count, self.slots)

    def remove(self, other: State) -> State:
        """The state without the items of another that was merged before.

        Raises where too few digits would be left, as when the items removed were those with the largest exponents.
        """
        self._check(other)
        if self.level is None or other.level is None:
            sums = tuple(a - b for a, b in zip(self.sums, other.sums, strict=True))
            return replace(self, sums=sums, count=self.count - other.count)
        share = shrink(other.level, self.level)
        sums = tuple(a - times(b, share) for a, b in zip(self.sums, other.sums, strict=True))
        left = sums[0] / self.sums[0].clamp(min=torch.finfo(sums[0].dtype).tiny)
        count = self.count - other.count
        lost = (left < _LEFT * torch.finfo(left.dtype).eps) & (count > 0)[:, None, None]
        if bool(lost.any()) or bool((other.level > self.level).any()):
            raise StateError(
                "the items to be removed hold nearly all of the weight, or were never merged: the rest would be "
                "rounding. Read the remaining items anew, or keep states in float64"
            )
        return State(sums, self.level, count, self.slots)

    def detach(self) -> State:
        """The same numbers without a graph."""
        level, slots = (None if t is None else t.detach() for t in (self.level, self.slots))
        return State(tuple(s.detach() for s in self.sums), level, self.count.detach(), slots)

    def take(self, numbers: Tensor) -> State:
        """The states of the sets with these numbers, `(m,)`."""
        level = None if self.level is None else self.level[numbers]
        return State(tuple(s[numbers] for s in self.sums), level, self.count[numbers], self.slots)

    def only(self, some: Tensor) -> State:
        """The same state where `some` `(b,)` is true, and that of nothing elsewhere."""
        rows = [some.reshape(-1, *[1] * (s.dim() - 1)) for s in self.sums]
        sums = tuple(torch.where(row, s, 0.0) for row, s in zip(rows, self.sums, strict=True))
        level = None if self.level is None else torch.where(some[:, None, None], self.level, -torch.inf)
        return State(sums, level, torch.where(some, self.count, 0.0), self.slots)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, to be read back by `State.load` and gone on with."""
        named = {f"sums.{i}": s for i, s in enumerate(self.sums)} | {"count": self.count}
        named |= {name: t for name, t in (("level", self.level), ("slots", self.slots)) if t is not None}
        write_tensors(path, named, _FORMAT)

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> State:
        """Read a state that `save` wrote."""
        named = read_tensors(path, _FORMAT, device)
        sums = tuple(named[f"sums.{i}"] for i in range(sum(name.startswith("sums.") for name in named)))
        return State(sums, named.get("level"), named["count"], named.get("slots"))

    def _check(self, other: State) -> None:
        mine, theirs = ([tuple(s.shape) for s in state.sums] for state in (self, other))
        if mine != theirs or (self.level is None) != (other.level is None):
            raise ShapeError(
                f"states of different encoders or batches cannot be merged: sums of shapes {mine} and {theirs}"
            )
        if self.slots is other.slots:
            return
        if self.slots is None or other.slots is None or not torch.equal(self.slots, other.slots):
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

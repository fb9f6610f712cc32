"""The state of a mergeable encoder: sums over the items read so far, and the level that they are relative to.

States add up: reading a set in chunks, in any order, on any machine, and merging the states gives the same result as
reading the whole set. Sums of exponentials are kept relative to the largest exponent so far, so that they cannot
overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from setgrad._files import read_tensors, write_tensors
from setgrad.encoders._fingerprint import (
    Fingerprint,
    check_same_encoder,
    fingerprint_entry,
    fingerprint_from,
)
from setgrad.errors import FileFormatError, ShapeError, StateError

# The smallest part of a sum that may remain after a subtraction, in units of rounding, to keep a few correct digits.
_MIN_REMAINDER = 1e3
Peaks = tuple[Tensor, ...]
_FORMAT, _REMEDY = "setgrad encoder state 2", "write it again with state.save"


@final
@dataclass(frozen=True, eq=False)
class State:
    """Sums over the items read so far, for each set of a batch.

    Attributes:
        sums: Tensors `(b, ...)` that add up over items.
        level: Exponent `(b, heads, slots)` that the sums are relative to, -inf for sets without items; None if the sums
            are absolute.
        count: Number of items of each set, `(b,)`: the sum of their counts.
        slots: The queries that the items were compared with, `(slots, dim)`; None for encoders without slots. States
            with different slots cannot be merged.
        peaks: For each of `sums`, the largest magnitude that something was removed from, in the shape of the level, or
            `(b,)` without one. Rounding errors are relative to it. None if nothing was removed.
        encoder: What identifies the encoder that read the items; None if it is not known. States of different encoders
            cannot be merged.
    """

    sums: tuple[Tensor, ...]
    level: Tensor | None
    count: Tensor
    slots: Tensor | None
    peaks: Peaks | None = None
    encoder: Fingerprint | None = None

    def __len__(self) -> int:
        return len(self.count)

    def merge(self, other: State) -> State:
        """Return the state of the items of both. Associative; the state of `encoder.begin` is the identity.

        Raises:
            ShapeError: If the states belong to different encoders or batches.
            StateError: If they were built with different slots, or by encoders with different weights.
        """
        self._check(other)
        encoder = self.encoder or other.encoder
        if self.level is None or other.level is None:
            sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
            peaks = _maximum(self.peaks, other.peaks)
            return replace(self, sums=sums, count=self.count + other.count, peaks=peaks, encoder=encoder)
        level = torch.maximum(self.level, other.level)
        left, right = self.at(level), other.at(level)
        sums = tuple(a + b for a, b in zip(left.sums, right.sums, strict=True))
        return State(sums, level, self.count + other.count, self.slots, _maximum(left.peaks, right.peaks), encoder)

    def at(self, level: Tensor) -> State:
        """Return the same state relative to another level, which must not be below its own."""
        if self.level is None:
            return self
        base = torch.where(level == -torch.inf, 0.0, level)
        factor = torch.where(self.level == -torch.inf, 0.0, (self.level - base).exp())
        peaks = None if self.peaks is None else tuple(p * factor for p in self.peaks)
        sums = tuple(s * factor.reshape(*factor.shape, *[1] * (s.dim() - factor.dim())) for s in self.sums)
        return replace(self, sums=sums, level=level, peaks=peaks)

    def remove(self, other: State) -> State:
        """Return the state without the items of another state that was merged before, as for a sliding window.

        A set that loses all of its items gets the state of an empty set.

        Raises:
            StateError: If too few correct digits would remain, counted from the largest number of the sums of a set and
                over all removals; or if the items were never merged.

        Examples:
            >>> from setgrad.encoders import DeepSets
            >>> from setgrad.sets import Sets
            >>> encoder = DeepSets(1, torch.nn.Identity())
            >>> first, second = (encoder.update(encoder.begin(), Sets.from_list([[[x]]])) for x in (1.0, 2.0))
            >>> encoder.finish(first.merge(second).remove(first)).tolist()
            [[2.0]]
        """
        self._check(other)
        never_merged, rounding = False, _MIN_REMAINDER * torch.finfo(self.sums[0].dtype).eps
        if self.level is not None and other.level is not None:
            # Items that are read again in another chunk may have a level that is larger by rounding.
            slack = rounding * (1 + torch.where(self.level == -torch.inf, 0.0, self.level).abs())
            never_merged, other = bool((other.level > self.level + slack).any()), other.at(self.level)
        sums = tuple(a - b for a, b in zip(self.sums, other.sums, strict=True))
        rest = replace(self, sums=sums, count=self.count - other.count, peaks=None)
        nonempty = rest.count != 0
        lost = nonempty & ~(rest.count >= rounding * self.count)
        peaks = _maximum(self.peaks, other.peaks, self._magnitudes(), other._magnitudes()) or ()
        for size, peak in zip(rest._magnitudes(), peaks, strict=True):
            filled = nonempty.reshape(-1, *[1] * (size.dim() - 1))
            # An emptied set must leave rounding errors only, and any other set must leave more.
            wrong = torch.where(filled, size < rounding * peak, size > rounding * peak)
            lost = lost | wrong.flatten(1).any(1) if wrong.dim() > 1 else lost | wrong
        if self.level is not None:
            # The first sums are sums of exponentials, which are never negative.
            lost = lost | (nonempty & (sums[0] < 0).flatten(1).any(1))
        if never_merged or bool(lost.any()):
            raise StateError(
                "the items to be removed hold nearly all of the weight, or were never merged: the rest would be "
                "rounding errors. Read the remaining items again, or keep states in float64"
            )
        return replace(rest, peaks=peaks)._keep(nonempty)

    def _magnitudes(self) -> Peaks:
        """Return the largest magnitude of each of the sums, in the shape of peaks."""
        axes = 1 if self.level is None else self.level.dim()
        sizes = (s.detach().abs() for s in self.sums)
        return tuple(s.flatten(axes).amax(-1) if s.dim() > axes else s for s in sizes)

    def _keep(self, nonempty: Tensor) -> State:
        """Return the same state where `nonempty` `(b,)` is true, and the state of an empty set elsewhere."""
        sums, peaks = (
            tuple(torch.where(nonempty.reshape(-1, *[1] * (s.dim() - 1)), s, 0.0) for s in part)
            for part in (self.sums, self.peaks or ())
        )
        level = None if self.level is None else torch.where(nonempty[:, None, None], self.level, -torch.inf)
        return State(sums, level, torch.where(nonempty, self.count, 0.0), self.slots, peaks or None, self.encoder)

    def detach(self) -> State:
        """Return the same state without its graph."""
        level, slots = (None if t is None else t.detach() for t in (self.level, self.slots))
        sums = tuple(s.detach() for s in self.sums)
        return State(sums, level, self.count.detach(), slots, self.peaks, self.encoder)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, so that `State.load` can resume it.

        Raises:
            DataError: If the file cannot be written.
            StateError: If the weights of the encoder changed since the state was begun.
        """
        write_tensors(path, self.to_tensors(), _FORMAT, **fingerprint_entry(self.encoder))

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> State:
        """Return the state that `save` wrote.

        Raises:
            FileFormatError: If the file is missing, damaged or holds something else.
        """
        named, metadata = read_tensors(path, _FORMAT, remedy=_REMEDY, device=device)
        try:
            return State.from_tensors(named, fingerprint_from(metadata))
        except (LookupError, ValueError) as error:
            raise FileFormatError(f"{path} is not a whole state ({error}); {_REMEDY}") from None

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state by name, for a file."""
        named = {f"sums.{i}": s for i, s in enumerate(self.sums)} | {"count": self.count}
        named |= {f"peaks.{i}": p for i, p in enumerate(self.peaks or ())}
        return named | {name: t for name, t in (("level", self.level), ("slots", self.slots)) if t is not None}

    @staticmethod
    def from_tensors(named: dict[str, Tensor], encoder: Fingerprint | None) -> State:
        """Return the state of tensors that `to_tensors` returned.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If they do not fit together.
        """
        sums, peaks = (
            tuple(named[f"{kind}.{i}"] for i in range(sum(name.startswith(f"{kind}.") for name in named)))
            for kind in ("sums", "peaks")
        )
        state = State(sums, named.get("level"), named["count"], named.get("slots"), peaks or None, encoder)
        state._check_parts()
        return state

    def _check_parts(self) -> None:
        """Raise a ValueError if the parts do not fit together."""
        batch = self.count.shape
        if len(batch) != 1 or not self.sums or not bool((self.count >= 0).all() & self.count.isfinite().all()):
            raise ValueError("the counts are not one for each set")
        sums = [s.shape for s in self.sums]
        axes = 1 if self.level is None else 3
        if self.level is not None and (self.level.dim() != 3 or bool(self.level.isnan().any())):
            raise ValueError("the level is not one number for each head and slot")
        heads = batch if self.level is None else self.level.shape
        if any(shape[:1] != batch or shape[:axes] != heads for shape in (*sums, heads)):
            raise ValueError(f"sums of shapes {[tuple(shape) for shape in sums]} do not go with {tuple(batch)} counts")
        if self.slots is not None and self.slots.dim() != 2:
            raise ValueError("the slots are not vectors")
        if self.peaks is not None and [p.shape for p in self.peaks] != [shape[:axes] for shape in sums]:
            raise ValueError("there is not one peak for each of the sums")
        every = (*self.sums, self.count, *(self.peaks or ()), *(t for t in (self.level, self.slots) if t is not None))
        if not all(t.is_floating_point() for t in every):
            raise ValueError("its numbers are integers")

    def _check(self, other: State) -> None:
        if not isinstance(other, State):
            raise StateError(f"a State can be merged with another State, not with a {type(other).__name__}")
        shapes, others = ([tuple(s.shape) for s in state.sums] for state in (self, other))
        if shapes != others or (self.level is None) != (other.level is None):
            raise ShapeError(
                f"states of different encoders or batches cannot be merged: sums of shapes {shapes} and {others}"
            )
        check_same_encoder(self.encoder, other.encoder)
        a, b = self.slots, other.slots
        if a is b:
            return
        if a is None or b is None or a.dtype != b.dtype or not torch.equal(a, b):
            raise StateError(
                "these states were built with different slots: call begin once, and give that state to all readers "
                "(state.save, State.load)"
            )


def _maximum(*many: Peaks | None) -> Peaks | None:
    """Return the elementwise maxima; None if all arguments are None."""
    known = [peaks for peaks in many if peaks is not None]
    return reduce(lambda a, b: tuple(map(torch.maximum, a, b)), known) if known else None

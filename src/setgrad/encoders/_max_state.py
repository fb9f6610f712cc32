"""The state of a maximum: the largest values so far, and the items that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
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
from setgrad.encoders._pooling import first_arg_max
from setgrad.errors import FileFormatError, ShapeError, StateError
from setgrad.sets import Sets

_FORMAT, _REMEDY = "setgrad max state 2", "write it again with state.save"


@final
@dataclass(frozen=True, eq=False)
class MaxState:
    """The largest values so far, for each set of a batch.

    Attributes:
        value: Largest value of each feature, `(b, features)`; -inf where nothing was read.
        number: Index of the item with that value, in the order of reading, `(b, features)`; the first of equal ones,
            -1 for none.
        items: These items, `(b, features, *item_shape)`.
        length: Number of items read, `(b,)`.
        encoder: What identifies the encoder that read the items; None if it is not known. States of different encoders
            cannot be merged.
    """

    value: Tensor
    number: Tensor
    items: Tensor
    length: Tensor
    encoder: Fingerprint | None = None

    def __len__(self) -> int:
        return len(self.length)

    def merge(self, other: MaxState) -> MaxState:
        """Return the state of the items of both; the items of `other` are numbered last. Associative.

        Raises:
            StateError: If `other` is another kind of state, or of an encoder with different weights.
            ShapeError: If the states belong to different encoders or batches.
        """
        if not isinstance(other, MaxState):
            raise StateError(f"a MaxState can be merged with another MaxState, not with a {type(other).__name__}")
        if self.value.shape != other.value.shape or self.items.shape != other.items.shape:
            raise ShapeError(
                "states of different encoders or batches cannot be merged: values of shapes "
                f"{tuple(self.value.shape)} and {tuple(other.value.shape)}"
            )
        check_same_encoder(self.encoder, other.encoder)
        # NaN of either state stays, and an item with value -inf wins over no item.
        wins = (self.value >= other.value) & ((self.number >= 0) | (other.number < 0)) | self.value.isnan()
        # An empty state holds no items yet, so it does not know that they are integers.
        dtype = other.items.dtype if self.items.dtype.is_floating_point else self.items.dtype
        item_wins = wins.reshape(*wins.shape, *[1] * (self.items.dim() - wins.dim()))
        return MaxState(
            torch.where(wins, self.value, other.value),
            torch.where(wins, self.number, other.number + self.length[:, None]),
            torch.where(item_wins, self.items.to(dtype), other.items.to(dtype)),
            self.length + other.length,
            self.encoder or other.encoder,
        )

    def remove(self, other: MaxState) -> MaxState:
        """Raise a StateError: the items below the maximum are not kept, so nothing can be removed."""
        raise StateError(
            "items cannot be removed from a maximum, since only the largest are kept; read the remaining items again"
        )

    def detach(self) -> MaxState:
        """Return the same state without its graph."""
        return MaxState(self.value.detach(), self.number, self.items.detach(), self.length, self.encoder)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, so that `MaxState.load` can resume it.

        Raises:
            DataError: If the file cannot be written.
            StateError: If the weights of the encoder changed since the state was begun.
        """
        named = {"value": self.value, "number": self.number, "items": self.items, "length": self.length}
        write_tensors(path, named, _FORMAT, **fingerprint_entry(self.encoder))

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> MaxState:
        """Return the state that `save` wrote.

        Raises:
            FileFormatError: If the file is missing, damaged or holds something else.
        """
        named, metadata = read_tensors(path, _FORMAT, remedy=_REMEDY, device=device)
        try:
            parts = {name: named[name] for name in ("value", "number", "items", "length")}
            state = MaxState(**parts, encoder=fingerprint_from(metadata))
            state._check_parts()
        except (LookupError, ValueError) as error:
            raise FileFormatError(f"{path} is not a whole state ({error}); {_REMEDY}") from None
        return state

    def _check_parts(self) -> None:
        """Raise a ValueError if the parts do not fit together."""
        shape = self.value.shape
        if len(shape) != 2 or self.number.shape != shape or self.items.shape[:2] != shape:
            raise ValueError("values, numbers and items have other shapes")
        if self.length.shape != shape[:1] or not self.value.is_floating_point():
            raise ValueError("the lengths are not one for each set, or the values are integers")
        if {self.number.dtype, self.length.dtype} != {torch.int64} or bool((self.length < 0).any()):
            raise ValueError("the numbers of items are not whole numbers of at least 0")
        if bool(((self.number < -1) | (self.number >= self.length[:, None])).any()):
            raise ValueError("a maximum belongs to an item that was not read")


def max_state(values: Tensor, items: Sets, counts: Tensor) -> MaxState:
    """Return the state of items `(total, ...)` with these values `(total, features)`; items of count 0 are skipped."""
    valid = counts > 0
    values = torch.where(valid[:, None], values, -torch.inf)
    first = first_arg_max(values, items, valid)
    if not len(values):
        # There is no row to gather from.
        value = values.new_full(first.shape, -torch.inf)
        return MaxState(value, first, items.values.new_zeros(*first.shape, *items.item_shape), items.lengths)
    exists, rows = first >= 0, first.clamp(min=0)
    value = torch.where(exists, values.gather(0, rows), -torch.inf)
    number = torch.where(exists, first - items.layout.offsets[:-1, None], -1)
    return MaxState(value, number, items.values[rows], items.lengths)


def check_max_state(state: object, features: int) -> None:
    """Raise a StateError for anything but a maximum of that many features."""
    if not isinstance(state, MaxState) or state.value.shape[1] != features:
        raise StateError(
            f"this encoder needs a MaxState of {features} features, not "
            f"{'the state of another encoder' if isinstance(state, MaxState) else f'a {type(state).__name__}'}; pass a "
            "state that started with its own begin()"
        )


def distinct_items(state: MaxState) -> tuple[Tensor, Tensor]:
    """Return the items with a maximum, each once, and for every maximum the row of its item, `(b, features)`."""
    longest = state.length.max() if len(state) else 0
    # One item often has the maximum of many features.
    offsets = torch.arange(len(state), device=state.number.device)[:, None] * (longest + 1)
    distinct, index = torch.unique(offsets + state.number + 1, return_inverse=True)
    flat = index.flatten()
    # Any position of an item will do.
    positions = torch.zeros_like(distinct).scatter(0, flat, torch.arange(len(flat), device=flat.device))
    return state.items.flatten(0, 1)[positions], index

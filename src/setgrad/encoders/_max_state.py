"""What a maximum keeps of the items that it has read: the largest values, and the items that gave them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from setgrad._files import read_tensors, write_tensors
from setgrad.encoders._pooling import first_arg_max
from setgrad.errors import ShapeError, StateError
from setgrad.sets import Sets

_FORMAT = "setgrad max state 1"


@final
@dataclass(frozen=True, eq=False)
class MaxState:
    """The largest values so far, for each set of a batch.

    Attributes:
        value: Largest value of each feature, `(b, width)`; -inf where nothing was read.
        number: Which item gave it, in the order of reading, `(b, width)`; -1 for none. The first of equals.
        items: These items themselves, `(b, width, *item_shape)`.
        length: Items read, `(b,)`.
    """

    value: Tensor
    number: Tensor
    items: Tensor
    length: Tensor

    def __len__(self) -> int:
        return len(self.length)

    def merge(self, other: MaxState) -> MaxState:
        """The state of all items of both, those of `other` numbered after one's own. Associative."""
        if not isinstance(other, MaxState):
            raise StateError(f"a maximum can be merged with another MaxState, not with a {type(other).__name__}")
        if self.value.shape != other.value.shape or self.items.shape != other.items.shape:
            raise ShapeError(
                "states of different encoders or batches cannot be merged: values of shapes "
                f"{tuple(self.value.shape)} and {tuple(other.value.shape)}"
            )
        # NaN stays, whoever has it, and -inf of an item stays beside that of nothing.
        mine = (self.value >= other.value) & ((self.number >= 0) | (other.number < 0)) | self.value.isnan()
        # A state that begins does not know yet that items are tokens, which are no floating-point numbers.
        kind = other.items.dtype if self.items.dtype.is_floating_point else self.items.dtype
        return MaxState(
            torch.where(mine, self.value, other.value),
            torch.where(mine, self.number, other.number + self.length[:, None]),
            torch.where(_beside(mine, self.items), self.items.to(kind), other.items.to(kind)),
            self.length + other.length,
        )

    def remove(self, other: MaxState) -> MaxState:
        """There is no such state: the items that others outshone are not kept."""
        raise StateError("of a maximum nothing can be removed, since only the largest are kept; read the rest anew")

    def take(self, numbers: Tensor) -> MaxState:
        """The states of the sets with these numbers, `(m,)`."""
        return MaxState(self.value[numbers], self.number[numbers], self.items[numbers], self.length[numbers])

    def only(self, some: Tensor) -> MaxState:
        """The same state where `some` `(b,)` is true, and that of nothing elsewhere."""
        row = some[:, None]
        return MaxState(
            torch.where(row, self.value, -torch.inf),
            torch.where(row, self.number, -1),
            torch.where(_beside(row, self.items), self.items, 0),
            torch.where(some, self.length, 0),
        )

    def detach(self) -> MaxState:
        """The same numbers without a graph."""
        return MaxState(self.value.detach(), self.number, self.items.detach(), self.length)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, to be read back by `MaxState.load` and gone on with."""
        named = {"value": self.value, "number": self.number, "items": self.items, "length": self.length}
        write_tensors(path, named, _FORMAT)

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> MaxState:
        """Read a state that `save` wrote."""
        named, _ = read_tensors(path, _FORMAT, remedy="write it again with state.save", device=device)
        return MaxState(named["value"], named["number"], named["items"], named["length"])


def max_state(values: Tensor, items: Sets, weights: Tensor) -> MaxState:
    """The state of items `(total, ...)` with these values `(total, width)`; an item of weight 0 is no item."""
    there = weights > 0
    values = torch.where(there[:, None], values, -torch.inf)
    first = first_arg_max(values, items, there)
    some, rows = first >= 0, first.clamp(min=0)
    if not len(values):
        # There is no row to point at.
        value = values.new_full(first.shape, -torch.inf)
        return MaxState(value, first, items.values.new_zeros(*first.shape, *items.item_shape), items.lengths)
    value = torch.where(some, values.gather(0, rows), -torch.inf)
    number = torch.where(some, first - items.layout.offsets[:-1, None], -1)
    return MaxState(value, number, items.values[rows], items.lengths)


def require_maxima(state: object, width: int) -> None:
    """Refuse a state that is none of a maximum of so many features."""
    if not isinstance(state, MaxState) or state.value.shape[1] != width:
        raise StateError(
            f"this encoder keeps the maxima of {width} features in a MaxState, and this is "
            f"{'one of another encoder' if isinstance(state, MaxState) else f'a {type(state).__name__}'}; give a state "
            "that its own begin began"
        )


def distinct_items(state: MaxState) -> tuple[Tensor, Tensor]:
    """The items that gave a maximum, each once, and for every maximum the row of its item, `(b, width)`."""
    longest = state.length.max() if len(state) else 0
    # One item often gives many features their maximum.
    offsets = torch.arange(len(state), device=state.number.device)[:, None] * (longest + 1)
    distinct, place = torch.unique(offsets + state.number + 1, return_inverse=True)
    flat = place.flatten()
    # Any of the places of an item will do.
    some = torch.zeros_like(distinct).scatter(0, flat, torch.arange(len(flat), device=flat.device))
    return state.items.flatten(0, 1)[some], place


def _beside(mask: Tensor, items: Tensor) -> Tensor:
    """A mask of as many axes as the items have."""
    return mask.reshape(*mask.shape, *[1] * (items.dim() - mask.dim()))

"""Sets together with the subset that was chosen from each, checked once at the door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._arrays import as_tensor
from setgrad.sets._segments import segment_sum
from setgrad.sets._sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Choices:
    """Sets and the chosen subsets, with the ids they had in a table.

    Unpacks into the two things that are always there: `sets, subsets = choices`. `subsets` is a `Sets` of booleans
    with the layout of `sets`. `set_ids` has one entry for each set; `item_ids` and `weights` have one for each item,
    in the order of `sets.values`; `features` names the columns of the items.

    Example:
        >>> choices = Choices.of([[[0.0], [1.0]], [[2.0]]], [[1], []])
        >>> sets, subsets = choices
        >>> [mask.tolist() for mask in subsets]
        [[False, True], [False]]
    """

    sets: Sets
    subsets: Sets
    set_ids: Sequence[Any] | None = None
    item_ids: Sequence[Any] | np.ndarray | None = None
    weights: Tensor | None = None
    features: Sequence[str] | None = None

    @staticmethod
    def of(sets: Any, subsets: Any) -> Choices:
        """Check both and bring them to the canonical form."""
        sets = as_sets(sets)
        return Choices(sets, as_subsets(subsets, sets))

    def __iter__(self) -> Iterator[Sets]:
        return iter((self.sets, self.subsets))

    def __len__(self) -> int:
        return len(self.sets)


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Sets from which nothing was chosen yet, with the ids they had in a table: what a selector picks from.

    `read_table` gives it when no column says what was chosen, so that `sets, subsets = ...` fails at once instead of
    carrying a `None` to a place where nobody expects it. The fields mean what they mean in `Choices`.
    """

    sets: Sets
    set_ids: Sequence[Any] | None = None
    item_ids: Sequence[Any] | np.ndarray | None = None
    weights: Tensor | None = None
    features: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.sets)


def as_sets(sets: Any) -> Sets:
    """Accept `Sets`, a list of arrays `(n_i, d)` or one array `(b, n, d)`; refuse NaN and infinity.

    Whole numbers become real, those of 4 bytes and more float64, which keeps all digits of times and counts. Bytes,
    which letters and images come in, stay: they take a quarter of the room.
    """
    if isinstance(sets, Choices):
        raise DataError("sets and subsets were passed as one object; unpack them: sets, subsets = choices")
    if isinstance(sets, Table):
        raise DataError("a table was passed where its sets are wanted; pass table.sets")
    if not isinstance(sets, Sets):
        sets = Sets.from_list(_as_list(sets, "sets"))
    if sets.dtype.is_complex:
        raise DataError("items are complex numbers; give real and imaginary parts as features of their own")
    if not sets.dtype.is_floating_point and sets.dtype != torch.uint8:
        sets = sets.to(torch.float64 if sets.values.element_size() >= 4 else torch.get_default_dtype())
    if not bool(sets.values.isfinite().all()):
        finite = sets.values.isfinite().reshape(sets.layout.total, -1).all(1)
        item = int((~finite).nonzero()[0])
        number = int(np.searchsorted(sets.layout.host, item, side="right")) - 1
        raise DataError(
            f"item {item - sets.layout.host[number]} of set {number} holds NaN or infinity "
            f"({int((~finite).sum())} such items in all); remove or impute them first"
        )
    return sets


def as_subsets(subsets: Any, sets: Sets) -> Sets:
    """Accept masks or indices in any usual form and return a `Sets` of booleans aligned with `sets`.

    A flat boolean tensor over all items, a `Sets` of booleans, a `Sets` of indices, or a list with one boolean mask
    or one list of indices for each set. Whole numbers are always indices, never a mask.
    """
    flat = isinstance(subsets, (Tensor, np.ndarray)) and subsets.ndim == 1 and str(subsets.dtype).endswith("bool")
    if flat:
        mask = as_tensor(subsets).to(sets.device)
        if len(mask) != sets.layout.total:
            raise ShapeError(f"the mask has {len(mask)} entries for {sets.layout.total} items")
        return sets.with_values(mask)
    if isinstance(subsets, Sets) and subsets.dtype == torch.bool and subsets.layout.same_as(sets.layout):
        return sets.with_values(subsets.values.to(sets.device))
    entries = _as_list(subsets, "subsets")
    if len(entries) != len(sets):
        raise ShapeError(f"{len(entries)} subsets were given for {len(sets)} sets; each set needs one, [] for none")
    sizes = sets.layout.host_lengths.tolist()
    parts = [_as_mask(entry, sizes[number], number) for number, entry in enumerate(entries)]
    mask = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)
    return sets.with_values(mask.to(sets.device))


def _as_list(entries: Any, name: str) -> list[Any]:
    try:
        return list(entries)
    except TypeError:
        raise DataError(f"{name} must hold one entry for each set; {type(entries).__name__} was given") from None


def subset_sizes(subsets: Sets) -> np.ndarray:
    """Number of chosen items of each set, on the host."""
    sizes: np.ndarray = segment_sum(subsets.values.long(), subsets).cpu().numpy()
    return sizes


def _as_mask(entry: Any, size: int, number: int) -> Tensor:
    try:
        entry = as_tensor(sorted(entry) if isinstance(entry, (set, frozenset)) else entry).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"subset {number} is neither a mask nor a list of indices: {error}") from None
    if entry.dim() != 1:
        raise ShapeError(f"subset {number} has shape {tuple(entry.shape)}; give a mask ({size},) or a list of indices")
    if entry.dtype == torch.bool:
        if len(entry) != size:
            raise ShapeError(f"the mask of subset {number} has {len(entry)} entries, its set has {size} items")
        return entry
    mask = torch.zeros(size, dtype=torch.bool)
    if not len(entry):
        return mask
    if entry.dtype.is_floating_point or entry.dtype.is_complex:
        kind = "complex" if entry.dtype.is_complex else "real"
        raise DataError(f"subset {number} holds {kind} numbers; give booleans (a mask) or integers (indices)")
    low, high = int(entry.min()), int(entry.max())
    if low < 0 or high >= size:
        raise DataError(
            f"subset {number} names item {low if low < 0 else high}, but its set has {size} items, counted from 0"
        )
    if len(entry.unique()) != len(entry):
        raise DataError(
            f"subset {number} names an item twice: {entry.tolist()[:10]}; whole numbers are read as indices, "
            "give a mask as booleans"
        )
    mask[entry.long()] = True
    return mask

"""Sets with the subset that was chosen from each, and the checks of user input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._segments import segment_sum
from setgrad.sets._sets import Sets, as_tensor

# Items that are checked at once.
_ROWS = 2**20
# Whole numbers beyond this are not exact as floating-point numbers.
_EXACT = 2**53


@final
@dataclass(frozen=True, eq=False, repr=False)
class Choices:
    """Sets, the subset that was chosen from each, and the ids and weights they have in a table.

    Unpacks into `sets, subsets = choices`.

    Attributes:
        sets: The sets.
        subsets: Booleans with the layout of `sets`, true for a chosen item.
        set_ids: One id for each set, if known.
        item_ids: One id for each item, in the order of `sets.values`, if known.
        sample_weight: One weight for each item, in the order of `sets.values`, if there are weights.
        features: Names of the features of an item, if known.

    Examples:
        >>> choices = Choices.of([[[0.0], [1.0]], [[2.0]]], [[1], []])
        >>> choices
        Choices(2 sets, 3 items of 1 features)
        >>> sets, subsets = choices
        >>> [mask.tolist() for mask in subsets]
        [[False, True], [False]]
    """

    sets: Sets
    subsets: Sets
    set_ids: Sequence[Any] | None = None
    item_ids: Sequence[Any] | np.ndarray | None = None
    sample_weight: Tensor | None = None
    features: Sequence[str] | None = None

    @staticmethod
    def of(sets: Any, subsets: Any) -> Choices:
        """Return choices from anything that `as_sets` and `as_subsets` accept; they raise the same errors."""
        sets = as_sets(sets)
        return Choices(sets, as_subsets(subsets, sets))

    def __iter__(self) -> Iterator[Sets]:
        return iter((self.sets, self.subsets))

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        return f"Choices({_summary(self.sets)})"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Sets without chosen subsets, and the ids and weights they have in a table: the input of a prediction.

    `read_table` returns it if no column says which items were chosen. `sets, subsets = table` then fails at once,
    instead of passing on a `None`. The attributes are those of `Choices`.

    Examples:
        >>> Table(Sets.from_list([[[0.0, 1.0]]]), set_ids=["a"])
        Table(1 sets, 1 items of 2 features)
    """

    sets: Sets
    set_ids: Sequence[Any] | None = None
    item_ids: Sequence[Any] | np.ndarray | None = None
    sample_weight: Tensor | None = None
    features: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        return f"Table({_summary(self.sets)})"


def _summary(sets: Sets) -> str:
    shape = tuple(sets.item_shape)
    items = f"{shape[0]} features" if len(shape) == 1 else f"shape {shape}"
    return f"{len(sets)} sets, {sets.layout.total} items of {items}"


def as_sets(sets: Any) -> Sets:
    """Convert user input to `Sets` of finite numbers.

    Integers of 4 bytes and more become float64, which keeps all digits of times and counts; smaller integers become
    the default float type. Bytes, which hold text and images, stay bytes: they take a quarter of the memory.

    Args:
        sets: `Sets`, a list of arrays `(n_i, d)`, or one array `(b, n, d)`.

    Returns:
        The sets; the same object if nothing had to be converted.

    Raises:
        DataError: If the input cannot be read as sets, or a number is complex, NaN or infinite.
        ShapeError: If the items have different shapes.

    Examples:
        >>> as_sets([[[1, 2], [3, 4]], []])
        Sets(2 sets, 2 items, sizes 0 to 2, item shape (2,), torch.float64, cpu)
    """
    if isinstance(sets, Choices):
        raise DataError("sets and subsets were passed as one object; unpack them: sets, subsets = choices")
    if isinstance(sets, Table):
        raise DataError("a table was passed in place of its sets; pass table.sets")
    if not isinstance(sets, Sets):
        sets = Sets.from_list(_as_list(sets, "sets"))
    if sets.dtype.is_complex:
        raise DataError("items are complex numbers; pass real and imaginary parts as separate features")
    if sets.dtype == torch.int64 and bool(((sets.values > _EXACT) | (sets.values < -_EXACT)).any()):
        raise DataError(
            "items hold whole numbers beyond 2**53, which have more digits than a floating-point number keeps; "
            "subtract a constant from all values of the feature"
        )
    if not sets.dtype.is_floating_point and sets.dtype != torch.uint8:
        sets = sets.to(torch.float64 if sets.values.element_size() >= 4 else torch.get_default_dtype())
    # In parts, because the items of a large set may be on disk.
    if not all(bool(part.isfinite().all()) for part in sets.values.split(_ROWS)):
        finite = sets.values.isfinite().reshape(sets.layout.total, -1).all(1)
        row = int((~finite).nonzero()[0])
        index = int(np.searchsorted(sets.layout.host_offsets, row, side="right")) - 1
        raise DataError(
            f"item {row - sets.layout.host_offsets[index]} of set {index} holds NaN or infinity "
            f"({int((~finite).sum())} such items in all); remove or impute them first"
        )
    return sets


def as_subsets(subsets: Any, sets: Sets) -> Sets:
    """Convert masks or indices to `Sets` of booleans aligned with `sets`.

    Args:
        subsets: A mask over all items, `Sets` of booleans or of indices, or a list with one mask or one list of indices
            for each set. Whole numbers are indices, unless there is a 0 or 1 for every item and they cannot be indices:
            then they are masks. Booleans are never mistaken.
        sets: The sets that the subsets belong to.

    Returns:
        Booleans with the layout of `sets`, true for a chosen item.

    Raises:
        ShapeError: If the number of subsets or the length of a mask does not fit.
        DataError: If a subset is neither a mask nor a list of different indices of its set.

    Examples:
        >>> as_subsets([[1], []], Sets.from_list([[[0.0], [1.0]], [[2.0]]])).values.tolist()
        [False, True, False]
        >>> as_subsets([[0, 1], [1]], Sets.from_list([[[0.0], [1.0]], [[2.0]]])).values.tolist()
        [False, True, True]
    """
    # Not of objects, which an array of lists holds.
    if isinstance(subsets, (Tensor, np.ndarray)) and subsets.ndim == 1 and re.search("bool|int", str(subsets.dtype)):
        mask = as_tensor(subsets).to(sets.device)
        if mask.dtype != torch.bool and len(mask) == sets.layout.total and _are_zeros_and_ones(mask):
            mask = mask.bool()
        if mask.dtype == torch.bool:
            if len(mask) != sets.layout.total:
                raise ShapeError(f"the mask has {len(mask)} entries for {sets.layout.total} items")
            return sets.with_values(mask)
    if isinstance(subsets, Sets) and subsets.dtype == torch.bool and subsets.layout.same_as(sets.layout):
        return sets.with_values(subsets.values.to(sets.device))
    entries = _as_list(subsets, "subsets")
    if len(entries) != len(sets):
        raise ShapeError(f"{len(entries)} subsets were given for {len(sets)} sets; pass one for each set, [] for none")
    sizes = sets.layout.host_lengths.tolist()
    vectors = [_as_vector(entry, sizes[index], index) for index, entry in enumerate(entries)]
    if _must_be_masks(vectors, sizes):
        vectors = [vector.bool() for vector in vectors]
    masks = [_as_mask(vector, sizes[index], index) for index, vector in enumerate(vectors)]
    mask = torch.cat(masks) if masks else torch.zeros(0, dtype=torch.bool)
    return sets.with_values(mask.to(sets.device))


def subset_sizes(subsets: Sets) -> np.ndarray:
    """Return the number of chosen items of each set, `(b,)`, on the host.

    Examples:
        >>> subset_sizes(Sets.from_list([[True, False, True], [False]])).tolist()
        [2, 0]
    """
    sizes: np.ndarray = segment_sum(subsets.values.long(), subsets).cpu().numpy()
    return sizes


def _as_list(entries: Any, name: str) -> list[Any]:
    try:
        return list(entries)
    except TypeError:
        raise DataError(f"{name} must have one entry for each set; got {type(entries).__name__}") from None


def _as_vector(entry: Any, size: int, index: int) -> Tensor:
    try:
        entry = as_tensor(sorted(entry) if isinstance(entry, (set, frozenset)) else entry).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"subset {index} is neither a mask nor a list of indices: {error}") from None
    if entry.dim() != 1:
        raise ShapeError(f"subset {index} has shape {tuple(entry.shape)}; pass a mask ({size},) or a list of indices")
    return entry


def _are_zeros_and_ones(numbers: Tensor) -> bool:
    is_whole = not (numbers.dtype.is_floating_point or numbers.dtype.is_complex)
    return is_whole and bool(((numbers == 0) | (numbers == 1)).all())


def _must_be_masks(vectors: list[Tensor], sizes: list[int]) -> bool:
    """Return whether whole numbers are masks: a 0 or 1 for each item of every set, at least once not as indices."""
    if any(len(vector) != size for vector, size in zip(vectors, sizes, strict=True)):
        return False
    filled = [vector for vector in vectors if len(vector)]
    if any(vector.dtype == torch.bool or not _are_zeros_and_ones(vector) for vector in filled):
        return False
    # Among two items 0 and 1 can be both indices, and so can 0 be alone.
    return any(len(vector) > 2 or vector.tolist() in ([0, 0], [1, 1], [1]) for vector in filled)


def _as_mask(entry: Tensor, size: int, index: int) -> Tensor:
    if entry.dtype == torch.bool:
        if len(entry) != size:
            raise ShapeError(f"the mask of subset {index} has {len(entry)} entries, its set has {size} items")
        return entry
    mask = torch.zeros(size, dtype=torch.bool)
    if not len(entry):
        return mask
    if entry.dtype.is_floating_point or entry.dtype.is_complex:
        kind = "complex" if entry.dtype.is_complex else "real"
        raise DataError(f"subset {index} holds {kind} numbers; pass booleans (a mask) or integers (indices)")
    low, high = int(entry.min()), int(entry.max())
    if low < 0 or high >= size:
        raise DataError(
            f"subset {index} contains index {low if low < 0 else high}, but its set has {size} items, counted from 0"
        )
    if len(entry.unique()) != len(entry):
        raise DataError(f"subset {index} contains an index twice: {entry.tolist()[:10]}; a mask must hold booleans")
    mask[entry.long()] = True
    return mask

"""`Sets`: the container for a batch of sets of different sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._layout import Layout
from setgrad.sets._mapped import map_npy


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sets:
    """A batch of sets: the items of all sets in one tensor, and a `Layout` with the boundaries of the sets.

    Items may have any shape and type; sets may have any size, including 0. Probabilities and boolean masks for a batch
    are `Sets` with the same layout (see `with_values`). Instances are immutable.

    Attributes:
        values: The items of all sets, one set after the other, `(total, ...)`.
        layout: The boundaries of the sets in `values`.

    Raises:
        ShapeError: If the first axis of `values` does not have one entry for each item of the layout.

    Examples:
        >>> sets = Sets.from_list([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]])
        >>> len(sets), sets.lengths.tolist(), sets[1].tolist()
        (2, [2, 1], [[5.0, 6.0]])
        >>> x, mask = sets.padded()
        >>> x.shape, mask.tolist()
        (torch.Size([2, 2, 2]), [[True, True], [True, False]])
    """

    values: Tensor
    layout: Layout

    def __post_init__(self) -> None:
        if self.values.dim() == 0 or self.values.shape[0] != self.layout.total:
            raise ShapeError(
                f"the layout describes {self.layout.total} items but values has shape {tuple(self.values.shape)}; "
                "the first axis of values must have one entry for each item of all sets"
            )

    @staticmethod
    def from_list(
        items: Sequence[Any], *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Sets:
        """Return a batch from a list with one array, tensor or nested list `(n_i, ...)` for each set.

        Args:
            items: The sets. An empty list is an empty set; its items take the shape of the items of the other sets.
            dtype: Type of the values; by default the type to which the types of all sets are promoted.
            device: Device of the values; by default where they are.

        Raises:
            DataError: If a set cannot be read as an array of numbers.
            ShapeError: If a set is a single number, or items have different shapes.
        """
        tensors = [_set_tensor(x, index) for index, x in enumerate(items)]
        shapes = {tuple(t.shape[1:]) for t in tensors if len(t)}
        if len(shapes) > 1:
            first = next(t for t in tensors if len(t))
            index = next(i for i, t in enumerate(tensors) if len(t) and t.shape[1:] != first.shape[1:])
            raise ShapeError(
                f"all items must have the same shape, but set {index} has items of shape "
                f"{tuple(tensors[index].shape[1:])} and earlier sets of shape {tuple(first.shape[1:])}"
            )
        nonempty = [t for t in tensors if len(t)] or sorted(tensors, key=Tensor.dim)[-1:]
        dtypes = [t.dtype for t in nonempty]
        if dtype is None and dtypes:
            dtype = dtypes[0]
            for other in dtypes[1:]:
                dtype = torch.promote_types(dtype, other)
        values = torch.cat([t.to(dtype) for t in nonempty]) if nonempty else torch.zeros(0, 0, dtype=dtype)
        if device is not None:
            values = values.to(device)
        return Sets(values, Layout.from_lengths([len(t) for t in tensors], values.device))

    @staticmethod
    def from_lengths(values: Any, lengths: Sequence[int] | np.ndarray | Tensor) -> Sets:
        """Return a batch from the items of all sets, one set after the other, and the sizes of the sets.

        Raises:
            DataError: If a size is negative or not an integer.
            ShapeError: If the sizes do not add up to the number of items.
        """
        values = as_tensor(values)
        sizes = lengths.cpu().numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
        return Sets(values, Layout.from_lengths(sizes, values.device))

    @staticmethod
    def from_npy(path: str | Path, lengths: Sequence[int] | np.ndarray | Tensor | None = None) -> Sets:
        """Return a batch whose items stay in a `.npy` file with one item in each row, for sets larger than memory.

        `write_npy` makes such a file from chunks. Do not write into the values, and keep the file.

        Args:
            path: The file.
            lengths: The sizes of the sets in it; None for one set.

        Raises:
            DataError: If there is no such file.
            FileFormatError: If it does not hold one array of numbers.
            ShapeError: If the sizes do not add up to the number of items.
        """
        values = map_npy(path)
        return Sets.from_lengths(values, [len(values)] if lengths is None else lengths)

    @staticmethod
    def from_padded(x: Any, mask: Any) -> Sets:
        """Return a batch from padded items `(b, n, ...)` and a mask `(b, n)` that is false at the padding.

        Raises:
            ShapeError: If the mask does not have the shape of the first two axes of `x`.
        """
        x, mask = as_tensor(x), as_tensor(mask)
        if x.dim() < 2 or mask.shape != x.shape[:2]:
            raise ShapeError(
                f"x of shape {tuple(x.shape)} needs a mask of shape {tuple(x.shape[:2])}, not {tuple(mask.shape)}"
            )
        mask = mask.bool()
        return Sets(x[mask], Layout.from_lengths(mask.sum(1).cpu().numpy(), x.device))

    @staticmethod
    def cat(parts: Sequence[Sets]) -> Sets:
        """Return one batch with the sets of all parts, in order.

        Raises:
            DataError: If there are no parts.
            ShapeError: If the items of the parts have different shapes.
        """
        if not parts:
            raise DataError("Sets.cat needs at least one batch; the shape of the items is unknown without one")
        # Parts without items take the shape and type of the others, as empty lists do in `from_list`.
        nonempty = [p for p in parts if len(p.values)] or [p for p in parts if p.item_shape == parts[0].item_shape]
        shapes = {tuple(p.item_shape) for p in nonempty}
        if len(shapes) > 1:
            raise ShapeError(f"batches whose items have different shapes cannot be concatenated: {sorted(shapes)}")
        values = torch.cat([p.values for p in nonempty])
        return Sets(values, Layout.from_lengths(np.concatenate([p.layout.host_lengths for p in parts]), values.device))

    def with_values(self, values: Tensor) -> Sets:
        """Return sets of the same sizes with other values `(total, ...)`: features, masks or probabilities.

        Raises:
            ShapeError: If `values` does not have one entry for each item.
        """
        return Sets(values, self.layout if values.device == self.values.device else self.layout.to(values.device))

    @property
    def offsets(self) -> Tensor:
        """Boundaries of the sets in `values`, `(len + 1,)`, on the device."""
        return self.layout.offsets

    @property
    def lengths(self) -> Tensor:
        """Sizes of the sets, `(len,)`, on the device."""
        return self.layout.lengths

    @property
    def item_shape(self) -> torch.Size:
        """Shape of one item."""
        return self.values.shape[1:]

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.layout)

    def __repr__(self) -> str:
        sizes = self.layout.host_lengths
        span = f"{sizes.min()} to {sizes.max()}" if len(sizes) else "none"
        return (
            f"Sets({len(self)} sets, {self.layout.total} items, sizes {span}, "
            f"item shape {tuple(self.item_shape)}, {self.dtype}, {self.device})"
        )

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.to_list())

    def __getitem__(self, key: Any) -> Any:
        """Return one set as a tensor for an integer, and a batch for a slice, a list of integers or of booleans.

        Raises:
            IndexError: If there is no such set.
            ShapeError: If the key is none of these.
        """
        offsets = self.layout.host_offsets
        if isinstance(key, (int, np.integer)):
            index = int(key) + (len(self) if key < 0 else 0)
            if not 0 <= index < len(self):
                raise IndexError(f"there is no set {int(key)}: the batch has {len(self)} sets")
            return self.values[offsets[index] : offsets[index + 1]]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                layout = Layout.from_lengths(self.layout.host_lengths[start:stop], self.device)
                return Sets(self.values[offsets[start] : offsets[stop]], layout)
            key = np.arange(start, stop, step)
        return self.take(key)

    def take(self, indices: Any) -> Sets:
        """Return the sets with these indices, in this order; an index may be repeated.

        Args:
            indices: Integers (negative ones count from the end), or one boolean for each set.

        Raises:
            IndexError: If there is no set with one of the indices.
            ShapeError: If `indices` is not a list of integers, or of one boolean for each set.
        """
        if isinstance(indices, Tensor):
            indices = indices.cpu().numpy()
        indices = np.asarray(indices)
        is_integer = indices.size == 0 or np.issubdtype(indices.dtype, np.integer)
        if indices.ndim != 1 or not (is_integer or indices.dtype == bool):
            raise ShapeError("index sets by an integer, a slice, a list of integers or a list of booleans")
        if indices.dtype == bool:
            if len(indices) != len(self):
                raise ShapeError(f"a boolean list for {len(self)} sets needs {len(self)} entries, not {len(indices)}")
            indices = indices.nonzero()[0]
        indices = indices.astype(np.int64)
        indices = np.where(indices < 0, indices + len(self), indices)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"set indices must lie between 0 and {len(self) - 1}; got {indices.tolist()[:10]}")
        layout = Layout.from_lengths(self.layout.host_lengths[indices], self.device)
        shifts = self.layout.host_offsets[indices] - layout.host_offsets[:-1]
        rows = np.repeat(shifts, layout.host_lengths) + np.arange(layout.total)
        return Sets(self.values[layout.to_device(rows)], layout)

    def to_list(self) -> list[Tensor]:
        """Return one tensor `(n_i, ...)` for each set: the inverse of `from_list`."""
        return list(torch.split(self.values, self.layout.host_lengths.tolist()))

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the items as `(b, longest, ...)`, padded with `fill`, and the mask `(b, longest)` of real items.

        For sets of equal size the items are a view of `values`: do not write into them.
        """
        layout, item_shape = self.layout, self.values.shape[1:]
        shape = (len(layout), layout.longest, *item_shape)
        if layout.uniform:
            return self.values.reshape(shape), layout.mask
        flat = self.values.new_full((shape[0] * shape[1], *item_shape), fill)
        return flat.index_copy(0, layout.padded_rows, self.values).reshape(shape), layout.mask

    def to(self, *args: Any, **kwargs: Any) -> Sets:
        """Return the sets with their values moved or converted as `Tensor.to` does."""
        values = self.values.to(*args, **kwargs)
        return self if values is self.values else Sets(values, self.layout.to(values.device))


def pad(values: Tensor, sets: Sets) -> Tensor:
    """Return values `(total, ...)` as a batch `(b, longest, ...)`, padded with 0: the inverse of `unpad`."""
    return sets.with_values(values).padded()[0]


def unpad(x: Tensor, sets: Sets) -> Tensor:
    """Return the real items `(total, ...)` of a padded batch `(b, longest, ...)`: the inverse of `Sets.padded`.

    Examples:
        >>> sets = Sets.from_list([[1.0, 2.0], [3.0]])
        >>> unpad(sets.padded()[0] * 10, sets).tolist()
        [10.0, 20.0, 30.0]
    """
    flat = x.flatten(0, 1)
    return flat if sets.layout.uniform else flat.index_select(0, sets.layout.padded_rows)


def _set_tensor(x: Any, index: int) -> Tensor:
    try:
        tensor = as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"set {index} cannot be read as an array of numbers: {error}") from None
    if tensor.dim() == 0:
        raise ShapeError(f"set {index} is a single number; a set is an array with one row for each item")
    return tensor


def as_tensor(x: Any) -> Tensor:
    """Return `torch.as_tensor(x)`, also for inputs that it rejects or warns about.

    These are read-only arrays (from data frames and PyArrow), reversed views, lists of arrays or tensors, and objects
    that only have `__array__`, such as data frames.

    Raises:
        DataError: If the tensor is sparse, or entries of the array are masked out.

    Examples:
        >>> import numpy as np
        >>> as_tensor(np.arange(3)[::-1]).tolist()
        [2, 1, 0]
    """
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise DataError(f"the tensor is not dense but {x.layout}; pass x.to_dense()")
        return x
    if isinstance(x, (list, tuple)):
        if x and all(isinstance(row, Tensor) for row in x):
            return torch.stack(list(x))
        if any(isinstance(row, np.ndarray) for row in x):
            for row in x:
                _check_unmasked(row)
            x = np.asarray(x)
    elif not isinstance(x, np.ndarray) and hasattr(x, "__array__"):
        x = np.asarray(x)
        if x.dtype == object:
            # A frame with columns of several types, or of nullable types: convert its plain Python values.
            x = np.array(x.tolist())
    _check_unmasked(x)
    if isinstance(x, np.ndarray) and not (x.flags.writeable and all(step >= 0 for step in x.strides)):
        x = np.array(x, order="C")
    return torch.as_tensor(x)


def _check_unmasked(x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise DataError("entries of the array are masked out; fill them in with x.filled(...), or drop their rows")

"""`Sets`: the one container for a batch of sets of different sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._arrays import as_tensor
from setgrad.sets._layout import Layout


@final
@dataclass(frozen=True, eq=False)
class Sets:
    """A batch of sets: all items in one tensor, with the boundaries of the sets beside it.

    Items may have any shape and type; sets may have any size, 0 included. Probabilities and boolean masks of a
    batch are `Sets` too, with the same layout (see `with_values`). Instances never change.

    Example:
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
                "the first axis of values must run over all items of all sets"
            )

    # ---- making

    @staticmethod
    def from_list(
        items: Sequence[Any], *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Sets:
        """Make a batch from a list with one array, tensor or nested list `(n_i, ...)` for each set."""
        tensors = [_as_tensor(x, number) for number, x in enumerate(items)]
        shapes = {tuple(t.shape[1:]) for t in tensors if len(t)}
        if len(shapes) > 1:
            first = next(t for t in tensors if len(t))
            number = next(i for i, t in enumerate(tensors) if len(t) and t.shape[1:] != first.shape[1:])
            raise ShapeError(
                f"all items need the same shape, but set {number} has items of shape "
                f"{tuple(tensors[number].shape[1:])} where earlier sets have {tuple(first.shape[1:])}"
            )
        # An empty list [] says nothing about the shape of items: it takes the shape of the others.
        filled = [t for t in tensors if len(t)] or sorted(tensors, key=Tensor.dim)[-1:]
        kinds = [t.dtype for t in filled]
        if dtype is None and kinds:
            dtype = kinds[0]
            for kind in kinds[1:]:
                dtype = torch.promote_types(dtype, kind)
        values = torch.cat([t.to(dtype) for t in filled]) if filled else torch.zeros(0, 0, dtype=dtype)
        if device is not None:
            values = values.to(device)
        return Sets(values, Layout.from_lengths([len(t) for t in tensors], values.device))

    @staticmethod
    def from_lengths(values: Any, lengths: Sequence[int] | np.ndarray | Tensor) -> Sets:
        """Make a batch from all items in a row and the sizes of the sets."""
        values = as_tensor(values)
        sizes = lengths.cpu().numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
        return Sets(values, Layout.from_lengths(sizes, values.device))

    @staticmethod
    def from_padded(x: Any, mask: Any) -> Sets:
        """Make a batch from padded items `(b, n, ...)` and a mask `(b, n)` that is true where an item is real."""
        x, mask = as_tensor(x), as_tensor(mask)
        if x.dim() < 2 or mask.shape != x.shape[:2]:
            raise ShapeError(
                f"x of shape {tuple(x.shape)} needs a mask of shape {tuple(x.shape[:2])}, not {tuple(mask.shape)}"
            )
        mask = mask.bool()
        return Sets(x[mask], Layout.from_lengths(mask.sum(1).cpu().numpy(), x.device))

    @staticmethod
    def cat(parts: Sequence[Sets]) -> Sets:
        """Put batches one behind the other."""
        if not parts:
            raise DataError("Sets.cat needs at least one batch; an empty list says nothing about the items")
        # A batch without items says as little about their shape and type as an empty list in `from_list`.
        telling = [p for p in parts if len(p.values)] or [p for p in parts if p.item_shape == parts[0].item_shape]
        shapes = {tuple(p.item_shape) for p in telling}
        if len(shapes) > 1:
            raise ShapeError(f"batches whose items have different shapes cannot be put together: {sorted(shapes)}")
        values = torch.cat([p.values for p in telling])
        return Sets(values, Layout.from_lengths(np.concatenate([p.layout.host_lengths for p in parts]), values.device))

    def with_values(self, values: Tensor) -> Sets:
        """Return sets of the same sizes with other values, `(total, ...)`: features, masks, probabilities."""
        return Sets(values, self.layout if values.device == self.device else self.layout.to(values.device))

    # ---- looking

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
        """Where the values are."""
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
        """Return one set as a tensor for an integer; a batch for a slice, a list of numbers or a boolean list."""
        host = self.layout.host
        if isinstance(key, (int, np.integer)):
            number = int(key) + (len(self) if key < 0 else 0)
            if not 0 <= number < len(self):
                raise IndexError(f"set {int(key)} was asked for, but the batch has {len(self)} sets")
            return self.values[host[number] : host[number + 1]]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                layout = Layout.from_lengths(self.layout.host_lengths[start:stop], self.device)
                return Sets(self.values[host[start] : host[stop]], layout)
            key = np.arange(start, stop, step)
        return self.take(key)

    def take(self, numbers: Any) -> Sets:
        """Return the sets with these numbers, in this order; a number may come more than once."""
        if isinstance(numbers, Tensor):
            numbers = numbers.cpu().numpy()
        numbers = np.asarray(numbers)
        whole = numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer)
        if numbers.ndim != 1 or not (whole or numbers.dtype == bool):
            raise ShapeError("sets are chosen by an integer, a slice, a list of integers or a list of booleans")
        if numbers.dtype == bool:
            if len(numbers) != len(self):
                raise ShapeError(f"a boolean list for {len(self)} sets needs {len(self)} entries, not {len(numbers)}")
            numbers = numbers.nonzero()[0]
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"set numbers must lie between 0 and {len(self) - 1}; got {numbers.tolist()[:10]}")
        layout = Layout.from_lengths(self.layout.host_lengths[numbers], self.device)
        rows = np.repeat(self.layout.host[numbers] - layout.host[:-1], layout.host_lengths) + np.arange(layout.total)
        return Sets(self.values[layout.to_device(rows)], layout)

    def to_list(self) -> list[Tensor]:
        """Return one tensor `(n_i, ...)` for each set: the inverse of `from_list`."""
        return list(torch.split(self.values, self.layout.host_lengths.tolist()))

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return items `(b, longest, ...)`, short sets filled up, and the mask `(b, longest)` of real items."""
        layout = self.layout
        shape = (len(layout), layout.longest, *self.item_shape)
        if layout.uniform:
            return self.values.reshape(shape), layout.mask
        flat = self.values.new_full((shape[0] * shape[1], *self.item_shape), fill)
        return flat.index_copy(0, layout.slots, self.values).reshape(shape), layout.mask

    def to(self, *args: Any, **kwargs: Any) -> Sets:
        """Move or convert the values as `Tensor.to` does; the layout follows."""
        values = self.values.to(*args, **kwargs)
        return self if values is self.values else Sets(values, self.layout.to(values.device))


def unpad(x: Tensor, sets: Sets) -> Tensor:
    """Take the real items out of a padded batch `(b, longest, ...)`: the inverse of `Sets.padded`."""
    flat = x.flatten(0, 1)
    return flat if sets.layout.uniform else flat.index_select(0, sets.layout.slots)


def _as_tensor(x: Any, number: int) -> Tensor:
    try:
        tensor = as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"set {number} cannot be read as an array of numbers: {error}") from None
    if tensor.dim() == 0:
        raise ShapeError(f"set {number} is a single number; a set is an array with one row for each item")
    return tensor

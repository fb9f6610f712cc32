"""`Layout`: where each set of a batch starts and ends.

The sizes are known on the host when a batch is built, so they stay there: slicing, padding and grouping never wait for
the device. Kernels read a copy on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError


@final
@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """Boundaries of a batch of sets: set `b` holds the rows `host_offsets[b]` to `host_offsets[b + 1]`.

    All other properties are computed on first use and cached.

    Examples:
        >>> layout = Layout.from_lengths([2, 0, 1])
        >>> layout
        Layout(3 sets, 3 items, cpu)
        >>> layout.ids.tolist(), layout.positions.tolist()
        ([0, 0, 2], [0, 1, 0])
    """

    host_offsets: np.ndarray
    device: torch.device

    @staticmethod
    def from_lengths(lengths: np.ndarray | list[int], device: torch.device | str = "cpu") -> Layout:
        """Return the layout of sets with these sizes, in order.

        Raises:
            DataError: If a size is negative or not an integer.
        """
        lengths = np.asarray(lengths).reshape(-1)
        if lengths.size and not np.issubdtype(lengths.dtype, np.integer):
            raise DataError(f"set sizes must be integers, not {lengths.dtype}; convert them first")
        lengths = lengths.astype(np.int64)
        if (lengths < 0).any():
            raise DataError(f"set sizes must be at least 0, not {lengths.min()}; use 0 for an empty set")
        host_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        host_offsets.setflags(write=False)
        return Layout(host_offsets, torch.device(device))

    @staticmethod
    def from_equal_lengths(count: int, length: int, device: torch.device) -> Layout:
        """Return `Layout.from_lengths([length] * count, device).precompute()`, computed without host data.

        `torch.compile` and `torch.export` can trace it, because no value depends on the contents of an array.

        Examples:
            >>> Layout.from_equal_lengths(2, 3, torch.device("cpu")).ids.tolist()
            [0, 0, 0, 1, 1, 1]
        """
        layout, rows = Layout(np.arange(count + 1) * length, device), torch.arange(count * length, device=device)
        # Fills the cached properties: with equal lengths they all have a closed form.
        vars(layout).update(
            total=count * length,
            longest=length if count else 0,
            uniform=count * length > 0,
            offsets=torch.arange(count + 1, device=device) * length,
            lengths=torch.full((count,), length, device=device),
            ids=rows // length,
            positions=rows % length,
            padded_rows=rows,
            mask=torch.ones(count, length if count else 0, dtype=torch.bool, device=device),
        )
        return layout

    def __len__(self) -> int:
        return len(self.host_offsets) - 1

    def __repr__(self) -> str:
        return f"Layout({len(self)} sets, {self.total} items, {self.device})"

    @cached_property
    def total(self) -> int:
        """Number of items in all sets together."""
        return int(self.host_offsets[-1] - self.host_offsets[0])

    @cached_property
    def host_lengths(self) -> np.ndarray:
        """Sizes of the sets, on the host."""
        return np.diff(self.host_offsets)

    @cached_property
    def longest(self) -> int:
        """Size of the largest set; 0 for a batch without sets."""
        return int(self.host_lengths.max()) if len(self) else 0

    @cached_property
    def uniform(self) -> bool:
        """Whether all sets have the same, non-zero size, so that a reshape pads the batch."""
        return len(self) > 0 and self.longest > 0 and bool((self.host_lengths == self.longest).all())

    @cached_property
    def offsets(self) -> Tensor:
        """Boundaries of the sets on the device, `(len + 1,)`, int64."""
        return self.to_device(self.host_offsets)

    @cached_property
    def lengths(self) -> Tensor:
        """Sizes of the sets on the device, `(len,)`, int64."""
        return self.to_device(self.host_lengths)

    @cached_property
    def ids(self) -> Tensor:
        """Index of the set that each item belongs to, `(total,)`, int64, on the device."""
        indices = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(indices, self.lengths, output_size=self.total)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each item inside its set, `(total,)`, int64, on the device."""
        return torch.arange(self.total, device=self.device) - self.offsets[self.ids]

    @cached_property
    def padded_rows(self) -> Tensor:
        """Row of each item in the flattened padded batch, `(total,)`, int64, on the device."""
        return self.ids * self.longest + self.positions

    @cached_property
    def mask(self) -> Tensor:
        """Which entries of the padded batch are items and not padding, `(len, longest)`, bool, on the device."""
        return torch.arange(self.longest, device=self.device) < self.lengths[:, None]

    def precompute(self) -> Layout:
        """Compute and cache every property now, and return the layout itself.

        A traced program (`torch.compile`, `torch.export`) then reads constants instead of host data.

        Examples:
            >>> layout = Layout.from_lengths([2, 1]).precompute()
            >>> "mask" in vars(layout)
            True
        """
        for name, value in vars(Layout).items():
            if isinstance(value, cached_property):
                getattr(self, name)
        return self

    def to(self, device: torch.device | str) -> Layout:
        """Return the same layout for another device."""
        device = torch.device(device)
        return self if device == self.device else Layout(self.host_offsets, device)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Return a copy of a host array on the layout's device, without waiting for the device."""
        # A copy, so that writing into the tensor cannot change the boundaries on the host.
        tensor = torch.from_numpy(np.array(array))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def same_as(self, other: Layout) -> bool:
        """Return whether both layouts have sets of the same sizes in the same order."""
        return self.host_offsets is other.host_offsets or np.array_equal(self.host_offsets, other.host_offsets)

"""Where each set begins and ends, known on the host and on the device at once.

Sizes are known on the host when a batch is made, so they are kept there: slicing, padding and grouping never
wait for the device. The device copy is what kernels read.
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
@dataclass(frozen=True, eq=False)
class Layout:
    """Boundaries of a batch of sets: set `b` holds the rows `host[b]` to `host[b + 1]`."""

    host: np.ndarray
    device: torch.device

    @staticmethod
    def from_lengths(lengths: np.ndarray | list[int], device: torch.device | str = "cpu") -> Layout:
        """Make a layout from the sizes of the sets, in order."""
        lengths = np.asarray(lengths).reshape(-1)
        if lengths.size and not np.issubdtype(lengths.dtype, np.integer):
            raise DataError(f"set sizes must be whole numbers; {lengths.dtype} was given")
        lengths = lengths.astype(np.int64)
        if (lengths < 0).any():
            raise DataError(f"set sizes must not be negative; size {lengths.min()} was given")
        host = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        host.setflags(write=False)
        return Layout(host, torch.device(device))

    @staticmethod
    def equal(count: int, size: int, device: torch.device) -> Layout:
        """`Layout.from_lengths([size] * count, device).ready()` without work on the host, which no program can trace.

        Example:
            >>> Layout.equal(2, 3, torch.device("cpu")).ids.tolist()
            [0, 0, 0, 1, 1, 1]
        """
        layout, rows = Layout(np.arange(count + 1) * size, device), torch.arange(count * size, device=device)
        # All that is computed once and kept: where sizes are equal it is known without a look at the numbers.
        vars(layout).update(
            total=count * size,
            longest=size if count else 0,
            uniform=count * size > 0,
            offsets=torch.arange(count + 1, device=device) * size,
            lengths=torch.full((count,), size, device=device),
            ids=rows // size,
            positions=rows % size,
            slots=rows,
            mask=torch.ones(count, size if count else 0, dtype=torch.bool, device=device),
        )
        return layout

    def __len__(self) -> int:
        return len(self.host) - 1

    @cached_property
    def total(self) -> int:
        """Number of items in all sets together."""
        return int(self.host[-1] - self.host[0])

    @cached_property
    def host_lengths(self) -> np.ndarray:
        """Sizes of the sets, on the host."""
        return np.diff(self.host)

    @cached_property
    def longest(self) -> int:
        """Size of the largest set; 0 for a batch without sets."""
        return int(self.host_lengths.max()) if len(self) else 0

    @cached_property
    def uniform(self) -> bool:
        """Whether all sets have the same, non-zero size, so that a plain reshape pads nothing."""
        return len(self) > 0 and self.longest > 0 and bool((self.host_lengths == self.longest).all())

    @cached_property
    def offsets(self) -> Tensor:
        """Boundaries on the device, `(len + 1,)`, int64."""
        return self.to_device(self.host)

    @cached_property
    def lengths(self) -> Tensor:
        """Sizes of the sets on the device, `(len,)`, int64."""
        return self.to_device(self.host_lengths)

    @cached_property
    def ids(self) -> Tensor:
        """For every item the number of its set, `(total,)`, int64, on the device."""
        numbers = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=self.total)

    @cached_property
    def positions(self) -> Tensor:
        """For every item its position inside its set, `(total,)`, int64, on the device."""
        return torch.arange(self.total, device=self.device) - self.offsets[self.ids]

    @cached_property
    def slots(self) -> Tensor:
        """For every item its row in the flattened padded batch, `(total,)`, int64, on the device."""
        return self.ids * self.longest + self.positions

    @cached_property
    def mask(self) -> Tensor:
        """Which places of the padded batch hold an item, `(len, longest)`, bool, on the device."""
        return torch.arange(self.longest, device=self.device) < self.lengths[:, None]

    def ready(self) -> Layout:
        """Compute now whatever is known of the layout, and return it.

        A traced program (`torch.compile`, `torch.export`) then meets constants instead of work on the host.

        Example:
            >>> layout = Layout.from_lengths([2, 1]).ready()
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
        return self if device == self.device else Layout(self.host, device)

    def to_device(self, numbers: np.ndarray) -> Tensor:
        """Copy host numbers to the device without waiting for it."""
        # A copy, so that no one who writes into the tensor moves the boundaries on the host.
        tensor = torch.from_numpy(np.array(numbers))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def same_as(self, other: Layout) -> bool:
        """Whether both describe sets of the same sizes in the same order."""
        return self.host is other.host or np.array_equal(self.host, other.host)

"""Training sets that are read from files while an epoch runs.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._prefetch import prefetched
from setgrad.columns._relative import RelativeFeatures
from setgrad.selector._data import normalised_weights
from setgrad.selector._examples import AbstractExamples, LoadedSets
from setgrad.selector._statistics import ItemStatistics
from setgrad.sets import Choices, Layout, Sets

if TYPE_CHECKING:
    from setgrad.sets._blocks import SetBlocks
    from setgrad.sets._read import ItemReader, Roles

# Items of a window, and the numbers that they may have: batches are drawn from the sets of one window.
WINDOW_ITEMS, _WINDOW_NUMBERS = 2**19, 2**25


@final
@dataclass(frozen=True, eq=False)
class BlockReader:
    """Reads blocks of a table as choices.

    Attributes:
        blocks: The table.
        roles: Its columns that are not features.
        items: Reads its features.
        dtype: The dtype of the items.
    """

    blocks: SetBlocks
    roles: Roles
    items: ItemReader
    dtype: torch.dtype

    def read(self, block: int) -> Choices:
        """Return the sets of a block."""
        choices = self.blocks.read(block, self.roles, self.items, self.dtype)
        assert isinstance(choices, Choices)
        return choices

    def take(self, block: int, sets: np.ndarray) -> Choices:
        """Return some sets of a block, by their numbers in the table."""
        from setgrad.sets._read import read_rows

        starts = self.blocks.index.starts
        rows = int((starts[sets + 1] - starts[sets]).sum())
        if 2 * rows > self.blocks.rows[block]:
            return take_sets(self.read(block), sets - self.blocks.bounds[block])
        # Most of what is read would not be used: other processes train on it.
        choices = read_rows(self.blocks.rows_of(sets), self.roles, self.items, self.dtype)
        assert isinstance(choices, Choices)
        return Choices(choices.sets, choices.subsets, sample_weight=choices.sample_weight)


def take_sets(choices: Choices, places: np.ndarray) -> Choices:
    """Return some of the sets with their subsets and weights."""
    weights = choices.sample_weight
    if len(places) == len(choices):
        return Choices(choices.sets, choices.subsets, sample_weight=weights)
    kept = None if weights is None else choices.sets.with_values(weights).take(places).values
    return Choices(choices.sets.take(places), choices.subsets.take(places), sample_weight=kept)


def join_sets(parts: Sequence[Choices]) -> Choices:
    """Return all sets of several choices, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.sets.layout.host_lengths for part in parts])
    sets = Sets.from_lengths(torch.cat([part.sets.values for part in parts]), lengths)
    weights = [part.sample_weight for part in parts if part.sample_weight is not None]
    mask = torch.cat([part.subsets.values for part in parts])
    return Choices(sets, sets.with_values(mask), sample_weight=torch.cat(weights) if weights else None)


@final
class StreamedExamples(AbstractExamples):
    """Training sets that are read block by block. Blocks come in random order, and several of them are a window.

    Args:
        reader: Reads blocks.
        train: The numbers of the training sets in the table, ascending.
        known: The statistics of their items.
        weight_scale: The largest weight, and the mean of the weights in its unit; None without weights.
        device: Where they are trained on.
    """

    unit = "rows"

    def __init__(
        self,
        reader: BlockReader,
        train: np.ndarray,
        known: ItemStatistics,
        weight_scale: tuple[float, float] | None,
        device: torch.device,
    ) -> None:
        index = reader.blocks.index
        assert index.sizes is not None
        self.reader, self.train, self.known, self.weight_scale = reader, train, known, weight_scale
        self.layout, self.sizes = Layout.from_lengths(index.lengths[train], device), index.sizes[train]
        self.item_shape, self.device = tuple(known.mean.shape), device
        # The first training set of each block, and the number of all.
        self._bounds = np.searchsorted(train, reader.blocks.bounds)

    @property
    def is_weighted(self) -> bool:
        """Whether items have weights."""
        return self.weight_scale is not None

    @property
    def work(self) -> int:
        """The number of rows of an epoch."""
        return self.layout.total

    def effort(self, numbers: np.ndarray) -> int:
        """Return the number of rows of a batch."""
        return int(self.layout.host_lengths[numbers].sum())

    def to(self, device: torch.device) -> StreamedExamples:
        """Return the same sets for another device."""
        return StreamedExamples(self.reader, self.train, self.known, self.weight_scale, device)

    def statistics(self, relative: RelativeFeatures | None) -> ItemStatistics:
        """Return the statistics, which were computed before."""
        known = self.known
        tensors = {name: getattr(known, name).to(self.device) for name in ("mean", "variance", "largest")}
        return replace(known, **tensors, codes=None if known.codes is None else known.codes.to(self.device))

    def windows(self, seed: int) -> list[np.ndarray]:
        """Return the training sets of so many blocks, in random order, as fit into a window."""
        filled = np.flatnonzero(np.diff(self._bounds))
        order = filled[np.random.default_rng([seed, 1]).permutation(len(filled))]
        offsets = self.layout.host_offsets
        most = min(WINDOW_ITEMS, _WINDOW_NUMBERS // max(1, int(np.prod(self.item_shape))))
        windows: list[np.ndarray] = []
        members: list[np.ndarray] = []
        items = 0
        for block in order.tolist():
            first, end = self._bounds[block : block + 2].tolist()
            size = int(offsets[end] - offsets[first])
            if members and items + size > most:
                windows.append(np.concatenate(members))
                members, items = [], 0
            members.append(np.arange(first, end))
            items += size
        return [*windows, np.concatenate(members)]

    def load(self, windows: Sequence[np.ndarray]) -> Generator[LoadedSets]:
        """Yield windows, while a thread reads the next one."""
        ready = prefetched(self._read(windows))
        try:
            for choices, weights, numbers in ready:
                on_device = Choices(choices.sets.to(self.device), choices.subsets.to(self.device))
                yield LoadedSets(on_device, None if weights is None else weights.to(self.device), numbers)
                del choices, weights, on_device
        finally:
            ready.close()

    def _read(self, windows: Sequence[np.ndarray]) -> Iterator[tuple[Choices, Tensor | None, np.ndarray]]:
        for numbers in windows:
            blocks = np.searchsorted(self._bounds, numbers, side="right") - 1
            starts = np.flatnonzero(np.diff(blocks, prepend=-1))
            parts = [
                self.reader.take(int(blocks[start]), self.train[numbers[start:end]])
                for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)
            ]
            choices = join_sets(parts)
            weights = choices.sample_weight
            scaled = None
            if weights is not None and self.weight_scale is not None:
                scaled = normalised_weights(weights.double(), *self.weight_scale)
            yield choices, scaled, numbers

    def signature(self) -> list[Any]:
        """Return the sizes, the statistics of the items, and where blocks and windows begin."""
        known, blocks = self.known, self.reader.blocks
        numbers = (self.train, blocks.index.starts, self.sizes, blocks.bounds, self._bounds)
        digests = [hashlib.sha256(np.ascontiguousarray(part, np.int64).tobytes()).hexdigest() for part in numbers]
        tensors = [known.mean, known.variance, known.largest, *([] if known.codes is None else [known.codes])]
        return [[*digests, WINDOW_ITEMS, str(self.reader.dtype), self.weight_scale], *tensors]

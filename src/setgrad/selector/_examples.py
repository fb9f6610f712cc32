"""The training sets of a fit: in memory, or read from files window by window."""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from setgrad.columns._relative import RelativeFeatures
from setgrad.selector._statistics import ItemStatistics
from setgrad.sets import Choices, Layout, Sets, subset_sizes

# Items of a batch, with those that fill up its sets to one size. Of larger batches the sets are taken by size in
# several steps, so that memory does not grow beyond what the largest set takes.
BATCH_ITEMS = 2**16
# Steps of a part of an epoch. Its random numbers follow from its number, so a run can go on after any part.
_PART_STEPS = 512


@final
class EpochPart(NamedTuple):
    """A part of an epoch: the window that it reads, and the sets of each of its batches."""

    window: int
    batches: Sequence[np.ndarray]


@final
class LoadedSets:
    """Sets in memory, from which batches are taken.

    Args:
        choices: The sets and their subsets.
        weights: Weight of each item in the loss; None for equal weights.
        numbers: The number of each set among all training sets.
    """

    def __init__(self, choices: Choices, weights: Tensor | None, numbers: np.ndarray) -> None:
        self.choices, self.weights, self.numbers = choices, weights, numbers
        self._order = np.argsort(numbers, kind="stable")

    @cached_property
    def _items(self) -> Sets:
        """Flat indices of the items: sets, subsets and weights of a batch are then taken by one lookup."""
        sets = self.choices.sets
        return sets.with_values(torch.arange(sets.layout.total, device=sets.device))

    def take(self, numbers: np.ndarray) -> tuple[Sets, Sets, Tensor | None]:
        """Return sets by their numbers, their subsets, and the weights of their items."""
        places = self._order[np.searchsorted(self.numbers, numbers, sorter=self._order)]
        if len(places) == 1:
            # One set is not copied, because it may be mapped from a file.
            first = int(places[0])
            sets, subsets = (part[first : first + 1] for part in self.choices)
            rows = slice(*self.choices.sets.layout.host_offsets[first : first + 2])
            return sets, subsets, None if self.weights is None else self.weights[rows]
        items = self._items.take(places)
        sets, subsets = (items.with_values(part.values[items.values]) for part in self.choices)
        return sets, subsets, None if self.weights is None else self.weights[items.values]


class AbstractExamples(abc.ABC):
    """The training sets of a fit.

    Attributes:
        layout: The sizes of the sets.
        sizes: The sizes of the chosen subsets.
        item_shape: Shape of an item.
        device: Where they are trained on.
        unit: What progress counts, "sets" or "rows".
    """

    layout: Layout
    sizes: np.ndarray
    item_shape: tuple[int, ...]
    device: torch.device
    unit = "sets"

    def __len__(self) -> int:
        return len(self.layout)

    @property
    @abc.abstractmethod
    def is_weighted(self) -> bool:
        """Whether items have weights."""

    @property
    def work(self) -> int:
        """The number of sets or rows of an epoch."""
        return len(self)

    def effort(self, numbers: np.ndarray) -> int:
        """Return the number of sets or rows of a batch."""
        return len(numbers)

    @abc.abstractmethod
    def to(self, device: torch.device) -> AbstractExamples:
        """Return the same sets for another device."""

    @abc.abstractmethod
    def statistics(self, relative: RelativeFeatures | None) -> ItemStatistics:
        """Return the statistics of all items, and how often the codes occur that these features read."""

    @abc.abstractmethod
    def windows(self, seed: int) -> list[np.ndarray]:
        """Return the numbers of the sets that are in memory together, in the order in which an epoch reads them."""

    @abc.abstractmethod
    def load(self, windows: Sequence[np.ndarray]) -> Generator[LoadedSets]:
        """Yield windows one after the other."""

    @abc.abstractmethod
    def signature(self) -> list[Any]:
        """Return plain values and tensors that tell these sets from others."""

    @final
    def plan(self, seed: int, batch_size: int) -> tuple[list[np.ndarray], list[EpochPart]]:
        """Return the windows of an epoch, and its parts.

        Args:
            seed: Seed of the order.
            batch_size: Sets of a batch.
        """
        windows, rng, parts = self.windows(seed), np.random.default_rng(seed), []
        for index, numbers in enumerate(windows):
            order = numbers[rng.permutation(len(numbers))]
            batches = np.array_split(order, max(1, math.ceil(len(numbers) / batch_size)))
            bounded = [piece for batch in batches for piece in self._bounded(batch)]
            parts += [EpochPart(index, bounded[at : at + _PART_STEPS]) for at in range(0, len(bounded), _PART_STEPS)]
        return windows, parts

    def _bounded(self, batch: np.ndarray) -> Iterable[np.ndarray]:
        """Return a batch as it is, or, if it has too many items, its sets by size in several."""
        lengths = self.layout.host_lengths[batch]
        if len(batch) * int(lengths.max()) <= BATCH_ITEMS:
            return [batch]
        pieces, order = [], batch[np.argsort(lengths, kind="stable")]
        while len(order):
            # Sizes grow along the order, so the last set of a piece determines its padded size.
            padded = np.maximum(self.layout.host_lengths[order], 1) * np.arange(1, len(order) + 1)
            count = max(1, int(np.searchsorted(padded, BATCH_ITEMS, side="right")))
            pieces.append(order[:count])
            order = order[count:]
        return pieces


@final
class Examples(AbstractExamples):
    """Training sets in memory; they are one window.

    Args:
        choices: The sets and their subsets.
        weights: Weight of each item in the loss; None for equal weights.
        original: The sets from which these were computed, if they were.
    """

    def __init__(self, choices: Choices, weights: Tensor | None, original: Examples | None = None) -> None:
        self.choices, self.weights, self.original = choices, weights, original
        self.layout, self.sizes = choices.sets.layout, subset_sizes(choices.subsets)
        self.item_shape, self.device = tuple(choices.sets.item_shape), choices.sets.device

    @property
    def is_weighted(self) -> bool:
        """Whether items have weights."""
        return self.weights is not None

    def to(self, device: torch.device) -> Examples:
        """Return the sets on another device."""
        choices = Choices(self.choices.sets.to(device), self.choices.subsets.to(device))
        return Examples(choices, None if self.weights is None else self.weights.to(device))

    def statistics(self, relative: RelativeFeatures | None) -> ItemStatistics:
        """Return the statistics of all items."""
        return ItemStatistics.of(self.choices.sets, relative)

    def windows(self, seed: int) -> list[np.ndarray]:
        """Return all sets as one window."""
        return [np.arange(len(self))]

    def load(self, windows: Sequence[np.ndarray]) -> Generator[LoadedSets]:
        """Yield all sets for each window."""
        for _ in windows:
            yield LoadedSets(self.choices, self.weights, np.arange(len(self)))

    def signature(self) -> list[Any]:
        """Return everything; what was computed may be rounded by another device."""
        if self.original is not None:
            return self.original.signature()
        sets, subsets = self.choices
        parts = [self.layout.host_lengths.tolist(), sets.values, subsets.values]
        return parts if self.weights is None else [*parts, self.weights]


def hash_parts(parts: Iterable[Any]) -> str:
    """Return the SHA-256 of tensors and plain values."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().cpu().contiguous()
            digest.update(str((part.dtype, tuple(part.shape))).encode())
            digest.update(part.view(torch.uint8).numpy().data if part.numel() else b"")
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()

"""What trees read of an item: quantities, features relative to the set, flags of categories, and mean labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import final

import torch
from torch import Tensor

from setgrad.columns._part import Part

# Longer vectors have no axes that mean something by themselves.
_LONGEST = 32
# Columns with at most so many codes get a flag for each.
_FLAGS = 64
# Columns of codes that are combined in pairs and in threes, and the most mean labels of a combination.
_IN_PAIRS, _IN_THREES, _BUCKETS = 8, 5, 2**14
# What trees read of the mean labels of the words of a text: mean, smallest, largest.
_OF_WORDS = 3


@final
@dataclass(frozen=True)
class Combination:
    """Columns of codes whose joint values get a mean label each.

    Attributes:
        starts: Where the codes are among the numbers of an item.
        sizes: How many codes each column has.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def buckets(self) -> int:
        """Number of different joint values, some of which share one bucket if there are many."""
        count = 1
        for size in self.sizes:
            count *= size
        return count if len(self.sizes) == 1 else min(count, _BUCKETS)

    def of(self, numbers: Tensor) -> Tensor:
        """Return the bucket of each item, `(total,)`."""
        joint = torch.zeros_like(numbers[:, 0], dtype=torch.long)
        for start, size in zip(self.starts, self.sizes, strict=True):
            joint = (joint * size + numbers[:, start].long()) % self.buckets
        return joint


@final
@dataclass(frozen=True)
class TreeInputs:
    """What trees read of the numbers of an item and of its features relative to the set.

    Attributes:
        parts: What the numbers are.
        relative: Number of features relative to the set.
    """

    parts: tuple[Part, ...]
    relative: int

    @property
    def width(self) -> int:
        """How many columns trees read, mean labels included."""
        of_labels = len(self.combinations) + _OF_WORDS * len(self.texts)
        return len(self.quantities) + len(self.flags) + self.relative + of_labels

    @cached_property
    def quantities(self) -> list[int]:
        """Where the numbers are that trees compare with thresholds."""
        return [
            start + offset
            for start, part in self._places
            if not part.codes and part.width <= _LONGEST
            for offset in range(part.width)
        ]

    @cached_property
    def flags(self) -> list[tuple[int, int]]:
        """Where codes are that trees ask for, with the code."""
        return [(start, code) for start, part in self._codes if part.codes <= _FLAGS for code in range(1, part.codes)]

    @cached_property
    def combinations(self) -> list[Combination]:
        """One to three columns whose values have a mean label, and whole texts; facts of a set only with others."""
        groups: list[Sequence[tuple[int, Part]]] = [[place] for place in self._codes]
        groups += [[(start + word, part) for word in range(part.words)] for start, part in self.texts]
        # Columns with few values occur together often enough to be learned from.
        by_size = sorted(self._codes, key=lambda place: place[1].codes)
        for size, most in ((2, _IN_PAIRS), (3, _IN_THREES)):
            groups += combinations(sorted(by_size[:most], key=lambda place: place[0]), size)
        return [
            Combination(tuple(start for start, _ in group), tuple(part.codes for _, part in group))
            for group in groups
            if not all(part.context for _, part in group)
        ]

    @cached_property
    def texts(self) -> list[tuple[int, Part]]:
        """Where texts are whose words have mean labels."""
        return [(start, part) for start, part in self._places if part.words and not part.context]

    @property
    def buckets(self) -> int:
        """Number of mean labels of all combinations and words."""
        return sum(each.buckets for each in self.combinations) + sum(part.codes for _, part in self.texts)

    def features(self, numbers: Tensor, relative: Tensor | None) -> Tensor:
        """Return what is known without labels, `(total, d)`, in single precision.

        Args:
            numbers: The numbers of the items `(total, width)`.
            relative: Their features relative to the set `(total, r)`.
        """
        pieces = [numbers[:, self.quantities]]
        if self.flags:
            starts, codes = (torch.tensor(column, device=numbers.device) for column in zip(*self.flags, strict=True))
            pieces.append((numbers[:, starts] == codes).to(numbers.dtype))
        if relative is not None:
            pieces.append(relative.to(numbers.dtype))
        # Rounded, so that a threshold splits alike whichever precision the model runs in.
        return torch.cat(pieces, 1).float()

    def codes(self, numbers: Tensor) -> Tensor:
        """Return the indices of the mean labels of each item, `(total, c)`: of each combination, then of each word.

        The index of a word that is not there is -1.
        """
        columns, start = [numbers[:, :0].long()], 0
        for combination in self.combinations:
            columns.append(combination.of(numbers)[:, None] + start)
            start += combination.buckets
        for first, part in self.texts:
            words = numbers[:, first : first + part.words].long()
            columns.append(torch.where(words > 0, words + start, -1))
            start += part.codes
        return torch.cat(columns, 1)

    def of_labels(self, means: Tensor, codes: Tensor) -> Tensor:
        """Return what trees read of mean labels: those of combinations, and mean, smallest and largest of each text.

        Args:
            means: The mean labels of each item, `(total, c)`.
            codes: Their indices, from `codes`.
        """
        start = len(self.combinations)
        pieces = [means[:, :start]]
        for _, part in self.texts:
            own, is_there = (whole[:, start : start + part.words] for whole in (means, codes >= 0))
            counts = is_there.sum(1, keepdim=True)
            mean = (own * is_there).sum(1, keepdim=True) / counts.clamp(min=1)
            # A text without words is as its mean, 0.
            low, high = torch.where(is_there, own, mean).aminmax(dim=1, keepdim=True)
            pieces += [mean, low, high]
            start += part.words
        return torch.cat(pieces, 1)

    @property
    def _codes(self) -> list[tuple[int, Part]]:
        return [(start, part) for start, part in self._places if part.codes and not part.words]

    @cached_property
    def _places(self) -> list[tuple[int, Part]]:
        places, start = [], 0
        for part in self.parts:
            places.append((start, part))
            start += part.width
        return places

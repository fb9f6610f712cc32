"""What is known about the items of all training sets before training: means, spreads, and how often codes occur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.columns._relative import RelativeFeatures
from setgrad.selector._moments import column_moments
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class ItemStatistics:
    """Statistics of items, which those of other items can be added to.

    Attributes:
        count: The number of items.
        mean: The mean of each number, in float64.
        variance: Its variance.
        largest: Its largest size.
        codes: How often each code occurs; None if that was not counted.
        dtype: The dtype of the items.
    """

    count: int
    mean: Tensor
    variance: Tensor
    largest: Tensor
    codes: Tensor | None
    dtype: torch.dtype

    @staticmethod
    def of(sets: Sets, relative: RelativeFeatures | None) -> ItemStatistics:
        """Return the statistics of the items of some sets, of which there is at least one."""
        codes = None if relative is None else relative.count(sets)
        return ItemStatistics(len(sets.values), *column_moments(sets.values), codes, sets.dtype)

    def plus(self, other: ItemStatistics) -> ItemStatistics:
        """Return the statistics of the items of both."""
        count = self.count + other.count
        share = other.count / count
        shift = other.mean - self.mean
        codes = None if self.codes is None or other.codes is None else self.codes + other.codes
        return ItemStatistics(
            count,
            self.mean + share * shift,
            (1 - share) * self.variance + share * other.variance + share * (1 - share) * shift.square(),
            torch.maximum(self.largest, other.largest),
            codes,
            torch.promote_types(self.dtype, other.dtype),
        )

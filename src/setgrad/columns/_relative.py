"""What an item is among the items of its set: its rank, its distance from the mean, and how often its values occur.

Attention can learn these, but needs many sets to do so. They are computed, and have no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from setgrad.columns._part import Part
from setgrad.sets import Sets, segment_max
from setgrad.sets._sets import unpad

# More quantities than this are compared within the whole set only, and more than the other number not at all.
_MOST_GROUPED, _MOST_QUANTITIES = 16, 64
# A distance from the mean is at most so many standard deviations.
FARTHEST = 4.0
# Of so many words of a text, those that occur most, it is told how often.
LARGEST = 3
# More than the largest code of a column.
_CODES = 2**24
# Values are sorted set by set unless filling up the sets would more than double them; a few more do not matter.
_PADDING = 4096
# The rank of an item has this standard deviation, if all ranks are equally frequent.
RANK_SPREAD = 12**-0.5


@final
class _Codes(NamedTuple):
    """Where the codes of a column are: among the numbers of an item, and in the table of rates."""

    start: int
    width: int
    offset: int


@final
class RelativeFeatures(nn.Module):
    """Computes features of items relative to their sets, `(total, out_dim)`, from the raw numbers of the items.

    - For each quantity: its rank in the set, and its distance from the mean in standard deviations. Both also among the
      items of the set that have the same category, for each column of categories.
    - For each category: how much more often it occurs among the other items of the set than in all sets, in standard
      deviations of a draw; for a text the same for its words, the three largest.
    - What the set is about: that number of the value that stands out most in the set, of each column and of all
      columns, and of the value of the item that stands out most, beside it.
    - The logarithm of the size of the set.

    Args:
        parts: What the numbers of an item are.

    Attributes:
        out_dim: Number of features.
    """

    rates: Tensor

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.quantities: list[int] = []
        self.codes: list[_Codes] = []
        start = offset = 0
        for part in parts:
            if not part.context:
                self.quantities += range(start, start + part.compared)
                self.codes += [_Codes(start, part.words or part.width, offset)] if part.codes else []
            start, offset = start + part.width, offset + part.codes
        if len(self.quantities) > _MOST_QUANTITIES:
            self.quantities = []
        is_grouped = len(self.quantities) <= _MOST_GROUPED
        self.groups = [place.start for place in self.codes if place.width == 1 and is_grouped]
        # How often each code occurs among all items.
        self.register_buffer("rates", torch.zeros(offset))
        of_codes = sum(min(LARGEST, place.width) + 2 for place in self.codes) + 3 * (len(self.codes) > 1)
        self.out_dim = 2 * len(self.quantities) * (1 + len(self.groups)) + of_codes + 1

    def count(self, sets: Sets) -> Tensor:
        """Return how often each code occurs among the items of some sets, in float64."""
        items, counts = sets.values, torch.zeros_like(self.rates, dtype=torch.float64, device=sets.device)
        for place in self.codes:
            codes = items[:, place.start : place.start + place.width].long()
            counts.index_add_(0, (codes + place.offset).flatten(), (codes > 0).flatten().to(counts))
        return counts

    def fit(self, counts: Tensor, items: int) -> None:
        """Learn how often each code occurs, from the counts of the training sets and their number of items."""
        self.rates.copy_(counts / max(1, items))

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of every item, in double precision."""
        items, ids = sets.values, sets.layout.ids
        features = [sets.lengths.double().clamp(min=1).log()[ids, None]]
        quantities = items[:, self.quantities]
        if self.quantities:
            numbers = quantities.double()
            features += _compare_in_sets(numbers, sets)
            for group in self.groups:
                features += compare_within(numbers, ids * _CODES + items[:, group].long())
        best: list[Tensor] = []
        for place in self.codes:
            codes = items[:, place.start : place.start + place.width].long()
            excess = self._excess(codes, place.offset, sets).masked_fill(codes == 0, 0)
            largest = excess.topk(min(LARGEST, place.width), 1).values
            features += [largest, *_beside_largest(largest[:, :1], sets)]
            best.append(largest[:, 0])
        if len(best) > 1:
            own = torch.stack(best, 1).amax(1, keepdim=True)
            features += [own, *_beside_largest(own, sets)]
        return torch.cat([feature.double() for feature in features], 1)

    def _excess(self, codes: Tensor, offset: int, sets: Sets) -> Tensor:
        """Return how much more often each code occurs among the others than expected, in standard deviations."""
        ids = sets.layout.ids[:, None]
        keys = (ids * _CODES + codes).flatten()
        others = (_Runs.of(keys).sizes - 1).view_as(codes)
        rates = self.rates[codes + offset].double()
        expected = (sets.lengths[ids] - 1) * rates
        return (others - expected) / (expected * (1 - rates) + 1).sqrt()


def _beside_largest(values: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """Return how far each value `(total, 1)` is from the largest one of its set, and that one."""
    largest = segment_max(values[:, 0], sets)[sets.layout.ids, None]
    return values - largest, largest


def compare_within(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return rank and distance from the mean of each value within its group, `(n, d)` each, with a spread of about 1.

    Args:
        values: The values `(n, d)`, in double precision.
        groups: The group of each row `(n,)`; groups may have any numbers.
    """
    order = values.argsort(dim=0, stable=True)
    order = order.gather(0, groups[order].argsort(dim=0, stable=True))
    return _compare(values, order, groups[order], groups)


def _compare_in_sets(values: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """Return the result of `compare_within` for the items of each set, which are beside each other already."""
    layout = sets.layout
    if len(layout) * layout.longest > 2 * layout.total + _PADDING:
        return compare_within(values, layout.ids)
    # Padding comes last, also after values that are not numbers.
    places = sets.with_values(values).padded(torch.nan)[0].mT.contiguous().argsort(stable=True).mT
    order = unpad(places, sets) + layout.offsets[layout.ids, None]
    return _compare(values, order, layout.ids[:, None], layout.ids)


def _compare(values: Tensor, order: Tensor, groups_in_order: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return ranks and distances.

    Args:
        values: The values `(n, d)`.
        order: The rows of each column by group and value `(n, d)`.
        groups_in_order: The groups of these rows, `(n, d)`; `(n, 1)` if they are the same for all columns.
        groups: The group of each row, `(n,)`.
    """
    sorted_values, index = values.gather(0, order), torch.arange(len(values), device=values.device)[:, None]
    starts_group = _starts(groups_in_order)
    starts_value = starts_group | _starts(sorted_values)
    group_start, group_end = _bounds(starts_group, index)
    value_start, value_end = _bounds(starts_value, index)
    # Equal values share the middle of their ranks.
    # Whole numbers would be divided in single precision, which does not hold places in a large batch.
    middle = (value_start + value_end - 1 - 2 * group_start).to(values.dtype) / 2
    others = group_end - group_start - 1
    shares = torch.where(others > 0, middle / others.clamp(min=1), 0.5)
    ranks = torch.empty_like(values).scatter_(0, order, (shares - 0.5) / RANK_SPREAD)
    return ranks, _distances(values, _Runs.of(groups))


def _distances(values: Tensor, groups: _Runs) -> Tensor:
    """Return the distance of each value from the mean of its group, in standard deviations."""
    sizes, numbers = groups.sizes[:, None], groups.numbers

    def mean(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(0, numbers, x)[numbers] / sizes

    centred = values - mean(values)
    deviation = mean(centred.square()).sqrt()
    # Rounding errors of equal values are no differences.
    is_equal = deviation <= 1e-12 * values.abs()
    return torch.where(is_equal, 0.0, centred / deviation.masked_fill(is_equal, 1.0)).clamp(-FARTHEST, FARTHEST)


@final
class _Runs(NamedTuple):
    """Equal numbers: how many there are of each number, and a running number of each, `(n,)` both."""

    sizes: Tensor
    numbers: Tensor

    @staticmethod
    def of(keys: Tensor) -> _Runs:
        ordered, order = keys.sort(stable=True)
        starts = _starts(ordered)
        first, last = _bounds(starts, torch.arange(len(keys), device=keys.device))
        sizes, numbers = torch.empty_like(keys), torch.empty_like(keys)
        sizes[order] = last - first
        numbers[order] = starts.long().cumsum(0) - 1
        return _Runs(sizes, numbers)


def _starts(ordered: Tensor) -> Tensor:
    """Return whether each entry, along the first dimension, differs from the one before."""
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    return starts


def _bounds(starts: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the run of each entry begins and where it ends."""
    count = len(starts)
    first = torch.where(starts, index, 0).cummax(0).values
    # The next start after an entry, from behind.
    following = torch.full_like(first, count)
    following[:-1] = torch.where(starts[1:], (index.expand_as(starts))[1:], count)
    last = following.flip(0).cummin(0).values.flip(0)
    return first, last

"""What would have to be different for another choice: a swap, another number in a column, or one more item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from setgrad.explain._batches import parts_of
from setgrad.explain._subject import AbstractSubject, ItemColumn
from setgrad.explain.gains import one_row_each
from setgrad.sets import Sets, segment_max

# Values in each direction at which the choice is made again, and halvings of the interval in which it changes.
_GRID, _HALVINGS = 12, 12
# Entries of the table of all swaps of a batch.
_ENTRIES = 2**22
# Changed copies of sets that are in memory at once hold so many items.
_COPIED = 2**20


@final
@dataclass(frozen=True, eq=False)
class Swaps:
    """The best swap of each of some items: a chosen one for one that was not.

    Attributes:
        items: Rows of the items.
        partners: Rows of the items that they are swapped with.
        differences: F after the swap minus F before.
    """

    items: np.ndarray
    partners: np.ndarray
    differences: np.ndarray


@final
class Changes(NamedTuple):
    """The smallest change found of a number that changes whether an item is chosen.

    Attributes:
        items: Rows of the items.
        columns: Which of the columns.
        before: The number as it is; NaN for a gap.
        after: The number at which the choice differs.
    """

    items: np.ndarray
    columns: np.ndarray
    before: np.ndarray
    after: np.ndarray


@final
class Additions(NamedTuple):
    """A copy of an item which, added to the set, changes whether another one is chosen.

    Attributes:
        items: Rows of the items whose choice changes.
        copied: Rows of the items of which a copy is added.
        changed: For how many items of the set the choice changes.
    """

    items: np.ndarray
    copied: np.ndarray
    changed: np.ndarray


def best_swaps(subject: AbstractSubject, sets: Sets, subsets: Tensor, items: Tensor, fixed: Tensor) -> Swaps:
    """Return for each item the swap that raises F most, or lowers it least, at the chosen subset.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: The chosen items, `(total,)`.
        items: Whether each item is asked about.
        fixed: Items that must stay in, or out.

    Returns:
        The swaps of the items that have a partner.
    """
    total = sets.layout.total
    partner, best = torch.full((total,), -1), torch.full((total,), -torch.inf, dtype=torch.float64)
    every = sets.with_values(torch.arange(total, device=sets.device))
    sizes = np.bincount(sets.layout.ids[subsets].cpu().numpy(), minlength=len(sets))
    for numbers in parts_of(np.maximum(sizes, 1) * sets.layout.host_lengths, _ENTRIES):
        rows = every.take(numbers).values
        bound = subject.bind(sets.take(numbers))
        part, device = bound.sets, bound.sets.device
        inside, may_move = subsets[rows].to(device), ~fixed[rows].to(device)
        leaves, joins = one_row_each(inside & may_move, part), ~inside & may_move
        if not len(leaves):
            continue
        # Row k: the k-th chosen item of each set leaves, and each other item joins.
        own = bound.gains(inside[None])[0].double()
        losses = segment_max(torch.where(leaves, own, -torch.inf).T, part).T
        table = bound.gains(inside & ~leaves).double() - losses[:, part.layout.ids]
        table = torch.where(joins & losses[:, part.layout.ids].isfinite(), table, -torch.inf)
        # The partners of items outside are the best of each column, those of items inside the best of each row.
        value, which = table.max(0)
        found, place = part.with_values(table.T).padded(fill=-torch.inf)[0].max(1)
        number, row = leaves.T.nonzero().unbind(1)
        leaving = torch.full_like(losses, -1, dtype=torch.long)
        leaving[row, part.layout.ids[number]] = number
        other = leaving[which, part.layout.ids]
        value, other = value.clone(), other.clone()
        ids = part.layout.ids[number]
        value[number], other[number] = found[ids, row], part.offsets[ids] + place[ids, row]
        has_partner = value.isfinite()
        best[rows[has_partner].cpu()] = value[has_partner].cpu()
        partner[rows[has_partner].cpu()] = rows[other[has_partner].to(rows.device)].cpu()
    asked = np.flatnonzero((items.cpu() & (partner >= 0)).numpy())
    return Swaps(asked, partner.numpy()[asked], best.numpy()[asked])


def smallest_changes(
    subject: AbstractSubject, sets: Sets, subsets: Tensor, items: Tensor, columns: Sequence[ItemColumn]
) -> Changes:
    """Return for some items the smallest change found of a number that flips the choice of the item.

    The choice is made again at up to 12 numbers in each direction, the nearest first, up to the range of the set beyond
    its largest and its smallest number. The interval in which it changes is then halved 12 times. Each number that is
    returned was tried, so the choice does change there; a smaller change may be hidden between two that were tried.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: What was chosen from them, `(total,)`.
        items: Rows of the items.
        columns: Columns of numbers.
    """
    lengths, ids = sets.layout.host_lengths, sets.layout.ids.cpu().numpy()
    own, which = (part.reshape(-1) for part in np.meshgrid(items.cpu().numpy(), np.arange(len(columns)), indexing="ij"))
    found = [Changes(own[:0], which[:0], np.zeros(0), np.zeros(0))]
    for part in parts_of(2 * _GRID * lengths[ids[own]], _COPIED):
        found.append(_search(subject, sets, subsets, own[part], which[part], columns))
    return Changes(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _search(
    subject: AbstractSubject,
    sets: Sets,
    subsets: Tensor,
    own: np.ndarray,
    which: np.ndarray,
    columns: Sequence[ItemColumn],
) -> Changes:
    numbers = sets.values.flatten(1)[:, [column.start for column in columns]].double()
    before = numbers.cpu().numpy()[own, which]
    low, high, whole = (part[sets.layout.ids.cpu().numpy()[own], which] for part in _ranges(numbers, sets))
    chosen = subsets.cpu().numpy()[own]

    def is_flipped(jobs: np.ndarray, values: np.ndarray) -> np.ndarray:
        return _choose_with(subject, sets, own[jobs], which[jobs], values, columns) != chosen[jobs]

    def snap(jobs: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.where(whole[jobs], np.round(values), values)

    # Both directions at the same distance, farther in each turn, until the choice of the item changes; finer near the
    # number as it is.
    farthest = np.maximum(high - before, before - low)
    sides = np.array([-1.0, 1.0])
    left, inner_of, found = np.arange(len(own)), np.stack([before, before], 1), []
    for share in (np.arange(1, _GRID + 1) / _GRID) ** 2:
        tried = before[left, None] + sides * (share * farthest[left])[:, None]
        tried = np.clip(tried, low[left, None], high[left, None])
        jobs = np.repeat(left, 2)
        tried = snap(jobs, tried.reshape(-1)).reshape(-1, 2)
        flips = is_flipped(jobs, tried.reshape(-1)).reshape(-1, 2)
        row, side = flips.nonzero()
        found.append((left[row], inner_of[left[row], side], tried[row, side]))
        inner_of[left] = tried
        left = left[~flips.any(1)]
    jobs, inner, outer = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for _ in range(_HALVINGS):
        middle = snap(jobs, (inner + outer) / 2)
        flipped = is_flipped(jobs, middle)
        outer, inner = np.where(flipped, middle, outer), np.where(flipped, inner, middle)
    # The nearer of the two directions.
    order = np.lexsort((np.abs(outer - before[jobs]), jobs))
    nearest = order[np.unique(jobs[order], return_index=True)[1]]
    jobs = jobs[nearest]
    flags = np.array([column.start + column.width - 1 for column in columns])[which[jobs]]
    widths = np.array([column.width for column in columns])[which[jobs]]
    items = sets.values.flatten(1).cpu().numpy()
    is_gap = (widths > 1) & (items[own[jobs], flags] != 0)
    return Changes(own[jobs], which[jobs], np.where(is_gap, np.nan, before[jobs]), outer[nearest])


def _ranges(numbers: Tensor, sets: Sets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest and the largest number to try in each set and column, and whether all are whole."""
    low, high = -segment_max(-numbers, sets, empty=0.0), segment_max(numbers, sets, empty=0.0)
    spread = high - low
    # In a set of one number, as far as the number is from 0.
    spread = torch.where(spread > 0, spread, torch.maximum(high.abs(), torch.ones_like(high)))
    lowest = torch.where(low >= 0, (low - spread).clamp(min=0), low - spread)
    parts = segment_max((numbers != numbers.round()).double(), sets, empty=0.0)
    return lowest.cpu().numpy(), (high + spread).cpu().numpy(), (parts == 0).cpu().numpy()


def _choose_with(
    subject: AbstractSubject,
    sets: Sets,
    own: np.ndarray,
    which: np.ndarray,
    values: np.ndarray,
    columns: Sequence[ItemColumn],
) -> np.ndarray:
    """Return whether an item of each copy of a set is chosen, with another number in one of its columns."""
    ids = sets.layout.ids.cpu().numpy()[own]
    copies = sets.take(ids)
    rows = copies.layout.host_offsets[:-1] + own - sets.layout.host_offsets[ids]
    items = copies.values.flatten(1).clone()
    starts, widths = (np.array([getattr(column, name) for column in columns])[which] for name in ("start", "width"))
    items[rows, starts] = torch.from_numpy(values).to(items)
    # A number that is there is not missing.
    flagged = widths > 1
    items[rows[flagged], starts[flagged] + 1] = 0
    picks = subject.choose(copies.with_values(items.view(-1, *sets.item_shape)), ids)
    picked: np.ndarray = picks.values.cpu().numpy()[rows]
    return picked


def changing_additions(subject: AbstractSubject, sets: Sets, subsets: Tensor, items: Tensor) -> Additions:
    """Return for some items one that changes, when a copy of it is added to the set, whether they are chosen.

    Copies of the same items are tried. Of those that change the choice of an item, the one is returned that changes the
    choices of the fewest other items.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: What was chosen from them, `(total,)`.
        items: Rows of the items.
    """
    layout = sets.layout
    ids = layout.ids[items].cpu().numpy()
    asked = torch.zeros(layout.total, dtype=torch.bool)
    asked[items.cpu()] = True
    found = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
    for part in parts_of(layout.host_lengths[ids] + 1, _COPIED):
        origin, own = ids[part], items.cpu().numpy()[part]
        every = sets.with_values(torch.arange(layout.total, device=sets.device)).take(origin)
        # The copy comes last.
        lengths = every.layout.host_lengths + 1
        longer = Sets.from_lengths(torch.zeros(int(lengths.sum()), dtype=torch.long), lengths)
        is_last = torch.zeros(longer.layout.total, dtype=torch.bool)
        is_last[longer.layout.host_offsets[1:] - 1] = True
        source = torch.zeros(longer.layout.total, dtype=torch.long)
        source[is_last], source[~is_last] = torch.from_numpy(own), every.values.cpu()
        values = sets.values[source.to(sets.device)]
        picks = subject.choose(Sets(values, longer.layout.to(sets.device)), origin, added=1).values.cpu()
        differs = (picks != subsets.cpu()[source]) & ~is_last
        count = torch.zeros(len(longer), dtype=torch.long).index_add_(0, longer.layout.ids, differs.long())
        hit = (differs & asked[source]).nonzero()[:, 0]
        copy = longer.layout.ids[hit]
        found.append((source[hit].numpy(), own[copy.numpy()], count[copy].numpy()))
    own, copied, changed = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((changed, own))
    best = order[np.unique(own[order], return_index=True)[1]]
    return Additions(own[best], copied[best], changed[best])

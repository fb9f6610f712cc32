"""Which columns drive the gain of an item: what its gain becomes with the values of other items of its set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad._progress import slow_bar
from setgrad.explain._batches import parts_of
from setgrad.explain._subject import AbstractSubject, ItemColumn
from setgrad.explain.gains import gains_at
from setgrad.sets import Sets, segment_order

# Values that replace one, where a set has as many other items.
REPLACEMENTS = 16
# Fewer for large sets, so that the items of all changed copies of a set are at most so many, but at least the number
# below.
_MOST_ITEMS, _LEAST = 2**17, 4


def column_effects(
    subject: AbstractSubject,
    sets: Sets,
    subsets: Tensor,
    items: Tensor,
    columns: Sequence[ItemColumn],
    replacements: int | None = None,
) -> Tensor:
    """Return by how much each column raises the gain of some items, in float64.

    The value of the column of one item is replaced by that of another item of the set, and everything else stays, also
    the chosen subset. The effect is the gain of the item minus its mean gain over the replaced values. It is NaN in a
    set of one item. Effects of columns that depend on each other do not add up to the gain.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: The chosen items, `(total,)`.
        items: Rows of the items, in their order.
        columns: The columns.
        replacements: How many of the other items of a set lend their value, evenly spaced in the order of the values;
            None for 16, and fewer in large sets.

    Returns:
        The effects `(items, columns)`.
    """
    effects = torch.full((len(items), len(columns)), torch.nan, dtype=torch.float64)
    if not len(items) or not columns:
        return effects
    lengths, ids = sets.layout.host_lengths, sets.layout.ids[items].cpu().numpy()
    lent = _count_lent(lengths, np.bincount(ids, minlength=len(lengths)) * len(columns), replacements)
    # One job for each item and column, sets of similar size together.
    job_item, job_column = np.indices((len(items), len(columns))).reshape(2, -1)
    order = np.argsort(lengths[ids[job_item]], kind="stable")
    order = order[lent[ids[job_item[order]]] > 0]
    job_item, job_column = job_item[order], job_column[order]
    number = lent[ids[job_item]]
    job = np.repeat(np.arange(len(order)), number)
    turn = np.arange(len(job)) - np.repeat(np.cumsum(number) - number, number)
    own, column = items.cpu().numpy()[job_item[job]], job_column[job]
    donor = _find_donors(sets, own, column, turn, number[job], columns)
    # A copy in which nothing changes has the same gain.
    kept = np.flatnonzero(_differs(sets, own, donor, column, columns))
    job, own, column, donor = job[kept], own[kept], column[kept], donor[kept]
    base = gains_at(subject, sets, sets.with_values(subsets), exact=False).values.cpu().numpy()
    lost = np.zeros(len(job))
    with slow_bar(len(job), "changed sets") as progress:
        for part in parts_of(lengths[ids[job_item[job]]], subject.batch_items):
            gains = _gains_of_copies(subject, sets, subsets, own[part], columns, column[part], donor[part])
            lost[part] = base[own[part]] - gains
            progress.update(part[-1] + 1)
    effects[job_item, job_column] = torch.from_numpy(np.bincount(job, weights=lost, minlength=len(number)) / number)
    return effects


def _count_lent(lengths: np.ndarray, jobs: np.ndarray, replacements: int | None) -> np.ndarray:
    """Return how many values replace one in each set."""
    others = np.maximum(lengths - 1, 0)
    if replacements is not None:
        return np.minimum(others, replacements)
    affordable = _MOST_ITEMS // np.maximum(jobs * lengths, 1)
    return np.minimum(others, np.clip(affordable, _LEAST, REPLACEMENTS))


def _find_donors(
    sets: Sets, own: np.ndarray, column: np.ndarray, turn: np.ndarray, number: np.ndarray, columns: Sequence[ItemColumn]
) -> np.ndarray:
    """Return the rows of the items that lend their values: evenly spaced in the order of the values of the set."""
    layout, numbers = sets.layout, sets.values.flatten(1)
    orders = torch.stack([segment_order(numbers[:, part.start], sets, descending=False) for part in columns])
    ranks = torch.empty_like(orders).scatter_(1, orders, layout.positions.expand_as(orders))
    ids = layout.ids.cpu().numpy()[own]
    # The middles of equal parts of the order of the other items, without the item itself.
    place = (2 * turn + 1) * (layout.host_lengths[ids] - 1) // (2 * number)
    place += place >= ranks.cpu().numpy()[column, own]
    donors: np.ndarray = orders.cpu().numpy()[column, layout.host_offsets[ids] + place]
    return donors


def _differs(
    sets: Sets, own: np.ndarray, donor: np.ndarray, column: np.ndarray, columns: Sequence[ItemColumn]
) -> np.ndarray:
    """Return whether the values of two items differ in a column."""
    differs = np.zeros(len(own), dtype=bool)
    for index, part in enumerate(columns):
        rows = np.flatnonzero(column == index)
        values = sets.values.flatten(1)[:, part.slice].cpu().numpy()
        differs[rows] = (values[own[rows]] != values[donor[rows]]).any(1)
    return differs


def _gains_of_copies(
    subject: AbstractSubject,
    sets: Sets,
    subsets: Tensor,
    own: np.ndarray,
    columns: Sequence[ItemColumn],
    column: np.ndarray,
    donor: np.ndarray,
) -> np.ndarray:
    """Return the gain of one item in each copy of its set, with the value of one column from another item."""
    ids = sets.layout.ids.cpu().numpy()[own]
    copies = sets.take(ids)
    rows = copies.layout.host_offsets[:-1] + own - sets.layout.host_offsets[ids]
    values = copies.values.flatten(1).clone()
    numbers = np.arange(values.shape[1])
    starts, stops = (np.array([getattr(part.slice, end) for part in columns])[column] for end in ("start", "stop"))
    changed, number = np.nonzero((numbers >= starts[:, None]) & (numbers < stops[:, None]))
    values[rows[changed], number] = sets.values.flatten(1)[donor[changed], number]
    bound = subject.bind(copies.with_values(values.view(-1, *sets.item_shape)), exact=False)
    masks = sets.with_values(subsets).take(ids).values.to(bound.sets.device)
    gains: np.ndarray = bound.gains(masks[None], torch.from_numpy(rows).to(masks.device))[0].double().cpu().numpy()
    return gains

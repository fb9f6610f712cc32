"""Growing one tree whose nodes of a level all ask the same question, by sums of gradients in bins of values."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
import torch

DEPTH = 6
_PENALTY = 3.0
# Values are compared with at most so many thresholds.
_THRESHOLDS = 32


@final
class Split(NamedTuple):
    """A question: is a value of this column in a bin above this one?"""

    column: int
    bin: int


def bin_edges(values: np.ndarray) -> np.ndarray:
    """Return ascending thresholds between values, at most `_THRESHOLDS`, about equally many values between two."""
    different, counts = np.unique(values, return_counts=True)
    if len(different) > _THRESHOLDS + 1:
        targets = np.linspace(0, len(values), _THRESHOLDS + 2)[1:-1]
        lower = np.unique(np.searchsorted(np.cumsum(counts), targets))
        lower = lower[lower < len(different) - 1]
    else:
        lower = np.arange(len(different) - 1)
    # In the middle, so that the rounding of a value does not matter.
    middles = (different[lower].astype(np.float64) + different[lower + 1]) / 2
    return np.unique(middles.astype(np.float32))


def into_bins(features: np.ndarray, edges: list[np.ndarray]) -> np.ndarray:
    """Return how many thresholds of its column each value is above, `(total, d)`."""
    bins = np.empty(features.shape, np.uint8)
    for number, column_edges in enumerate(edges):
        bins[:, number] = np.searchsorted(column_edges, features[:, number], side="left")
    return bins


def grow_tree(bins: np.ndarray, widths: np.ndarray, statistics: np.ndarray) -> tuple[list[Split], np.ndarray]:
    """Return the questions of a tree, and the step of each leaf towards the labels, `(2**DEPTH,)`.

    Args:
        bins: The bin of each value, `(total, d)`.
        widths: How many bins each column has, `(d,)`.
        statistics: The gradient and the curvature of each item, `(2, total)`.
    """
    starts = np.cumsum(widths) - widths
    size = int(widths.sum())
    places, column_of = bins + starts.astype(np.int32), np.repeat(np.arange(len(widths)), widths)
    leaves = np.zeros(len(bins), np.int32)
    splits: list[Split] = []
    sums = _sum_in_bins(places, statistics, 1, size)
    for level in range(DEPTH):
        if level:
            sums = _sums_of_children(sums, places, statistics, leaves)
        # Each column holds all items of a leaf.
        totals = sums[..., : widths[0]].sum(2)[..., None]
        below = sums.cumsum(2) - totals * column_of
        gain = _gain(totals - below) + _gain(below)
        best = int(gain.sum(0).argmax())
        column = int(column_of[best])
        splits.append(Split(column, best - int(starts[column])))
        leaves = 2 * leaves + (bins[:, column] > splits[-1].bin)
    slope, curvature = (np.bincount(leaves, part, 2**DEPTH) for part in statistics)
    return splits, slope / (curvature + _PENALTY)


def leaves_of(bins: np.ndarray, splits: list[Split]) -> np.ndarray:
    """Return the leaf of each item, `(total,)`; the first question is the highest bit."""
    leaves = np.zeros(len(bins), np.int32)
    for column, edge in splits:
        leaves = 2 * leaves + (bins[:, column] > edge)
    return leaves


def _sums_of_children(sums: np.ndarray, places: np.ndarray, statistics: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """Return the sums of the two halves of each leaf, `(2, leaves, size)`, from those of the whole leaves."""
    _, count, size = sums.shape
    is_right = leaves % 2 == 1
    # Adding up one side is enough, and most splits have a small one.
    side = int(2 * is_right.sum() <= len(leaves))
    rows = np.flatnonzero(is_right == side)
    own = places[rows] + (leaves[rows] // 2 * size)[:, None]
    halves = np.empty((2, count, 2, size))
    halves[:, :, side] = _sum_in_bins(own, statistics[:, rows], count, size)
    halves[:, :, 1 - side] = sums - halves[:, :, side]
    return halves.reshape(2, 2 * count, size)


def _sum_in_bins(places: np.ndarray, statistics: np.ndarray, leaves: int, size: int) -> np.ndarray:
    """Return the sums of gradients and curvatures at each place, `(2, leaves, size)`."""
    flat, columns = torch.from_numpy(places.ravel()), places.shape[1]
    # Twice as fast as that of NumPy.
    sums = [torch.bincount(flat, torch.from_numpy(part.repeat(columns)), leaves * size) for part in statistics]
    return torch.stack(sums).view(2, leaves, size).numpy()


def _gain(sums: np.ndarray) -> np.ndarray:
    """Return how much the loss falls by a step of each leaf, up to a factor."""
    slope, curvature = sums
    return slope * slope / (curvature + _PENALTY)

"""Boosting of trees in which all nodes of a level ask the same question, for the probability that an item is chosen.

Each tree is grown on random sets and columns, by the sums of gradients in bins of values. The loss of sets that are
held out ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

TREES, DEPTH = 500, 6
_RATE, _PATIENCE, _PENALTY = 0.1, 50, 3.0
# Values are compared with at most so many thresholds.
_THRESHOLDS = 32
# Shares of the sets and of the columns that a tree sees, and the most items: more make it slower, not better.
_SETS, _COLUMNS, _MOST_ITEMS = 0.7, 0.5, 2**14
_LEAST_GAIN = 1e-6


@final
@dataclass(frozen=True, eq=False)
class Examples:
    """Items to learn from.

    Attributes:
        features: What is known of them, `(total, d)`, in single precision.
        labels: Whether each was chosen, `(total,)`.
        weights: Weight of each, `(total,)`.
        ids: The set of each, `(total,)`, from 0.
    """

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: np.ndarray


@final
@dataclass(frozen=True, eq=False)
class Trees:
    """Trees that were grown one after the other.

    Attributes:
        start: The score before the first tree.
        columns: The column that each level of a tree asks for, `(trees, depth)`.
        thresholds: Values above these go right, `(trees, depth)`.
        values: What each leaf adds, `(trees, 2**depth)`; the first level is the highest bit.
    """

    start: float
    columns: np.ndarray
    thresholds: np.ndarray
    values: np.ndarray


@final
class _Split(NamedTuple):
    column: int
    bin: int


def grow(examples: Examples, held_out: Examples, rng: np.random.Generator) -> Trees:
    """Grow trees until the loss of the items that are held out stops falling, and keep those up to the best."""
    edges = [bin_edges(column) for column in examples.features.T]
    bins, held_out_bins = (into_bins(part.features, edges) for part in (examples, held_out))
    labels, weights = examples.labels, examples.weights
    start = log_odds(labels, weights)
    scores, held_out_scores = np.full(len(labels), start), np.full(len(held_out.labels), start)
    trees: list[tuple[list[_Split], np.ndarray]] = []
    # Trees that add nothing are left out.
    best, count = _loss(held_out_scores, held_out), 0
    while len(trees) < TREES and len(trees) - count < _PATIENCE:
        chances = 1 / (1 + np.exp(-scores))
        rows = _draw_rows(examples.ids, rng)
        columns = _draw_columns(edges, rng)
        if not len(columns):
            break
        gradients = ((labels - chances) * weights)[rows]
        curvatures = (chances * (1 - chances) * weights)[rows]
        splits, values = _grow_tree(bins[rows], columns, gradients, curvatures)
        trees.append((splits, values))
        scores += values[_leaves(bins, splits)]
        held_out_scores += values[_leaves(held_out_bins, splits)]
        loss = _loss(held_out_scores, held_out)
        if loss < best - _LEAST_GAIN:
            best, count = loss, len(trees)
    kept = trees[:count]
    return Trees(
        start,
        np.array([[split.column for split in splits] for splits, _ in kept], np.int64).reshape(count, DEPTH),
        np.array([[_threshold(edges, split) for split in splits] for splits, _ in kept], np.float32).reshape(
            count, DEPTH
        ),
        np.array([values for _, values in kept], np.float32).reshape(count, 2**DEPTH),
    )


def log_odds(labels: np.ndarray, weights: np.ndarray) -> float:
    """Return the log-odds of the mean label."""
    mean = np.clip((weights @ labels) / weights.sum(), 1e-6, 1 - 1e-6)
    return float(np.log(mean) - np.log1p(-mean))


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
    bins = np.empty(features.shape, np.int32, order="F")
    for number, column_edges in enumerate(edges):
        bins[:, number] = np.searchsorted(column_edges, features[:, number], side="left")
    return bins


def _grow_tree(
    bins: np.ndarray, columns: np.ndarray, gradients: np.ndarray, curvatures: np.ndarray
) -> tuple[list[_Split], np.ndarray]:
    """Return the splits of a tree, and what its leaves add."""
    width, size = _THRESHOLDS + 1, len(columns) * (_THRESHOLDS + 1)
    places = (bins[:, columns] + np.arange(len(columns)) * width).astype(np.int64)
    # Once for each entry of `places`.
    many = [np.repeat(part, len(columns)) for part in (gradients, curvatures)]
    leaves = np.zeros(len(bins), np.int64)
    splits = []
    for level in range(DEPTH):
        flat = (places + leaves[:, None] * size).ravel()
        shape = (2**level, len(columns), width)
        slope, curvature = (np.bincount(flat, part, 2**level * size).reshape(shape).cumsum(2) for part in many)
        # Those above a threshold are all but those up to it.
        gain = _gain(slope, curvature) + _gain(slope[..., -1:] - slope, curvature[..., -1:] - curvature)
        column, edge = divmod(int(gain.sum(0)[:, :-1].argmax()), width - 1)
        splits.append(_Split(int(columns[column]), edge))
        leaves = 2 * leaves + (bins[:, columns[column]] > edge)
    slope, curvature = (np.bincount(leaves, part, 2**DEPTH) for part in (gradients, curvatures))
    return splits, _RATE * slope / (curvature + _PENALTY)


def _threshold(edges: list[np.ndarray], split: _Split) -> float:
    # A level that finds nothing to ask sends all items left.
    return float(edges[split.column][split.bin]) if split.bin < len(edges[split.column]) else np.inf


def _gain(slope: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    return slope * slope / (curvature + _PENALTY)


def _leaves(bins: np.ndarray, splits: list[_Split]) -> np.ndarray:
    leaves = np.zeros(len(bins), np.int64)
    for column, edge in splits:
        leaves = 2 * leaves + (bins[:, column] > edge)
    return leaves


def _draw_rows(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the items of random sets."""
    share = min(_SETS, _MOST_ITEMS / len(ids))
    drawn = rng.random(int(ids.max()) + 1) < share
    rows = np.flatnonzero(drawn[ids])
    return rows if len(rows) else np.arange(len(ids))


def _draw_columns(edges: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return random columns among those that have different values."""
    usable = np.flatnonzero([len(column_edges) > 0 for column_edges in edges])
    return np.sort(rng.choice(usable, max(1, round(_COLUMNS * len(usable))), replace=False)) if len(usable) else usable


def _loss(scores: np.ndarray, examples: Examples) -> float:
    """Return the mean log-loss."""
    losses = np.logaddexp(0, scores) - examples.labels * scores
    return float(examples.weights @ losses / examples.weights.sum())

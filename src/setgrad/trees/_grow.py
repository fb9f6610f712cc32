"""Boosting of trees in which all nodes of a level ask the same question, for the probability that an item is chosen.

Each tree is grown on random sets and columns. The loss of sets that are held out ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from setgrad.trees._tree import DEPTH, Split, bin_edges, grow_tree, into_bins, leaves_of

TREES = 500
_RATE, _PATIENCE = 0.1, 50
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


def grow(examples: Examples, held_out: Examples, rng: np.random.Generator) -> Trees:
    """Grow trees until the loss of the items that are held out stops falling, and keep those up to the best."""
    edges = [bin_edges(column) for column in examples.features.T]
    widths = np.array([len(column_edges) + 1 for column_edges in edges])
    bins, held_out_bins = (into_bins(part.features, edges) for part in (examples, held_out))
    labels, weights = examples.labels, examples.weights
    start = log_odds(labels, weights)
    scores, held_out_scores = np.full(len(labels), start), np.full(len(held_out.labels), start)
    trees: list[tuple[list[Split], np.ndarray]] = []
    # Trees that add nothing are left out.
    best, count = _loss(held_out_scores, held_out), 0
    while len(trees) < TREES and len(trees) - count < _PATIENCE:
        chances = 1 / (1 + np.exp(-scores))
        rows = _draw_rows(examples.ids, rng)
        columns = _draw_columns(widths, rng)
        if not len(columns):
            break
        statistics = np.stack([labels - chances, chances * (1 - chances)]) * weights
        found, steps = grow_tree(bins[np.ix_(rows, columns)], widths[columns], statistics[:, rows])
        splits, values = [Split(int(columns[column]), edge) for column, edge in found], _RATE * steps
        trees.append((splits, values))
        scores += values[leaves_of(bins, splits)]
        held_out_scores += values[leaves_of(held_out_bins, splits)]
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


def _threshold(edges: list[np.ndarray], split: Split) -> float:
    # A level that finds nothing to ask sends all items left.
    return float(edges[split.column][split.bin]) if split.bin < len(edges[split.column]) else np.inf


def _draw_rows(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the items of random sets."""
    share = min(_SETS, _MOST_ITEMS / len(ids))
    drawn = rng.random(int(ids.max()) + 1) < share
    rows = np.flatnonzero(drawn[ids])
    return rows if len(rows) else np.arange(len(ids))


def _draw_columns(widths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return random columns among those that have different values."""
    usable = np.flatnonzero(widths > 1)
    return np.sort(rng.choice(usable, max(1, round(_COLUMNS * len(usable))), replace=False)) if len(usable) else usable


def _loss(scores: np.ndarray, examples: Examples) -> float:
    """Return the mean log-loss."""
    losses = np.logaddexp(0, scores) - examples.labels * scores
    return float(examples.weights @ losses / examples.weights.sum())

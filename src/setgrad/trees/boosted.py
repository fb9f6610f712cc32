"""A score of each item from boosted trees, which need few sets to learn from columns of every kind.

The sets are dealt into folds. The trees of a fold are grown on the other folds, so each set that is learned from also
has a score from trees that have not seen it. What is trained on these scores meets new sets as it met its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.columns._part import Part
from setgrad.trees._grow import DEPTH, TREES, Examples, Trees, grow, log_odds
from setgrad.trees._inputs import TreeInputs
from setgrad.trees._mean_labels import mean_labels, mean_labels_before

_FOLDS = 5
# Trees are grown on at most so many items: more take longer and teach them little that a network does not learn.
_MOST_ITEMS = 2**16
# Items that are scored at once, so that intermediate results stay in the cache of a CPU.
_CHUNK = 1024


@final
class _Items(NamedTuple):
    """Items to learn from, with an entry for each."""

    features: np.ndarray
    codes: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: np.ndarray
    folds: np.ndarray

    def of(self, rows: np.ndarray) -> _Items:
        return _Items(*(part[rows] for part in self))

    def with_columns(self, means: np.ndarray) -> Examples:
        return Examples(np.concatenate([self.features, means], 1), self.labels, self.weights, self.ids)


@final
class BoostedTrees(nn.Module):
    """Maps the numbers of items, and their features relative to the set, to scores `(total,)`: log-odds of the choice.

    New trees score 0. The scores are constant between the thresholds of the trees, so they have no gradient.

    Args:
        parts: What the numbers of an item are.
        relative: Number of features relative to the set.
    """

    labels: Tensor
    starts: Tensor
    columns: Tensor
    thresholds: Tensor
    values: Tensor
    counts: Tensor

    def __init__(self, parts: Sequence[Part], relative: int) -> None:
        super().__init__()
        self.inputs = TreeInputs(tuple(parts), relative)
        # Mean labels of the values of categories.
        self.register_buffer("labels", torch.zeros(_FOLDS, self.inputs.buckets))
        self.register_buffer("starts", torch.zeros(_FOLDS))
        self.register_buffer("columns", torch.zeros(_FOLDS, TREES, DEPTH, dtype=torch.int32))
        self.register_buffer("thresholds", torch.zeros(_FOLDS, TREES, DEPTH))
        self.register_buffer("values", torch.zeros(_FOLDS, TREES, 2**DEPTH))
        self.register_buffer("counts", torch.zeros(_FOLDS, dtype=torch.int64))

    @property
    def is_sound(self) -> bool:
        """Whether all trees ask for features that there are: those of a damaged file may not."""
        columns, counts = self.columns, self.counts
        return bool(
            (columns >= 0).all()
            and (columns < max(1, self.inputs.width)).all()
            and (counts >= 0).all()
            and (counts <= TREES).all()
            and (self.values.isfinite().all() and self.starts.isfinite().all())
        )

    @torch.no_grad()
    def forward(self, numbers: Tensor, relative: Tensor | None, folds: Tensor | None = None) -> Tensor:
        """Return the scores.

        Args:
            numbers: The numbers of the items `(total, width)`.
            relative: Their features relative to the set `(total, r)`.
            folds: The fold whose trees score each item, `(total,)`; -1, or None for all items, for the mean over the
                folds.
        """
        features, codes = self.inputs.features(numbers, relative), self.inputs.codes(numbers)
        by_fold = torch.stack([self._score(fold, features, codes) for fold in range(_FOLDS)])
        mean = by_fold.mean(0)
        return mean if folds is None else torch.where(folds < 0, mean, by_fold.gather(0, folds.clamp(min=0)[None])[0])

    @torch.no_grad()
    def fit(
        self,
        numbers: Tensor,
        relative: Tensor | None,
        chosen: Tensor,
        ids: Tensor,
        weights: Tensor | None = None,
        *,
        seed: int,
    ) -> Tensor:
        """Grow the trees, and return the fold of each set, whose trees have not seen it: -1 if none have.

        Args:
            numbers: The numbers of the items `(total, width)`.
            relative: Their features relative to the set `(total, r)`.
            chosen: Whether each item was chosen, `(total,)`.
            ids: The set of each item, `(total,)`, from 0.
            weights: Weight of each item; None for equal weights.
            seed: Seed of the folds and of what each tree sees.
        """
        rng = np.random.default_rng([seed, 3])
        features, codes = self.inputs.features(numbers, relative), self.inputs.codes(numbers)
        of_sets = _deal(ids.cpu().numpy(), rng)
        folds = torch.as_tensor(of_sets, device=ids.device)[ids]
        learned = (folds >= 0).nonzero()[:, 0]
        weight = torch.ones_like(features[:, 0]) if weights is None else weights
        known = (
            part[learned].cpu().numpy() for part in (features, codes, chosen.double(), weight.double(), ids, folds)
        )
        items = _Items(*known)
        for fold in range(_FOLDS):
            self._fit_fold(fold, items, rng)
        return torch.as_tensor(of_sets, device=ids.device)

    def _fit_fold(self, fold: int, items: _Items, rng: np.random.Generator) -> None:
        held_out = items.of(items.folds == fold)
        items = items.of(items.folds != fold)
        # With too few sets there is nothing to learn from, or nothing to end training with.
        if not (items.weights.sum() > 0 and held_out.weights.sum() > 0):
            both = [
                np.concatenate(parts) for parts in ((items.labels, held_out.labels), (items.weights, held_out.weights))
            ]
            self.starts[fold] = log_odds(*both)
            return
        means = mean_labels(items.codes, items.labels, items.weights, self.inputs.buckets).astype(np.float32)
        own_means = mean_labels_before(items.codes, items.labels, items.weights, items.ids, rng).astype(np.float32)
        trees = grow(items.with_columns(own_means), held_out.with_columns(means[held_out.codes]), rng)
        self._keep(fold, means, trees)

    def _keep(self, fold: int, means: np.ndarray, trees: Trees) -> None:
        count = len(trees.values)
        self.labels[fold] = torch.from_numpy(means)
        self.starts[fold], self.counts[fold] = trees.start, count
        for buffer, found in (
            (self.columns, trees.columns),
            (self.thresholds, trees.thresholds),
            (self.values, trees.values),
        ):
            buffer[fold, :count] = torch.from_numpy(found).to(buffer)

    def _score(self, fold: int, features: Tensor, codes: Tensor) -> Tensor:
        """Return the scores from the trees of one fold."""
        count = int(self.counts[fold])
        if not count:
            return self.starts[fold].expand(len(features))
        columns, thresholds = (part[fold, :count].T.contiguous() for part in (self.columns, self.thresholds))
        values, means = self.values[fold, :count], self.labels[fold].float()
        scores = []
        for rows in torch.arange(len(features), device=features.device).split(_CHUNK):
            # The columns of the mean labels follow those of the features.
            table = torch.cat([features[rows], means[codes[rows]]], 1).T.contiguous()
            # The number of a leaf fits into a byte.
            leaves = torch.zeros(count, len(rows), dtype=torch.uint8, device=table.device)
            for level, limits in zip(columns, thresholds.float(), strict=True):
                leaves.mul_(2).add_(table.index_select(0, level) > limits[:, None])
            # In float64, so that the order in which a batch is added up does not matter.
            scores.append(values.gather(1, leaves.long()).sum(0, dtype=torch.float64).to(values.dtype))
        return torch.cat(scores or [features.new_zeros(0)]) + self.starts[fold]


def _deal(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each set; -1 for sets beyond those that are learned from."""
    sizes = np.bincount(ids)
    order = rng.permutation(np.flatnonzero(sizes))
    # The first set counts, however large it is.
    is_learned = np.cumsum(sizes[order]) - sizes[order] < _MOST_ITEMS
    folds = np.full(len(sizes), -1)
    folds[order[is_learned]] = np.arange(is_learned.sum()) % _FOLDS
    return folds

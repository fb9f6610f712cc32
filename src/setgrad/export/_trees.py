"""Scores of boosted trees as one program of tensors."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from setgrad.trees import BoostedTrees
from setgrad.trees._tree import DEPTH


@final
class PaddedTrees(nn.Module):
    """The scores of padded items, `(b, n)`.

    Args:
        trees: The trees of a fitted selector.
    """

    def __init__(self, trees: BoostedTrees) -> None:
        super().__init__()
        self.inputs, self.starts = trees.inputs, trees.starts.mean()
        self.folds = nn.ModuleList([_Fold(trees, fold) for fold in range(len(trees.counts))])

    def forward(self, items: Tensor, relative: Tensor | None) -> Tensor:
        """Return the mean of the folds.

        Args:
            items: The numbers of the items `(b, n, d)`, in double precision.
            relative: Their features relative to the set `(b, n, r)`.
        """
        rows, of_set = items.flatten(0, 1), None if relative is None else relative.flatten(0, 1)
        features, codes = self.inputs.features(rows, of_set), self.inputs.codes(rows)
        scores = torch.stack([fold(features, codes) for fold in self.folds]).mean(0) + self.starts
        return scores.unflatten(0, (items.shape[0], items.shape[1]))


@final
class _Fold(nn.Module):
    """The trees of one fold."""

    columns: Tensor
    thresholds: Tensor
    values: Tensor
    means: Tensor

    def __init__(self, trees: BoostedTrees, fold: int) -> None:
        super().__init__()
        self.inputs, self.count = trees.inputs, int(trees.counts[fold])
        self.register_buffer("columns", trees.columns[fold, : self.count].flatten().long())
        self.register_buffer("thresholds", trees.thresholds[fold, : self.count].flatten().float())
        first = torch.arange(self.count)[:, None] * 2**DEPTH
        self.register_buffer("first_leaves", first.flatten())
        self.register_buffer("bits", 2 ** torch.arange(DEPTH - 1, -1, -1))
        self.register_buffer("values", trees.values[fold, : self.count].flatten().float())
        self.register_buffer("means", trees.labels[fold].float())

    def forward(self, features: Tensor, codes: Tensor) -> Tensor:
        if not self.count:
            return torch.zeros_like(features[:, 0])
        labels = self.inputs.of_labels(self.means[codes], codes)
        table = torch.cat([features, labels], 1)
        is_above = (table.index_select(1, self.columns) > self.thresholds).unflatten(1, (self.count, DEPTH))
        leaves = (is_above * self.bits).sum(2) + self.first_leaves
        return self.values[leaves].sum(1)

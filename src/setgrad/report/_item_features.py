"""Numbers of an item and of its set, for models that see one item at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch

from setgrad.sets import Choices, Sets, segment_mean, segment_rank

# The shares of chosen items that stand for codes come from other sets than those of the item.
_FOLDS = 5
# A code counts as if so many more items had it, chosen as often as the average.
_PRIOR = 10.0
# With more numbers than this, their place in the set is left out.
_MOST_RELATIVE = 64


@final
@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """How an item becomes numbers. A code becomes the share of chosen items among those with the code.

    Attributes:
        codes: Start and width of the numbers that are codes.
        rates: For each of these parts the share for each code.
        relative: Whether numbers are compared within the set; else means over the set are added.
    """

    codes: tuple[tuple[int, int], ...]
    rates: tuple[np.ndarray, ...]
    relative: bool

    @classmethod
    def fit(cls, choices: Choices, codes: Sequence[tuple[int, int]], *, relative: bool) -> tuple[Self, np.ndarray]:
        """Return the features that choices decide, and the numbers of their items."""
        flat, chosen = _flat(choices.sets), choices.subsets.values.double().numpy()
        fold = choices.sets.layout.ids.numpy() % _FOLDS
        blocks = [flat[:, start : start + width].astype(np.int64) for start, width in codes]
        sizes = [int(block.max(initial=0)) + 1 for block in blocks]
        rates = tuple(_rates(block, chosen, size) for block, size in zip(blocks, sizes, strict=True))
        result = cls(tuple(codes), rates, relative)
        shares = []
        for block, size in zip(blocks, sizes, strict=True):
            share = np.zeros(len(flat))
            for number in range(_FOLDS):
                inside = fold == number
                share[inside] = _share(block[inside], _rates(block[~inside], chosen[~inside], size))
            shares.append(share)
        return result, result._assemble(choices.sets, flat, shares)

    def of(self, sets: Sets) -> np.ndarray:
        """Return the numbers of the items of other sets, `(total, features)`."""
        flat = _flat(sets)
        parts = zip(self.codes, self.rates, strict=True)
        shares = [_share(flat[:, start : start + width].astype(np.int64), rates) for (start, width), rates in parts]
        return self._assemble(sets, flat, shares)

    def _assemble(self, sets: Sets, flat: np.ndarray, shares: list[np.ndarray]) -> np.ndarray:
        coded = [start + offset for start, width in self.codes for offset in range(width)]
        x = np.concatenate([np.delete(flat, coded, axis=1), *(share[:, None] for share in shares)], axis=1)
        layout, values = sets.layout, torch.from_numpy(x)
        length = layout.host_lengths[layout.ids.numpy()].astype(float)[:, None]
        means = segment_mean(values, layout)[layout.ids].numpy()
        if not self.relative:
            return np.concatenate([x, means, length], axis=1)
        if x.shape[1] > _MOST_RELATIVE:
            return np.concatenate([x, length], axis=1)
        ranks = np.stack([segment_rank(column, layout).numpy() for column in values.T], axis=1) if x.shape[1] else x
        return np.concatenate([x, x - means, ranks / length, length], axis=1)


def _flat(sets: Sets) -> np.ndarray:
    array: np.ndarray = sets.values.flatten(1).double().numpy()
    return array


def _rates(block: np.ndarray, chosen: np.ndarray, size: int) -> np.ndarray:
    """Return the share of chosen items for each code, and the mean share for codes beyond."""
    weights = np.repeat(chosen, block.shape[1])
    base = float(chosen.mean()) if len(chosen) else 0.5
    counts = np.bincount(block.ravel(), minlength=size)
    sums = np.bincount(block.ravel(), weights, size)
    return np.append((sums + _PRIOR * base) / (counts + _PRIOR), base)


def _share(block: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the mean share of the codes of each item; code 0 stands for nothing if an item has several."""
    counted = (block > 0) if block.shape[1] > 1 else np.ones_like(block, dtype=bool)
    shares = np.where(counted, rates[block.clip(max=len(rates) - 1)], 0.0)
    mean: np.ndarray = (shares.sum(1) + rates[-1]) / (counted.sum(1) + 1)
    return mean

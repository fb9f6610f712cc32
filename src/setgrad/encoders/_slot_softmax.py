"""The softmax of slots over the items of a set, as sums that add up over chunks of the set.

A slot weighs an item by the exponential of a logit. The sums of the weights and of the weighted values are kept
relative to the largest exponent so far (`State`), so that chunks of any partition add up to the quotient for the whole
set, and no exponent overflows. UMBC reads rows of ragged sets, induced attention padded batches: they differ in how
the items of a set are found, which is all that an `ItemAxis` defines.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.sets import Sets, segment_matmul, segment_max, segment_sum


class ItemAxis(abc.ABC):
    """Where the items of each set are in tensors of weights `(..., heads, slots)` and values `(..., heads, dim)`."""

    @abc.abstractmethod
    def largest(self, x: Tensor) -> Tensor:
        """Return the maximum over the items of each set, `(b, heads, slots)`; -inf for a set without items."""

    @abc.abstractmethod
    def spread(self, x: Tensor) -> Tensor:
        """Return numbers of the sets, `(b, heads, slots)`, for each item."""

    @abc.abstractmethod
    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of the weights of each set, `(b, heads, slots)`."""

    @abc.abstractmethod
    def weighted_total(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the sum of the weighted values of each set, `(b, heads, slots, dim)`."""


@final
@dataclass(frozen=True, eq=False)
class RowsOf(ItemAxis):
    """The rows of ragged sets: weights are `(total, heads, slots)`."""

    sets: Sets

    def largest(self, x: Tensor) -> Tensor:
        """Return the maxima."""
        return segment_max(x, self.sets)

    def spread(self, x: Tensor) -> Tensor:
        """Return a row for each item."""
        return x.index_select(0, self.sets.layout.ids)

    def total(self, weights: Tensor) -> Tensor:
        """Return the sums."""
        return segment_sum(weights, self.sets)

    def weighted_total(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return one matrix product for each head."""
        heads = range(values.shape[1])
        totals = [segment_matmul(weights[:, h].T, values[:, h], self.sets).transpose(0, 1) for h in heads]
        return torch.stack(totals, 1)


@final
@dataclass(frozen=True)
class Padded(ItemAxis):
    """The second axis of a padded batch: weights are `(b, n, heads, slots)`. The exponents of padding are -inf."""

    def largest(self, x: Tensor) -> Tensor:
        """Return the maxima."""
        return x.amax(1)

    def spread(self, x: Tensor) -> Tensor:
        """Return a view that broadcasts."""
        return x[:, None]

    def total(self, weights: Tensor) -> Tensor:
        """Return the sums."""
        return weights.sum(1)

    def weighted_total(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return one batched matrix product."""
        return torch.matmul(weights.permute(0, 2, 3, 1), values.transpose(1, 2))


def exponentials(log_weights: Tensor, items: ItemAxis, level: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the exponentials of numbers relative to a level, and that level.

    Args:
        log_weights: The exponents, `(..., heads, slots)`; -inf for items that do not count.
        items: Where the items of a set are.
        level: What the exponents are relative to, `(b, heads, slots)`; None for the largest of each set.
    """
    # The level cancels in the value and in the derivative, so it needs no graph.
    level = items.largest(log_weights.detach()) if level is None else level
    base = torch.where(level == -torch.inf, 0.0, level)
    return (log_weights - items.spread(base)).exp(), level


def slot_totals(weights: Tensor, values: Tensor, items: ItemAxis) -> tuple[Tensor, Tensor]:
    """Return the sums of the weights `(b, heads, slots)` and of the weighted values `(b, heads, slots, dim)`."""
    return items.total(weights), items.weighted_total(weights, values)


def slot_logits(projected: Tensor, queries: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return attention logits `(..., heads, slots)` and values `(..., heads, dim / heads)`.

    Args:
        projected: Keys and values of the items side by side, `(..., 2 * dim)`.
        queries: Projected slots, `(slots, dim)`.
        heads: Number of attention heads.
    """
    keys, values = (part.unflatten(-1, (heads, -1)) for part in projected.chunk(2, -1))
    scaled = queries.unflatten(-1, (heads, -1)) * keys.shape[-1] ** -0.5
    return torch.einsum("...hd,khd->...hk", keys, scaled), values


def weighted_mean(weight: Tensor, total: Tensor) -> Tensor:
    """Return sums `(..., dim)` divided by their weights: 0 for an empty set, and NaN where there is NaN."""
    # The sum of an empty set is 0 already. A test for weights above 0 would treat NaN as empty.
    return total / torch.where(weight == 0, 1.0, weight)[..., None]


def join_heads(weight: Tensor, total: Tensor, *, normalize: bool = True) -> Tensor:
    """Return the sums of all heads as slots `(b, slots, dim)`, divided by their weights if `normalize` is true."""
    mean = weighted_mean(weight, total) if normalize else total
    return mean.transpose(1, 2).flatten(2)

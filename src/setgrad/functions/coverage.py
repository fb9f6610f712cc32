"""Weighted coverage: how many topics of a list a subset covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.functions._set_function import BoundSetFunction, SetFunction, pad_masks, take_items, to_real
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Coverage(SetFunction):
    """F(S) = sum over topics u of w_u (1 - prod over i in S of (1 - a_iu)): monotone and submodular for w >= 0.

    a_iu, between 0 and 1, is the probability that item i covers topic u. Fractional masks scale a_iu, which gives the
    multilinear extension.

    Args:
        weights: Weight w of each topic, `(topics,)`; None for 1.
        cover: Map from items to their probabilities a, `(total, topics)`; None for the features themselves.

    Examples:
        >>> sets = Sets.from_list([[[1.0, 0.0], [0.5, 0.5]]])
        >>> Coverage(torch.tensor([1.0, 4.0])).value(sets, torch.tensor([[True, False], [True, True]])).tolist()
        [[1.0], [3.0]]
    """

    weights: Tensor | None = None
    cover: Callable[[Tensor], Tensor] | None = field(default=None, kw_only=True)

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with the probabilities of all items computed once.

        Raises:
            ShapeError: If there is not one row of probabilities for each item, or one weight for each topic.
            DataError: If a probability is not between 0 and 1.
        """
        rates = to_real(sets.values if self.cover is None else self.cover(sets.values))
        if rates.dim() != 2 or len(rates) != sets.layout.total:
            raise ShapeError(
                f"coverage needs one row of topics for each of {sets.layout.total} items, not shape "
                f"{tuple(rates.shape)}; set cover= to a map from items to (total, topics)"
            )
        if not bool(((rates >= 0) & (rates <= 1)).all()):
            raise DataError("coverage needs probabilities between 0 and 1; scale the features or set cover=")
        if self.weights is not None and self.weights.shape != rates.shape[1:]:
            raise ShapeError(f"weights has shape {tuple(self.weights.shape)}, but there are {rates.shape[1]} topics")
        return _BoundCoverage(sets, sets.with_values(rates).padded()[0], self.weights)


@final
class _BoundCoverage(BoundSetFunction):
    relaxed = True

    def __init__(self, sets: Sets, rates: Tensor, weights: Tensor | None) -> None:
        self.sets, self.rates = sets, rates
        self.weights = rates.new_ones(rates.shape[2]) if weights is None else weights.to(rates)

    def value(self, masks: Tensor) -> Tensor:
        return (1 - self._missed(masks).prod(2)) @ self.weights

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        missed = self._missed(masks)
        # Products before and after the item rather than a quotient, because a factor may be 0.
        ones = torch.ones_like(missed[:, :, :1])
        before = torch.cat([ones, missed[:, :, :-1]], 2).cumprod(2)
        after = torch.cat([ones, missed[:, :, 1:].flip(2)], 2).cumprod(2).flip(2)
        return take_items((self.rates * before * after) @ self.weights, self.sets, coordinates)

    def _missed(self, masks: Tensor) -> Tensor:
        """Return the probability that each item, weighed by its mask, misses a topic, `(m, b, longest, topics)`."""
        return 1 - pad_masks(masks, self.sets, self.rates.dtype)[..., None] * self.rates

"""Modular functions: every item counts for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.functions._protocol import BoundSetFunction, SetFunction, real
from setgrad.sets import Sets, segment_matmul


@final
@dataclass(frozen=True, eq=False)
class Modular(SetFunction):
    """F(S) = sum of the scores of the items in S.

    `score` maps items `(total, ...)` to `(total,)` or `(total, 1)`; without one, an item's score is the sum of its
    features. Fractional masks weigh the scores, which is the multilinear extension.

    Example:
        >>> import torch
        >>> sets = Sets.from_list([[[1.0], [2.0]], [[3.0]]])
        >>> Modular().value(sets, torch.tensor([[True, True, False]])).tolist()
        [[3.0, 0.0]]
    """

    score: Callable[[Tensor], Tensor] | None = None

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Score all items once."""
        total = sets.layout.total
        scores = _sum_of_features(sets.values) if self.score is None else self.score(sets.values)
        if scores.shape not in ((total,), (total, 1)):
            raise ShapeError(f"score must return one number for each of {total} items, not shape {tuple(scores.shape)}")
        return BoundModular(sets, real(scores.reshape(total)))


@final
class BoundModular(BoundSetFunction):
    """A score for each item, however it was found; gains do not look at the masks."""

    relaxed = True
    of_items = ("scores",)

    def __init__(self, sets: Sets, scores: Tensor) -> None:
        self.sets, self.scores = sets, scores

    def value(self, masks: Tensor) -> Tensor:
        """Sum of the chosen scores."""
        return segment_matmul(masks, self.scores[:, None], self.sets)[..., 0]

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Score of the item."""
        scores = self.scores if coordinates is None else self.scores[coordinates]
        return scores.expand(len(masks), -1)


def _sum_of_features(items: Tensor) -> Tensor:
    # The extra axis lets items without a shape, plain numbers, pass too.
    return items[:, None].flatten(1).sum(1)

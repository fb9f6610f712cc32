"""Modular functions: the value of a subset is the sum of the scores of its items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.functions._set_function import BoundSetFunction, SetFunction, to_real
from setgrad.sets import Sets, segment_matmul


@final
@dataclass(frozen=True, eq=False)
class Modular(SetFunction):
    """F(S) = sum of the scores of the items in S.

    Fractional masks weigh the scores, which gives the multilinear extension.

    Args:
        score: Map from items `(total, ...)` to scores `(total,)` or `(total, 1)`; None for the sum of the features.

    Examples:
        >>> import torch
        >>> sets = Sets.from_list([[[1.0], [2.0]], [[3.0]]])
        >>> Modular().value(sets, torch.tensor([[True, True, False]])).tolist()
        [[3.0, 0.0]]
    """

    score: Callable[[Tensor], Tensor] | None = None

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with all items scored once.

        Raises:
            ShapeError: If `score` does not return one number for each item.
        """
        total = sets.layout.total
        scores = _sum_of_features(sets.values) if self.score is None else self.score(sets.values)
        if scores.shape not in ((total,), (total, 1)):
            raise ShapeError(f"score must return one number for each of {total} items, not shape {tuple(scores.shape)}")
        return BoundModular(sets, to_real(scores.reshape(total)))


@final
class BoundModular(BoundSetFunction):
    """A bound modular function, from the scores of the items. Its gains do not depend on the masks."""

    relaxed = True
    item_attributes = ("scores",)

    def __init__(self, sets: Sets, scores: Tensor) -> None:
        self.sets, self.scores = sets, scores

    def value(self, masks: Tensor) -> Tensor:
        """Return the sum of the chosen scores, `(m, b)`."""
        return segment_matmul(masks, self.scores[:, None], self.sets)[..., 0]

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the scores of the items, `(m, total)` or `(m, len(coordinates))`."""
        scores = self.scores if coordinates is None else self.scores[coordinates]
        return scores.expand(len(masks), -1)

    def among(self, items: Tensor, chosen: Tensor) -> BoundModular:
        """Return the function of subsets of some items; what is chosen beside them changes no gain."""
        return BoundModular(Sets.from_lengths(self.scores[items], [len(items)]), self.scores[items])


def _sum_of_features(items: Tensor) -> Tensor:
    # The extra axis allows items without a shape, which are plain numbers.
    return items[:, None].flatten(1).sum(1)

"""Graph cut: reward subsets that are similar to V, and penalise similar items inside the subset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.functions._set_function import BoundSetFunction, SetFunction, pad_masks, take_items
from setgrad.functions.similarity import Similarity, pairwise_similarities
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class GraphCut(SetFunction):
    """F(S) = sum of s_ij over i in V, j in S, minus `penalty` times the sum over i, j in S.

    Submodular for non-negative similarities and penalty; monotone too for a symmetric similarity and a penalty of at
    most 0.5. Fractional masks give the multilinear extension.

    Args:
        similarity: Similarity of items; None for `rbf()`.
        penalty: Weight of the similarities inside S.

    Examples:
        >>> sets = Sets.from_list([[[0.0], [0.0], [9.0]]])
        >>> GraphCut().value(sets, torch.tensor([[True, False, False], [True, True, False]])).tolist()
        [[1.5], [2.0]]
    """

    similarity: Similarity | None = None
    penalty: float | Tensor = field(default=0.5, kw_only=True)

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with all pairs compared once.

        Raises:
            ShapeError: If the similarity does not return one number for each pair of items.
        """
        return _BoundGraphCut(sets, pairwise_similarities(self.similarity, sets), self.penalty)


@final
class _BoundGraphCut(BoundSetFunction):
    relaxed = True

    def __init__(self, sets: Sets, pairs: Tensor, penalty: float | Tensor) -> None:
        self.sets, self.penalty = sets, penalty
        diagonal = pairs.diagonal(dim1=1, dim2=2)
        # F(x) = <alone, x> - penalty <x, between x>, where `between` has a zero diagonal: F is linear in every x_i.
        self.alone = pairs.sum(1) - penalty * diagonal
        self.between = pairs - torch.diag_embed(diagonal)

    def value(self, masks: Tensor) -> Tensor:
        x = pad_masks(masks, self.sets, self.between.dtype)
        among = torch.einsum("mbi,bij,mbj->mb", x, self.between, x)
        return (x * self.alone).sum(2) - self.penalty * among

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        x = pad_masks(masks, self.sets, self.between.dtype)
        among = torch.einsum("bij,mbj->mbi", self.between + self.between.mT, x)
        return take_items(self.alone - self.penalty * among, self.sets, coordinates)

"""A set function with some items known to be in the subset, or known to be out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from setgrad.functions._set_function import BoundSetFunction
from setgrad.sets import Sets


@final
class BoundGiven(BoundSetFunction):
    """The function S -> F(S with `inside`, without `outside`). Gains of the known items are those in F itself.

    Args:
        function: F, bound to its sets.
        inside: Whether each item is known to be in the subset, `(total,)`.
        outside: Whether each item is known to be out of it, `(total,)`.
    """

    def __init__(self, function: BoundSetFunction, inside: Tensor, outside: Tensor) -> None:
        self.function, self.inside, self.outside = function, inside, outside
        self.sets, self.relaxed, self.in_chunks = function.sets, function.relaxed, function.in_chunks

    def value(self, masks: Tensor) -> Tensor:
        """Return F of the subsets with the known items, `(m, b)`."""
        return self.function.value(self._with_known(masks))

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the gains at the subsets with the known items, `(m, total)` or `(m, len(coordinates))`."""
        return self.function.gains(self._with_known(masks), coordinates)

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mean gains and their Jacobian; the masks of known items do not move."""
        known = self.inside | self.outside
        return self.function.linearisation(self._with_known(masks), slopes.masked_fill(known, 0.0))

    def prepared(self) -> BoundGiven:
        """Return the prepared function with the same known items."""
        return BoundGiven(self.function.prepared(), self.inside, self.outside)

    def restrict(self, rows: Tensor, items: Sets) -> BoundGiven | None:
        """Return the restricted function with the known items of these sets, or None if it cannot be restricted."""
        part = self.function.restrict(rows, items)
        return None if part is None else BoundGiven(part, self.inside[items.values], self.outside[items.values])

    def among(self, items: Tensor, chosen: Tensor) -> BoundGiven:
        """Return the function of subsets of some items, of which the known ones stay known."""
        part = self.function.among(items, self._with_known(chosen))
        return BoundGiven(part, self.inside[items], self.outside[items])

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of F."""
        return self.function.tensors()

    def with_tensors(self, tensors: Sequence[Tensor]) -> BoundGiven:
        """Return a copy in which F uses other tensors."""
        return BoundGiven(self.function.with_tensors(tensors), self.inside, self.outside)

    def _with_known(self, masks: Tensor) -> Tensor:
        if masks.dtype == torch.bool:
            return (masks | self.inside) & ~self.outside
        return masks.masked_fill(self.inside, 1.0).masked_fill(self.outside, 0.0)

"""Set functions that read a subset through sums over its items, so that they can be evaluated part by part."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from setgrad.functions._set_function import BoundSetFunction


class AdditiveBoundFunction(BoundSetFunction, abc.ABC):
    """A bound function of sums over the subset: of a set that is too large for memory, each chunk can be bound alone.

    Given the sums over the whole subset, the gains of the items of a chunk depend on these items only.
    """

    @abc.abstractmethod
    def pooled(self, masks: Tensor) -> tuple[Tensor, ...]:
        """Return the sums over each subset, `(m, b, ...)`; those of parts of a subset add up."""

    @abc.abstractmethod
    def beside(self, pooled: Sequence[Tensor]) -> Self:
        """Return the function of subsets that have more items, which are not among those of the sets.

        Args:
            pooled: The sums over these items, as `pooled` returns them.
        """

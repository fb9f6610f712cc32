"""What functions of several set functions have in common."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from setgrad.functions._set_function import BoundSetFunction
from setgrad.sets import Sets


class BoundCombination(BoundSetFunction, abc.ABC):
    """A linear combination of functions that are bound to the same sets.

    Args:
        parts: The functions, at least one.
    """

    def __init__(self, parts: Sequence[BoundSetFunction]) -> None:
        self.parts = tuple(parts)
        self.sets, self.relaxed = parts[0].sets, all(part.relaxed for part in parts)
        self.in_chunks = any(part.in_chunks for part in parts)

    @abc.abstractmethod
    def _combine(self, results: Sequence[Tensor]) -> Tensor:
        """Return the combination of the results of all parts."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of all parts."""
        return tuple(tensor for part in self.parts for tensor in part.tensors())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy in which each part uses its share of the tensors."""
        remaining = iter(tensors)
        return type(self)([part.with_tensors([next(remaining) for _ in part.tensors()]) for part in self.parts])

    def value(self, masks: Tensor) -> Tensor:
        """Return the combined values, `(m, b)`."""
        return self._combine([part.value(masks) for part in self.parts])

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the combined gains, `(m, total)` or `(m, len(coordinates))`."""
        return self._combine([part.gains(masks, coordinates) for part in self.parts])

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the combined gains and Jacobians, or None if a part has no fast Jacobian."""
        results = [part.linearisation(masks, slopes) for part in self.parts]
        pairs = [result for result in results if result is not None]
        if len(pairs) < len(results):
            return None
        return self._combine([gains for gains, _ in pairs]), self._combine([jacobian for _, jacobian in pairs])

    def restrict(self, rows: Tensor, items: Sets) -> Self | None:
        """Return the combination of the restricted parts, or None if a part cannot be restricted."""
        parts = [part.restrict(rows, items) for part in self.parts]
        restricted = [part for part in parts if part is not None]
        return type(self)(restricted) if len(restricted) == len(parts) else None

    def among(self, items: Tensor, chosen: Tensor) -> Self:
        """Return the combination of the parts for subsets of some items."""
        return type(self)([part.among(items, chosen) for part in self.parts])

    def prepared(self) -> Self:
        """Return the combination of the prepared parts."""
        return type(self)([part.prepared() for part in self.parts])

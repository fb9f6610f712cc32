"""What is known about the subsets before the choice: items that are in, and items that are out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, parameter
from setgrad.selector.constraints import AllOf, LinearConstraint, MustHave, MustNot
from setgrad.sets import Sets, as_subsets, segment_sum


@final
@dataclass(frozen=True, eq=False)
class Known:
    """Items that are known to be in the subset, and items known to be out of it, a `Sets` of booleans each."""

    inside: Sets
    outside: Sets

    @staticmethod
    def of(given: Any, excluded: Any, sets: Sets) -> Known | None:
        """Return what is known, from the arguments of `predict`; None if nothing is.

        Raises:
            DataError: If an item is given and excluded.
            ShapeError: If the subsets do not fit the sets.
        """
        if given is None and excluded is None:
            return None
        nothing = sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool, device=sets.device))
        inside, outside = (nothing if part is None else as_subsets(part, sets) for part in (given, excluded))
        both = inside.values & outside.values
        if bool(both.any()):
            item = int(both.nonzero()[0])
            number = int(sets.layout.ids[item])
            raise DataError(
                f"item {int(sets.layout.positions[item])} of set {number} (both counted from 0) is in "
                f"{parameter('given')} and in {parameter('excluded')}; take it out of one of them"
            )
        return Known(inside, outside)

    def masks(self, indices: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return both masks of the sets with these indices, `(total,)` each."""
        inside, outside = (part.take(indices).values.to(device) for part in (self.inside, self.outside))
        return inside, outside

    def take(self, indices: np.ndarray) -> Known:
        """Return what is known about the sets with these indices."""
        return Known(self.inside.take(indices), self.outside.take(indices))

    def clamp(self, sizes: Tensor) -> Tensor:
        """Return sizes `(b,)` that the known items allow."""
        smallest, largest = segment_sum(self.inside.values, self.inside), segment_sum(~self.outside.values, self.inside)
        return sizes.maximum(smallest).minimum(largest)

    def fill(self, x: Tensor, *, inside: float, outside: float) -> Tensor:
        """Return numbers of the items `(total,)` with those of known items replaced."""
        return x.masked_fill(self.inside.values, inside).masked_fill(self.outside.values, outside)

    def constrain(self, constraint: LinearConstraint) -> LinearConstraint:
        """Return the constraint together with the known items, which count in every size, budget and group."""
        return AllOf([constraint, MustHave(self.inside), MustNot(self.outside)])

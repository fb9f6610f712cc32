"""The multilinear extension by enumeration of all subsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.functions._estimator import ExtensionEstimator
from setgrad.functions._set_function import BoundSetFunction, to_real
from setgrad.sets import Sets, segment_sum

# 2^20 subsets of one set fit into memory; many more do not.
_MAX_ITEMS = 20
_SUBSETS_AT_ONCE = 2**14


@final
@dataclass(frozen=True)
class Exact(ExtensionEstimator):
    """Enumerate all subsets: no error, for sets of up to 20 items. Results can be differentiated any number of times.

    All methods raise an OptionError if a set has more than 20 items.
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return the exact value for each set, `(b,)`."""
        return self._extension(bound)(psi)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the exact derivative by psi, `(total,)`, or its entries `coordinates`."""
        extension = self._extension(bound)
        gradient = torch.func.grad(lambda p: extension(p).sum())(psi)
        return gradient if coordinates is None else gradient[coordinates]

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return the exact second derivative times a vector, `(total,)`."""
        extension = self._extension(bound)
        gradient = torch.func.grad(lambda p: extension(p).sum())
        # The Hessian is symmetric, so a reverse pass is enough. Forward mode in torch 2.13 emits warnings.
        return torch.func.grad(lambda p: gradient(p) @ vector)(psi)

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """Return the function as a table of the values of all subsets."""
        return _Tabulated(bound.sets, self._table(bound))

    def _table(self, bound: BoundSetFunction) -> Tensor:
        """Return the values of all subsets of each set, `(2^longest, b)`; the bits of a row's index are the subset."""
        if isinstance(bound, _Tabulated):
            return bound.table
        layout = bound.sets.layout
        longest = layout.longest
        if longest > _MAX_ITEMS:
            raise OptionError(
                f"Exact() enumerates all subsets of up to {_MAX_ITEMS} items; the largest set has {longest}. "
                "Use Bernoulli(m) or Gaussian(m)"
            )
        subsets = torch.arange(2**longest, device=layout.device)[:, None]
        # In chunks, because some functions need a whole matrix for each subset.
        chunks = subsets.split(_SUBSETS_AT_ONCE)
        return to_real(torch.cat([bound.value((chunk >> layout.positions) & 1 == 1) for chunk in chunks]))

    def _extension(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        """Return the map from psi to the values, which contracts the table one item at a time."""
        layout, table = bound.sets.layout, self._table(bound)

        def extension(psi: Tensor) -> Tensor:
            # The padding has probability 0: the rows of the table that include it repeat other rows.
            padded, _ = Sets(psi, layout).padded()
            remaining = table.T
            for position in range(layout.longest):
                remaining = remaining.reshape(len(layout), -1, 2)
                p = padded[:, position, None].to(table.dtype)
                remaining = remaining[..., 0] * (1 - p) + remaining[..., 1] * p
            return remaining.reshape(len(layout))

        return extension


@final
class _Tabulated(BoundSetFunction):
    """A function as the table of its values, with a row for each subset and a column for each set."""

    def __init__(self, sets: Sets, table: Tensor) -> None:
        self.sets, self.table = sets, table

    def value(self, masks: Tensor) -> Tensor:
        powers = torch.zeros_like(masks, dtype=torch.long) + (1 << self.sets.layout.positions)
        rows = segment_sum((masks.bool() * powers).T, self.sets).T
        return self.table.gather(0, rows)

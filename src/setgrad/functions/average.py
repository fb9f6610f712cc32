"""The mean of several set functions, such as the members of an ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import OptionError
from setgrad.functions._set_function import BoundSetFunction, SetFunction, to_real
from setgrad.sets import Sets


@final
class Average(nn.Module, SetFunction):
    """F(S, V) = mean of other set functions, learned or not.

    Args:
        functions: The set functions.

    Raises:
        OptionError: If there is no function.

    Examples:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[4.0], [5.0]]])
        >>> F = Average([sg.functions.Modular(), sg.functions.FromCallable(lambda items, masks: masks.sum(1))])
        >>> F.value(sets, torch.tensor([[1.0, 0.0]])).tolist()
        [[2.5]]
    """

    def __init__(self, functions: Iterable[SetFunction]) -> None:
        super().__init__()
        self.functions = tuple(functions)
        if not self.functions:
            raise OptionError("an average needs at least one set function")
        self.learned = nn.ModuleList([function for function in self.functions if isinstance(function, nn.Module)])

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the mean of the functions, each bound to these sets."""
        return BoundAverage([function.bind(sets) for function in self.functions])


@final
class BoundAverage(BoundSetFunction):
    """The mean of functions that are bound to the same sets."""

    def __init__(self, parts: Sequence[BoundSetFunction]) -> None:
        self.parts = tuple(parts)
        self.sets, self.relaxed = parts[0].sets, all(part.relaxed for part in parts)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of all parts."""
        return tuple(tensor for part in self.parts for tensor in part.tensors())

    def with_tensors(self, tensors: Sequence[Tensor]) -> BoundAverage:
        """Return a copy in which each part uses its share of the tensors."""
        remaining = iter(tensors)
        return BoundAverage([part.with_tensors([next(remaining) for _ in part.tensors()]) for part in self.parts])

    def value(self, masks: Tensor) -> Tensor:
        """Return the mean of the values, `(m, b)`."""
        return _mean([part.value(masks) for part in self.parts])

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the mean of the gains, `(m, total)` or `(m, len(coordinates))`."""
        return _mean([part.gains(masks, coordinates) for part in self.parts])

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the means of gains and Jacobians, or None if a part has no fast Jacobian."""
        results = [part.linearisation(masks, slopes) for part in self.parts]
        pairs = [result for result in results if result is not None]
        if len(pairs) < len(results):
            return None
        return _mean([gains for gains, _ in pairs]), _mean([jacobian for _, jacobian in pairs])

    def restrict(self, rows: Tensor, items: Sets) -> BoundAverage | None:
        """Return the mean of the restricted parts, or None if a part cannot be restricted."""
        parts = [part.restrict(rows, items) for part in self.parts]
        restricted = [part for part in parts if part is not None]
        return BoundAverage(restricted) if len(restricted) == len(parts) else None

    def prepared(self) -> BoundAverage:
        """Return the mean of the prepared parts."""
        return BoundAverage([part.prepared() for part in self.parts])


def _mean(results: Sequence[Tensor]) -> Tensor:
    return to_real(results[0]) if len(results) == 1 else to_real(torch.stack(tuple(results))).mean(0)

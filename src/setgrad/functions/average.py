"""The mean of several set functions: what a committee thinks that a subset is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import OptionError
from setgrad.functions._protocol import BoundSetFunction, SetFunction, real
from setgrad.sets import Sets


@final
class Average(nn.Module, SetFunction):
    """F(S, V) as the mean of others, learned or not.

    Example:
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

    def bind(self, sets: Sets) -> BoundAverage:
        """Bind each of them."""
        return BoundAverage([function.bind(sets) for function in self.functions])


@final
class BoundAverage(BoundSetFunction):
    """The mean of functions that are bound to the same sets; `parts` are these."""

    def __init__(self, parts: Sequence[BoundSetFunction]) -> None:
        self.parts = tuple(parts)
        self.sets, self.relaxed = parts[0].sets, all(part.relaxed for part in parts)

    def tensors(self) -> tuple[Tensor, ...]:
        """Those of all parts."""
        return tuple(tensor for part in self.parts for tensor in part.tensors())

    def with_tensors(self, tensors: Sequence[Tensor]) -> BoundAverage:
        """Each part takes its own."""
        given = iter(tensors)
        return BoundAverage([part.with_tensors([next(given) for _ in part.tensors()]) for part in self.parts])

    def value(self, masks: Tensor) -> Tensor:
        """The mean of the values."""
        return _mean([part.value(masks) for part in self.parts])

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """The mean of the gains."""
        return _mean([part.gains(masks, coordinates) for part in self.parts])

    def linearised(self, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        """The mean of both, where all parts have them."""
        found = [part.linearised(masks, moves) for part in self.parts]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            return None
        return _mean([gains for gains, _ in known]), _mean([jacobian for _, jacobian in known])

    def part(self, numbers: Tensor, items: Sets) -> BoundAverage | None:
        """That of every part of the mean, where all have one."""
        found = [part.part(numbers, items) for part in self.parts]
        known = [part for part in found if part is not None]
        return BoundAverage(known) if len(known) == len(found) else None

    def prepared(self) -> BoundAverage:
        """Prepare every part."""
        return BoundAverage([part.prepared() for part in self.parts])


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return real(parts[0]) if len(parts) == 1 else real(torch.stack(tuple(parts))).mean(0)

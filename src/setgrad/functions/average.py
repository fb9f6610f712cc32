"""The mean of several set functions, such as the members of an ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import OptionError
from setgrad.functions._combined import BoundCombination
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
class BoundAverage(BoundCombination):
    """The mean of functions that are bound to the same sets."""

    def _combine(self, results: Sequence[Tensor]) -> Tensor:
        return to_real(results[0]) if len(results) == 1 else to_real(torch.stack(tuple(results))).mean(0)

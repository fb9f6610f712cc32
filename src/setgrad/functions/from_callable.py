"""Set functions from plain Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import ShapeError
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.sets import Sets

# What `as_set_function` takes.
AnySetFunction = SetFunction | Callable[[Tensor, Tensor], Tensor]


@final
class FromCallable(SetFunction):
    """A set function from any function `(items (n, ...), masks (m, n)) -> values (m,)` of one set.

    Args:
        function: The function, which may be a module.

    Examples:
        >>> import setgrad as sg
        >>> F = FromCallable(lambda items, masks: (masks * items[:, 0]).sum(1).sqrt())
        >>> sets = sg.Sets.from_list([[[4.0], [5.0]], [[9.0]]])
        >>> F.value(sets, torch.tensor([[1.0, 1.0, 1.0]])).tolist()
        [[3.0, 3.0]]
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets; nothing is computed in advance."""
        return _BoundCallable(self.function, sets)


@final
class _BoundCallable(BoundSetFunction):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], sets: Sets) -> None:
        self.function, self.sets = function, sets

    def tensors(self) -> tuple[Tensor, ...]:
        parameters = self.function.parameters() if isinstance(self.function, nn.Module) else ()
        return (*parameters, *([self.sets.values] if self.sets.dtype.is_floating_point else []))

    def with_tensors(self, tensors: Sequence[Tensor]) -> _BoundCallable:
        module, sets, remaining = self.function, self.sets, list(tensors)
        if sets.dtype.is_floating_point:
            sets = sets.with_values(remaining.pop())
        if not isinstance(module, nn.Module):
            return _BoundCallable(module, sets)
        parameters = dict(zip((name for name, _ in module.named_parameters()), remaining, strict=True))
        return _BoundCallable(lambda *inputs: torch.func.functional_call(module, parameters, inputs), sets)

    def value(self, masks: Tensor) -> Tensor:
        columns = []
        masks_of_sets = masks.split(self.sets.layout.host_lengths.tolist(), dim=1)
        for number, (items, mask) in enumerate(zip(self.sets, masks_of_sets, strict=True)):
            column = self.function(items, mask)
            if column.shape != (len(masks),):
                raise ShapeError(
                    f"the function returned shape {tuple(column.shape)} for set {number}; "
                    f"it must return one value for each of the {len(masks)} masks"
                )
            columns.append(column)
        return torch.stack(columns, 1) if columns else self.sets.values.new_zeros(len(masks), 0)


def as_set_function(function: AnySetFunction) -> SetFunction:
    """Return a set function unchanged, and wrap any other callable in `FromCallable`."""
    return function if isinstance(function, SetFunction) else FromCallable(function)

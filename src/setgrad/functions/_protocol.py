"""What a set function is: values of many subsets at once, and the marginal gain of every item."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor, nn

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Sets

# Elements of the mask tensor that the generic gains build at once.
_FLIP_BUDGET = 2**22


class BoundSetFunction(abc.ABC):
    """F for the sets of one batch: what depends on V alone is computed once, then asked about many subsets.

    Masks are `(m, total items)`, aligned with `sets.values`: booleans, or real numbers between 0 and 1 where the
    function says that it can be relaxed.
    """

    sets: Sets
    relaxed: bool = False
    # The attributes, tensors or lists of them, that have a row for each item, and those with one for each set. None
    # where what belongs to a set cannot be told.
    of_items: tuple[str, ...] | None = None
    of_sets: tuple[str, ...] = ()

    def part(self, numbers: Tensor, items: Sets) -> Self | None:
        """F for the sets with these numbers alone, whose items are given by their flat numbers; None if it cannot."""
        if self.of_items is None:
            return None
        other = self.with_tensors(self.tensors())
        other.sets = items.with_values(self.sets.values[items.values])
        for names, rows in ((self.of_items, items.values), (self.of_sets, numbers)):
            for name in names:
                setattr(other, name, _rows(getattr(self, name), rows))
        return other

    def tensors(self) -> tuple[Tensor, ...]:
        """What F is made of and a derivative can reach: every attribute, or member of a list, of real numbers.

        Also those that require no gradient: `torch.func` and forward mode differentiate and map them all the same.
        """
        return tuple(t for _, t in self._held())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same function made of other tensors, in the order of `tensors()`; this one stays as it is."""
        other = copy.copy(self)
        for name in [name for name in vars(other) if self._computed(name)]:
            delattr(other, name)
        for (name, place), tensor in zip((where for where, _ in self._held()), tensors, strict=True):
            if place is None:
                setattr(other, name, tensor)
            else:
                kept = getattr(other, name)
                setattr(other, name, [*kept[:place], tensor, *kept[place + 1 :]])
        return other

    def _held(self) -> list[tuple[tuple[str, int | None], Tensor]]:
        found: list[tuple[tuple[str, int | None], Tensor]] = []
        for name, value in vars(self).items():
            if self._computed(name):
                continue
            places = (
                [(None, value)] if isinstance(value, Tensor) else enumerate(value) if isinstance(value, list) else ()
            )
            found += [((name, i), t) for i, t in places if isinstance(t, Tensor) and t.is_floating_point()]
        return found

    def _computed(self, name: str) -> bool:
        """Whether an attribute follows from the others, and was computed when it was first asked for."""
        return isinstance(getattr(type(self), name, None), cached_property)

    @abc.abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """F of `m` subsets of each of the `b` sets, `(m, b)`."""

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """F with the item minus F without it, `(m, total)`, or `(m, len(coordinates))` for those items alone.

        This fallback flips one item of every set at a time; functions with structure do better.
        """
        layout, m = self.sets.layout, len(masks)
        positions = layout.positions if coordinates is None else layout.positions[coordinates]
        ids = layout.ids if coordinates is None else layout.ids[coordinates]
        wanted, column = positions.unique(return_inverse=True)
        if not len(wanted):
            return torch.zeros(m, 0, dtype=self.sets.dtype, device=self.sets.device)
        step = max(1, _FLIP_BUDGET // max(1, masks.numel()))
        table = torch.cat([self._forced_difference(masks, part) for part in wanted.split(step)])
        return table[column, :, ids].T

    def linearised(self, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean gains `(total,)` at relaxed masks, and their Jacobian `(b, longest, longest)` in numbers for the items.

        `moves` `(m, total)` says how far each mask moves with its item's number. The gains have a graph, the Jacobian
        has none. None where there is no way that beats differentiating the gains.
        """
        return None

    def prepared(self) -> BoundSetFunction:
        """The same function with what calls at many relaxed masks share computed once."""
        return self

    def _forced_difference(self, masks: Tensor, positions: Tensor) -> Tensor:
        layout = self.sets.layout
        here = (layout.positions == positions[:, None])[:, None]
        with_item = torch.where(here, torch.ones_like(masks), masks).flatten(0, 1)
        without_item = torch.where(here, torch.zeros_like(masks), masks).flatten(0, 1)
        difference = self.value(with_item) - self.value(without_item)
        return difference.reshape(len(positions), len(masks), len(layout))


class SetFunction(abc.ABC):
    """A utility F(S, V) of subsets S of a set V; larger is better."""

    @abc.abstractmethod
    def bind(self, sets: Sets) -> BoundSetFunction:
        """Compute what depends on the sets alone, ready to be asked about subsets."""

    def value(self, sets: Sets, masks: Tensor | Sets) -> Tensor:
        """F of `m` subsets of each set, `(m, b)`, for masks `(m, total)`, or for one subset as `predict` gives it."""
        bound = self.bind(sets)
        return bound.value(check_masks(masks, bound.sets))

    def gains(self, sets: Sets, masks: Tensor | Sets, coordinates: Tensor | None = None) -> Tensor:
        """Marginal gain of every item at `m` subsets, `(m, total)`, or of the items `coordinates` alone."""
        bound = self.bind(sets)
        return bound.gains(check_masks(masks, bound.sets), coordinates)


@final
class FromCallable(SetFunction):
    """Any function `(items (n, ...), masks (m, n)) -> values (m,)` of one set, made a set function.

    Example:
        >>> import setgrad as sg
        >>> F = FromCallable(lambda items, masks: (masks * items[:, 0]).sum(1).sqrt())
        >>> sets = sg.Sets.from_list([[[4.0], [5.0]], [[9.0]]])
        >>> F.value(sets, torch.tensor([[1.0, 1.0, 1.0]])).tolist()
        [[3.0, 3.0]]
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Keep the sets; everything else is asked of the callable."""
        return _BoundCallable(self.function, sets)


@final
class _BoundCallable(BoundSetFunction):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], sets: Sets) -> None:
        self.function, self.sets = function, sets

    def tensors(self) -> tuple[Tensor, ...]:
        module = self.function
        own = list(module.parameters()) if isinstance(module, nn.Module) else []
        return (*own, *([self.sets.values] if self.sets.dtype.is_floating_point else []))

    def with_tensors(self, tensors: Sequence[Tensor]) -> _BoundCallable:
        module, sets, given = self.function, self.sets, list(tensors)
        if sets.dtype.is_floating_point:
            sets = sets.with_values(given.pop())
        if not isinstance(module, nn.Module):
            return _BoundCallable(module, sets)
        own = dict(zip((name for name, _ in module.named_parameters()), given, strict=True))
        return _BoundCallable(lambda *inputs: torch.func.functional_call(module, own, inputs), sets)

    def value(self, masks: Tensor) -> Tensor:
        pieces = masks.split(self.sets.layout.host_lengths.tolist(), dim=1)
        columns = []
        for number, (items, mask) in enumerate(zip(self.sets, pieces, strict=True)):
            column = self.function(items, mask)
            if column.shape != (len(masks),):
                raise ShapeError(
                    f"the function returned shape {tuple(column.shape)} for set {number}; "
                    f"it must return one value for each of the {len(masks)} masks"
                )
            columns.append(column)
        return torch.stack(columns, 1) if columns else self.sets.values.new_zeros(len(masks), 0)


def as_set_function(function: SetFunction | Callable[[Tensor, Tensor], Tensor]) -> SetFunction:
    """Return a set function as it is, and wrap any other callable in `FromCallable`."""
    return function if isinstance(function, SetFunction) else FromCallable(function)


def _rows(x: Tensor | list[Tensor] | None, rows: Tensor) -> Tensor | list[Tensor] | None:
    if isinstance(x, list):
        return [one[rows] for one in x]
    return None if x is None else x[rows]


def real(numbers: Tensor) -> Tensor:
    """The same as real numbers. Whole ones have no mean among themselves, and would cut fractional masks."""
    return numbers if numbers.is_floating_point() else numbers.to(torch.get_default_dtype())


def check_masks(masks: Tensor | Sets, sets: Sets) -> Tensor:
    """Refuse masks that are not aligned with the items or hold NaN; a subset as `Sets` is one mask."""
    if isinstance(masks, Sets):
        if not masks.layout.same_as(sets.layout):
            raise ShapeError(f"the subset {masks!r} belongs to other sets than {sets!r}: their sizes differ")
        masks = masks.values[None]
    if masks.dim() != 2 or masks.shape[1] != sets.layout.total:
        raise ShapeError(
            f"masks must have shape (m, {sets.layout.total}), one column for each item of all sets, "
            f"not {tuple(masks.shape)}; for one subset use mask[None]"
        )
    if masks.is_floating_point() and bool(masks.isnan().any()):
        raise DataError("masks hold NaN; give booleans, or real numbers between 0 and 1")
    return masks if masks.is_floating_point() else masks.bool()

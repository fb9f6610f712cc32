"""The interface of set functions, the values of many subsets at once, and set functions from plain Python functions."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Sets
from setgrad.sets._sets import pad

# Largest number of elements of the mask tensor that the generic gains build at once.
_MASK_ELEMENTS = 2**22


class BoundSetFunction(abc.ABC):
    """A set function bound to the sets of one batch, ready to evaluate many subsets.

    What depends on the sets alone is computed once, when the function is bound. Masks have shape `(m, total items)`,
    aligned with `sets.values`. They are booleans or, if `relaxed` is true, real numbers between 0 and 1.

    Attributes:
        sets: The sets.
        relaxed: Whether masks may be fractional.
        item_attributes: Names of the attributes, tensors or lists of tensors, with one row per item. None if the
            function cannot be restricted to some of its sets.
        set_attributes: Names of the attributes with one row per set.
        in_chunks: Whether items are encoded again in every call, chunk by chunk, because all of them do not fit into
            memory; there is one set then.
    """

    sets: Sets
    relaxed: bool = False
    in_chunks: bool = False
    item_attributes: tuple[str, ...] | None = None
    set_attributes: tuple[str, ...] = ()

    @abc.abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Return F of `m` subsets of each of the `b` sets, `(m, b)`."""

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return F with the item minus F without it, for every item or for selected ones.

        This generic version evaluates F with one item of every set added and removed at a time. Functions with a known
        structure override it with something faster.

        Args:
            masks: Subsets, `(m, total)`.
            coordinates: Flat indices of the items to evaluate; None for all.

        Returns:
            Gains, `(m, total)` or `(m, len(coordinates))`.
        """
        layout, m = self.sets.layout, len(masks)
        positions = layout.positions if coordinates is None else layout.positions[coordinates]
        ids = layout.ids if coordinates is None else layout.ids[coordinates]
        distinct, row = positions.unique(return_inverse=True)
        if not len(distinct):
            return torch.zeros(m, 0, dtype=self.sets.dtype, device=self.sets.device)
        step = max(1, _MASK_ELEMENTS // max(1, masks.numel()))
        table = torch.cat([self._gains_at(masks, chunk) for chunk in distinct.split(step)])
        return table[row, :, ids].T

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mean gains at relaxed masks and their Jacobian, if that is cheaper than differentiating the gains.

        Args:
            masks: Relaxed masks, `(m, total)`, each a function of one number per item.
            slopes: Derivative of each mask by the number of its item, `(m, total)`.

        Returns:
            Gains `(total,)`, with a graph, and the Jacobian `(b, longest, longest)` by the numbers of the items,
            without one. None if the function has no fast Jacobian.
        """
        return None

    def prepared(self) -> BoundSetFunction:
        """Return the same function with the work that calls at many relaxed masks share already done."""
        return self

    def restrict(self, rows: Tensor, items: Sets) -> Self | None:
        """Return the function bound to some of its sets.

        Args:
            rows: Indices of the sets.
            items: Flat indices of the items of these sets, or of some of them; the others are then in no subset.

        Returns:
            The restricted function, or None if it cannot be restricted.
        """
        if self.item_attributes is None:
            return None
        other = self.with_tensors(self.tensors())
        other.sets = items.with_values(self.sets.values[items.values])
        for names, indices in ((self.item_attributes, items.values), (self.set_attributes, rows)):
            for name in names:
                setattr(other, name, _take_rows(getattr(self, name), indices))
        return other

    def among(self, items: Tensor, chosen: Tensor) -> BoundSetFunction:
        """Return the function of subsets that are the chosen items and some of the items `items`, held in memory.

        Args:
            items: Indices of items of the one set of a function with `in_chunks`.
            chosen: Booleans `(total,)`; chosen items among `items` count only where a mask has them.
        """
        raise NotImplementedError

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the floating-point tensors that F depends on: attributes, and members of list attributes.

        Tensors that require no gradient are included, because `torch.func` and forward mode differentiate them too.
        """
        values = [value if isinstance(value, list) else [value] for value in self._stored().values()]
        return tuple(x for members in values for x in members if isinstance(x, Tensor) and x.is_floating_point())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy that uses other tensors, in the order of `tensors()`."""
        other = copy.copy(self)
        for name in vars(self).keys() - self._stored().keys():
            delattr(other, name)
        remaining = iter(tensors)
        for name, value in self._stored().items():
            members = value if isinstance(value, list) else [value]
            new = [next(remaining) if isinstance(x, Tensor) and x.is_floating_point() else x for x in members]
            setattr(other, name, new if isinstance(value, list) else new[0])
        return other

    def _stored(self) -> dict[str, Any]:
        """Return the attributes without the cached results of properties, which copies must compute again."""
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def _gains_at(self, masks: Tensor, positions: Tensor) -> Tensor:
        """Return the gains of the items at these positions of every set, `(len(positions), m, b)`."""
        layout = self.sets.layout
        item = (layout.positions == positions[:, None])[:, None]
        with_item = torch.where(item, torch.ones_like(masks), masks).flatten(0, 1)
        without_item = torch.where(item, torch.zeros_like(masks), masks).flatten(0, 1)
        difference = self.value(with_item) - self.value(without_item)
        return difference.reshape(len(positions), len(masks), len(layout))


class SetFunction(abc.ABC):
    """A utility F(S, V) of subsets S of a set V; larger is better."""

    @abc.abstractmethod
    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with everything computed that depends on the sets alone."""

    def value(self, sets: Sets, masks: Tensor | Sets) -> Tensor:
        """Return F of subsets.

        Args:
            sets: The `b` sets.
            masks: `m` subsets of each set, `(m, total)`, or one subset of each as `SubsetSelector.predict` returns it.

        Returns:
            Values, `(m, b)`.

        Raises:
            ShapeError: If the masks are not aligned with the items.
            DataError: If the masks contain NaN.
        """
        bound = self.bind(sets)
        return bound.value(check_masks(masks, bound.sets))

    def gains(self, sets: Sets, masks: Tensor | Sets, coordinates: Tensor | None = None) -> Tensor:
        """Return the marginal gains of items: F with the item minus F without it.

        Args:
            sets: The sets.
            masks: As in `value`.
            coordinates: Flat indices of the items to evaluate; None for all.

        Returns:
            Gains, `(m, total)` or `(m, len(coordinates))`.

        Raises:
            ShapeError: If the masks are not aligned with the items.
            DataError: If the masks contain NaN.
        """
        bound = self.bind(sets)
        return bound.gains(check_masks(masks, bound.sets), coordinates)


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


def to_real(numbers: Tensor) -> Tensor:
    """Return floating-point numbers. Integers have no mean of their own type, and would truncate fractional masks."""
    return numbers if numbers.is_floating_point() else numbers.to(torch.get_default_dtype())


def check_masks(masks: Tensor | Sets, sets: Sets) -> Tensor:
    """Return masks `(m, total)` of booleans or real numbers.

    Raises:
        ShapeError: If the masks are not aligned with the items.
        DataError: If the masks contain NaN.
    """
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
        raise DataError("masks contain NaN; use booleans, or real numbers between 0 and 1")
    return masks if masks.is_floating_point() else masks.bool()


def _take_rows(x: Tensor | list[Tensor] | None, indices: Tensor) -> Tensor | list[Tensor] | None:
    if isinstance(x, list):
        return [tensor[indices] for tensor in x]
    return None if x is None else x[indices]


def pad_masks(masks: Tensor, sets: Sets, dtype: torch.dtype) -> Tensor:
    """Return flat masks `(m, total)` as numbers in a padded batch `(m, b, longest)`, with 0 in the padding."""
    return pad(masks.T.to(dtype), sets).permute(2, 0, 1)


def take_items(x: Tensor, sets: Sets, coordinates: Tensor | None) -> Tensor:
    """Return the entries of `(m, b, longest)` that belong to all items, or to the items `coordinates`."""
    rows = sets.layout.padded_rows if coordinates is None else sets.layout.padded_rows[coordinates]
    return x.flatten(1)[:, rows]

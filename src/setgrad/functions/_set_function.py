"""The interface of set functions: the values of many subsets at once, and the marginal gain of every item."""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Sets

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
    """

    sets: Sets
    relaxed: bool = False
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
            items: Flat indices of the items of these sets.

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

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the floating-point tensors that F depends on: attributes, and members of list attributes.

        Tensors that require no gradient are included, because `torch.func` and forward mode differentiate them too.
        """
        return tuple(tensor for _, tensor in self._located_tensors())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy that uses other tensors, in the order of `tensors()`."""
        other = copy.copy(self)
        for name in [name for name in vars(other) if self._is_cached(name)]:
            delattr(other, name)
        for ((name, index), _), tensor in zip(self._located_tensors(), tensors, strict=True):
            if index is None:
                setattr(other, name, tensor)
            else:
                members = getattr(other, name)
                setattr(other, name, [*members[:index], tensor, *members[index + 1 :]])
        return other

    def _located_tensors(self) -> list[tuple[tuple[str, int | None], Tensor]]:
        """Return the tensors with the names of their attributes and, inside a list, their indices."""
        located: list[tuple[tuple[str, int | None], Tensor]] = []
        for name, value in vars(self).items():
            if not self._is_cached(name):
                members: Iterable[tuple[int | None, Any]] = (
                    enumerate(value) if isinstance(value, list) else [(None, value)]
                )
                located += [((name, i), t) for i, t in members if isinstance(t, Tensor) and t.is_floating_point()]
        return located

    def _is_cached(self, name: str) -> bool:
        """Return whether an attribute is the cached result of a property, so that copies must compute it again."""
        return isinstance(getattr(type(self), name, None), cached_property)

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

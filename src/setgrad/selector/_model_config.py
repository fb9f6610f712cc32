"""The configuration of a model: the options in use, and what follows from them and from the items."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from setgrad.columns._part import Part, count_features
from setgrad.columns._relative import RelativeFeatures
from setgrad.inference import ConstantScale, ImplicitMeanField
from setgrad.inference.mean_field import MeanFieldSolver
from setgrad.inference.scales import SCALES, Scale
from setgrad.selector._options import SelectorOptions
from setgrad.selector._tables import CHUNKED_METHODS, CONDITIONAL, SOLVERS, UMBC, implicit_mean_field
from setgrad.sets import Sets

Value = TypeVar("Value")


@final
@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model.

    Attributes:
        options: The options, with every None that concerns the model replaced by the value in use.
        item_shape: Shape of an item.
        slots: Number of induced points of the attention; None for full attention.
        parts: What the numbers of an item are, if they come from the columns of a table; None for quantities.
        is_function_used: Whether F has more than the score of the trees and the term for pairs.
    """

    options: SelectorOptions
    item_shape: tuple[int, ...]
    slots: int | None
    parts: tuple[Part, ...] | None = None
    is_function_used: bool = True

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of the features of an item: its numbers, with vectors in place of codes."""
        return self.item_shape if self.all_parts is None else (count_features(self.all_parts),)

    @property
    def compared_shape(self) -> tuple[int, ...]:
        """Shape of the features by which pairs of items are compared."""
        return self.item_shape if self.all_parts is None else (sum(part.compared_features for part in self.all_parts),)

    def compared_slices(self) -> list[tuple[Part, slice]]:
        """Return the places of the features by which pairs of items are compared, of each part."""
        found, place = [], 0
        for part in self.all_parts or ():
            found.append((part, slice(place, place + part.compared_features)))
            place += part.compared_features
        return found

    @property
    def compared_texts(self) -> list[slice]:
        """Places of the features by which texts are compared: words are too many for a weight of each."""
        return [place for part, place in self.compared_slices() if part.words]

    @property
    def relative(self) -> tuple[Part, ...] | None:
        """What the numbers of an item are, if it also has features relative to its set."""
        if not self.options.relative:
            return None
        return self.parts or (Part.vector(self.width),)

    @property
    def width(self) -> int:
        """How many numbers an item has."""
        return math.prod(self.item_shape)

    @cached_property
    def all_parts(self) -> tuple[Part, ...] | None:
        """What the numbers of an item and its features relative to the set are; None for quantities alone."""
        if self.relative is None:
            return self.parts
        return (*self.relative, Part(RelativeFeatures(self.relative).out_dim, context=True))

    @property
    def trees(self) -> bool:
        """Whether boosted trees give each item a first score."""
        return bool(self.options.trees)

    @property
    def prepared_width(self) -> int:
        """How many numbers a prepared item has: its own, those relative to its set, and the score of the trees."""
        own = self.width if self.all_parts is None else sum(part.width for part in self.all_parts)
        return own + self.trees

    @property
    def codes(self) -> Tensor:
        """Whether each number of an item is a code, with the shape of an item."""
        if self.parts is None:
            return torch.zeros(self.item_shape, dtype=torch.bool)
        return torch.cat([torch.full((part.width,), part.codes > 0) for part in self.parts])

    @property
    def phi(self) -> str | None:
        """Name of the item encoder; None for a module of the user."""
        return None if isinstance(self.options.phi, nn.Module) else self.options.phi

    @property
    def largest_whole(self) -> float:
        """Number of items above which a set is read in chunks; infinity if no set is."""
        options = self.options
        can_be_split = self.phi == UMBC and options.method in CHUNKED_METHODS and options.function == "deepset"
        return options.chunk_size if can_be_split else math.inf

    def reads_in_chunks(self, sets: Sets) -> bool:
        """Return whether these sets are read in chunks; with the method "conditional" only a single large one is."""
        is_batch = len(sets) != 1 and self.options.method == CONDITIONAL
        return not is_batch and sets.layout.longest > self.largest_whole

    @property
    def members(self) -> int:
        """Number of members."""
        return resolved(self.options.members)

    @property
    def relation(self) -> int:
        """Rank of the relation."""
        return resolved(self.options.relation)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the hidden layers of F."""
        return tuple(resolved(self.options.hidden))

    @property
    def pairs(self) -> bool:
        """Whether F has a term for pairs."""
        return resolved(self.options.pairs)

    @cached_property
    def solver(self) -> MeanFieldSolver:
        """The solver of mean field."""
        options = self.options
        solver = SOLVERS[options.method](resolved(options.steps))
        if not isinstance(solver, ImplicitMeanField):
            return solver
        return implicit_mean_field(solver, forward=options.forward, backward=options.backward, tol=options.tol)

    @cached_property
    def scale(self) -> Scale | None:
        """The scale of the logits."""
        scale = self.options.resolved_scale
        return SCALES[scale] if isinstance(scale, str) else None if scale is None else ConstantScale(float(scale))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelConfig:
        # Nothing in it changes, and a module that was passed as phi is not copied with every copy of the model.
        return self

    def with_options(self, **changes: Any) -> ModelConfig:
        """Return a copy with other options."""
        return replace(self, options=replace(self.options, **changes))


def resolved(value: Value | None) -> Value:
    """Return a value that is known after None was resolved."""
    assert value is not None
    return value

"""Binding the members of a model to whole sets, to a set in chunks, or to a part of a set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from setgrad.encoders import MergeableEncoder, State, UMBCItems
from setgrad.errors import OptionError, ShapeError, parameter
from setgrad.functions import BoundSetFunction, DeepSetFunction
from setgrad.functions._additive import AdditiveBoundFunction
from setgrad.functions.deep_set_function import BoundDeepSetFunction
from setgrad.functions.pair_scores import BoundSum
from setgrad.selector._chunked import ChunkedBoundFunction, Chunks, encode, gather
from setgrad.selector._tables import CONDITIONAL
from setgrad.sets import Sets

if TYPE_CHECKING:
    from setgrad.selector._model import ChoiceModel, Member


def bind_members(model: ChoiceModel, sets: Sets) -> list[BoundSetFunction]:
    """Return F of every member for sets with raw items.

    Raises:
        OptionError: If a large set would have to be read in chunks, and F needs whole sets.
        ShapeError: If the model is in the context of one set, and there is not one set.
    """
    contexts: Sequence[Tensor | None] = [None] * len(model.members) if model.contexts is None else model.contexts
    if model.contexts is not None and len(sets) != 1:
        raise ShapeError(f"a state belongs to one set, but {len(sets)} were passed; pass the items of one set")
    members = list(zip(model.each(), contexts, strict=True))
    if model.config.reads_in_chunks(sets):
        return [bind_in_chunks(model, member, sets, context=context) for member, context in members]
    items = model.prepare(sets)
    return [
        member.bind(items) if context is None else bind_part(member, member.featured(items), context)
        for member, context in members
    ]


def bind_in_chunks(
    model: ChoiceModel,
    member: Member,
    sets: Sets,
    generator: torch.Generator | None = None,
    context: Tensor | None = None,
) -> BoundSetFunction:
    """Return F of a member for sets that are read in chunks.

    With the method "conditional" it is one set, and nothing of an item stays in memory. Mean field asks for gains so
    often that the features of all items stay, without what computed them.

    Args:
        model: The model.
        member: The member.
        sets: The sets.
        generator: Draws the chunks that a sampled gradient is of.
        context: What was gathered from one set already; None to gather it now.
    """
    check_parts(member)
    prepare = partial(_prepare, model, member)
    if model.config.options.method == CONDITIONAL:
        bind, chunks = partial(bind_part, member), _chunks(model, sets, generator)
        return ChunkedBoundFunction(sets, chunks, gatherer(member), prepare, bind, context)
    function, keep_items = member.function, member.pairs is not None
    assert isinstance(function, DeepSetFunction) and isinstance(function.phi, UMBCItems)
    encoded = [
        encode(function.phi, prepare, _chunks(model, sets[n : n + 1], generator), context, keep_items=keep_items)
        for n in range(len(sets))
    ]
    features, items = (torch.cat(parts) for parts in zip(*encoded, strict=True))
    bound = BoundDeepSetFunction(function, sets.with_values(features.detach()), features)
    return bound if member.pairs is None else BoundSum([bound, member.pairs.bind(sets.with_values(items))])


def gather_set(model: ChoiceModel, member: Member, sets: Sets) -> State:
    """Return the state of the items of one set, read in chunks."""
    return gather(gatherer(member), partial(_prepare, model, member), _chunks(model, sets))


def bind_part(member: Member, items: Sets, context: Tensor) -> AdditiveBoundFunction:
    """Return F of a member for featured items of sets of which its encoder gathered the context."""
    check_parts(member)
    assert isinstance(member.function, DeepSetFunction)
    bound = member.function.bind_in(items, context)
    return bound if member.pairs is None else BoundSum([bound, member.pairs.bind(items)])


def gatherer(member: Member) -> MergeableEncoder:
    """Return what gathers the context of a set.

    Raises:
        OptionError: If phi does not gather one.
    """
    if not isinstance(member.function.phi, UMBCItems):
        raise OptionError(f"only {parameter('phi')}='umbc' gathers a context that a state can hold; fit with it")
    return member.function.phi.context


def check_parts(member: Member) -> None:
    """Check that F can be bound to a part of a set.

    Raises:
        OptionError: If it needs whole sets.
    """
    function, _ = member.function, gatherer(member)
    if not isinstance(function, DeepSetFunction) or function.relation is not None:
        names = (parameter(name) for name in ("phi", "function", "relation"))
        raise OptionError(
            "a part of a set can only be read with {}='umbc', {}='deepset' and {}=0; fit with these".format(*names)
        )


def _prepare(model: ChoiceModel, member: Member, items: Sets) -> Sets:
    """Return raw items as the encoder of a member reads them."""
    return member.featured(model.prepare(items))


def _chunks(model: ChoiceModel, sets: Sets, generator: torch.Generator | None = None) -> Chunks:
    options = model.config.options
    return Chunks(sets.values, options.chunk_size, options.chunk_gradient == "sample", generator)

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
from setgrad.functions.pair_scores import BoundSum
from setgrad.selector._chunked import ChunkedBoundFunction, Chunks, gather
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
        return [bind_chunks(model, member, sets, context=context) for member, context in members]
    items = model.prepare(sets)
    return [member.bind(items) if context is None else bind_part(member, items, context) for member, context in members]


def bind_chunks(
    model: ChoiceModel,
    member: Member,
    sets: Sets,
    generator: torch.Generator | None = None,
    context: Tensor | None = None,
) -> ChunkedBoundFunction:
    """Return F of a member for one set that is read in chunks.

    Args:
        model: The model.
        member: The member.
        sets: The set.
        generator: Draws the chunks that a sampled gradient is of.
        context: What was gathered from the set already; None to gather it now.
    """
    check_parts(member)
    chunks, encoder = _chunks(model, sets, generator), gatherer(member)
    if context is None:
        context = encoder.finish(gather(encoder, partial(_features, model, member), chunks))
    return ChunkedBoundFunction(sets, chunks, model.prepare, partial(bind_part, member), context)


def gather_set(model: ChoiceModel, member: Member, sets: Sets) -> State:
    """Return the state of the items of one set, read in chunks."""
    return gather(gatherer(member), partial(_features, model, member), _chunks(model, sets))


def bind_part(member: Member, items: Sets, context: Tensor) -> AdditiveBoundFunction:
    """Return F of a member for prepared items of sets of which its encoder gathered the context."""
    check_parts(member)
    assert isinstance(member.function, DeepSetFunction)
    featured = member.featured(items)
    bound = member.function.bind_in(featured, context)
    return bound if member.pairs is None else BoundSum([bound, member.pairs.bind(member.compared(items, featured))])


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


def _features(model: ChoiceModel, member: Member, items: Sets) -> Sets:
    """Return raw items as the encoder of a member reads them."""
    return member.featured(model.prepare(items))


def _chunks(model: ChoiceModel, sets: Sets, generator: torch.Generator | None = None) -> Chunks:
    options = model.config.options
    return Chunks(sets.values, options.chunk_size, options.chunk_gradient == "sample", generator)

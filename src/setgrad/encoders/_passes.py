"""Passes over the items of a batch of sets: in memory, or read again in chunks for every pass.

An encoder defines what it computes (`ChunkedEncoder.encode`); a `Passes` object defines how the items arrive. So one
definition serves whole sets, streams and shards on many machines.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, final

import torch
from torch import Tensor

from setgrad.encoders._guard import check_finite
from setgrad.encoders._max_state import MaxState, max_state
from setgrad.encoders._state import State
from setgrad.sets import Sets

# Maps items and the result of an earlier pass, one row for each set, to new values of the items.
Transform = Callable[[Sets, Tensor], Tensor]
# Maps a chunk, the counts of its items, the queries and a level to the state of the chunk.
Reader = Callable[[Sets, Tensor, Tensor | None, Tensor | None], State]


@final
@dataclass(frozen=True, eq=False)
class TopItems:
    """The features of the items with the largest scores.

    Attributes:
        features: Features, `(m, dim)`, with a last row of zeros.
        index: Row of the item with the largest score, `(b, scores)`; the last row where there is no item.
    """

    features: Tensor
    index: Tensor

    @property
    def exists(self) -> Tensor:
        """Whether there is an item, `(b, scores)`."""
        return self.index < len(self.features) - 1

    @property
    def selected(self) -> Tensor:
        """The features of the top items, `(b, scores, dim)`."""
        return self.features[self.index]

    def gather(self, x: Tensor) -> Tensor:
        """Return the entries of the top items, `(b, scores)`, from `(m, scores)`, one row for each row of features."""
        return x.gather(0, self.index)


class Passes(abc.ABC):
    """All items of a batch of sets, for as many passes as an encoder needs."""

    # Draws random slots; None for torch's global generator.
    slot_generator: torch.Generator | None = None

    @abc.abstractmethod
    def map(self, features: Callable[[Sets], Tensor]) -> Passes:
        """Return passes over the features of the items."""

    @abc.abstractmethod
    def condition(self, transform: Transform, context: Tensor) -> Passes:
        """Return passes over the items transformed by the result of an earlier pass, which gets a gradient too."""

    @abc.abstractmethod
    def sums(self, read: Reader, queries: Tensor | None) -> State:
        """Return the state of all items after one pass, with a gradient for the queries and the parameters."""

    @abc.abstractmethod
    def top_items(self, score: Callable[[Tensor], Tensor]) -> TopItems:
        """Return the items with the largest scores after one pass; `score` maps `(total, dim)` to `(total, scores)`."""


class Ranks(Protocol):
    """How the processes of a group combine the results of a pass."""

    def synchronise(self, state: State) -> State:
        """Return the same state relative to a level that all ranks agree on."""

    def total(self, state: State) -> State:
        """Return the sum of the synchronised states of all ranks, with a gradient."""

    def maximum(self, state: MaxState) -> MaxState:
        """Return the state of the items of all ranks."""

    def gather(self, state: MaxState, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the top items of all ranks, `(b, scores, dim)`, and whether there are any."""


@final
@dataclass(frozen=True, eq=False)
class InMemoryPasses(Passes):
    """Chunks whose graphs are kept in memory; whole sets are a single chunk."""

    chunks: Callable[[], Iterable[tuple[Sets, Tensor]]]
    slot_generator: torch.Generator | None = None
    ranks: Ranks | None = None
    # Whether to wait for the device and check that the sums are finite, as streams do.
    checked: bool = False

    @staticmethod
    def of(sets: Sets, counts: Tensor) -> InMemoryPasses:
        """Return passes over whole sets and the counts of their items."""
        return InMemoryPasses(lambda: [(sets, counts)])

    def map(self, features: Callable[[Sets], Tensor]) -> InMemoryPasses:
        """Compute the features once for all passes."""
        mapped = [(chunk.with_values(features(chunk)), counts) for chunk, counts in self.chunks()]
        return replace(self, chunks=lambda: mapped)

    def condition(self, transform: Transform, context: Tensor) -> InMemoryPasses:
        """Transform the items once for all later passes."""
        return self.map(lambda chunk: transform(chunk, context))

    def sums(self, read: Reader, queries: Tensor | None) -> State:
        """Read every chunk with a graph."""
        state = reduce(State.merge, (read(chunk, counts, queries, None) for chunk, counts in self.chunks()))
        if self.checked:
            check_finite(*state.sums)
        return state if self.ranks is None else self.ranks.total(self.ranks.synchronise(state))

    def top_items(self, score: Callable[[Tensor], Tensor]) -> TopItems:
        """Select from the features, which are in memory."""
        chunks = list(self.chunks())
        features = torch.cat([chunk.values for chunk, _ in chunks])
        start, states = 0, []
        for chunk, counts in chunks:
            # The items of this state are row numbers.
            rows = torch.arange(start, start + len(chunk.values), device=chunk.device)
            with torch.no_grad():
                states.append(max_state(score(chunk.values), chunk.with_values(rows), counts))
            start += len(rows)
        state = reduce(MaxState.merge, states)
        if self.checked:
            check_finite(state.value[state.number >= 0])
        top = padded_top_items(features, state.items, state.number >= 0)
        if self.ranks is None:
            return top
        selected, exists = self.ranks.gather(state, top.selected)
        index = torch.arange(exists.numel(), device=exists.device)
        return padded_top_items(selected.flatten(0, 1), index.reshape(exists.shape), exists)


def padded_top_items(features: Tensor, index: Tensor, exists: Tensor) -> TopItems:
    """Return top items with a row of zeros for sets without items to point at."""
    padded = torch.cat([features, features.new_zeros(1, *features.shape[1:])])
    return TopItems(padded, torch.where(exists, index, len(features)))

"""Ways through the items of a batch of sets: at once, in kept chunks, or in chunks that are read again and again.

An encoder says what it gathers (`ChunkedEncoder.encode`), a way says how the items come. So one definition serves
whole sets, streams and shards on many machines.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, final

import torch
from torch import Tensor

from setgrad.encoders._max_state import MaxState, max_state
from setgrad.encoders._state import State
from setgrad.encoders._watch import require_finite
from setgrad.sets import Sets

# From items and what an earlier pass found, one row for each set, to what the items come as from then on.
Change = Callable[[Sets, Tensor], Tensor]
# From a chunk, the weights of its items, what they are compared with, and a level, to the state of the chunk alone.
Read = Callable[[Sets, Tensor, Tensor | None, Tensor | None], State]


@final
@dataclass(frozen=True, eq=False)
class Winners:
    """Features of the items with the largest scores.

    Attributes:
        rows: Features, `(m, width)`, the last row 0.
        place: Row of the item with the largest score, `(b, scores)`; the last one where there is none.
    """

    rows: Tensor
    place: Tensor

    @property
    def some(self) -> Tensor:
        """Where there is an item, `(b, scores)`."""
        return self.place < len(self.rows) - 1

    @property
    def held(self) -> Tensor:
        """Features of the winners, `(b, scores, width)`."""
        return self.rows[self.place]

    def pick(self, x: Tensor) -> Tensor:
        """Of numbers `(m, scores)`, one for each row and score, those of the winners: `(b, scores)`."""
        return x.gather(0, self.place)


class Passes(abc.ABC):
    """A way through all items, which may be gone as often as an encoder needs."""

    # What random slots are drawn from; None for torch's own generator.
    slots: torch.Generator | None = None

    @abc.abstractmethod
    def through(self, features: Callable[[Sets], Tensor]) -> Passes:
        """The same way, on which items come as their features."""

    @abc.abstractmethod
    def told(self, change: Change, found: Tensor) -> Passes:
        """The same way, on which items are changed by what an earlier pass found, which gets a gradient too."""

    @abc.abstractmethod
    def sums(self, read: Read, queries: Tensor | None) -> State:
        """One pass: the state of all items, with a gradient for the queries and for the encoder's parameters."""

    @abc.abstractmethod
    def best(self, score: Callable[[Tensor], Tensor]) -> Winners:
        """One pass: the items with the largest score, of those that come as features."""


class Ranks(Protocol):
    """What other processes have to do with a pass."""

    def settle(self, state: State) -> State:
        """The same content at a level that all agree on."""

    def total(self, state: State) -> State:
        """The sum of settled states, with a gradient."""

    def largest(self, state: MaxState) -> MaxState:
        """The state of the items of all."""

    def gather(self, state: MaxState, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of features `(b, scores, width)` on each rank those of the winners, and where there are any."""


@final
@dataclass(frozen=True, eq=False)
class Kept(Passes):
    """Chunks whose graphs are kept; whole sets are a single chunk."""

    chunks: Callable[[], Iterable[tuple[Sets, Tensor]]]
    slots: torch.Generator | None = None
    ranks: Ranks | None = None
    # Whether to wait for the device and see that the sums are numbers, as streams do.
    checked: bool = False

    @staticmethod
    def of(sets: Sets, weights: Tensor) -> Kept:
        """Whole sets, and the weights of their items."""
        return Kept(lambda: [(sets, weights)])

    def through(self, features: Callable[[Sets], Tensor]) -> Kept:
        """Features are computed once, whatever the number of passes."""
        made = [(chunk.with_values(features(chunk)), weights) for chunk, weights in self.chunks()]
        return replace(self, chunks=lambda: made)

    def told(self, change: Change, found: Tensor) -> Kept:
        """Items are changed once."""
        return self.through(lambda chunk: change(chunk, found))

    def sums(self, read: Read, queries: Tensor | None) -> State:
        """Read every chunk with a graph."""
        state = reduce(State.merge, (read(chunk, weights, queries, None) for chunk, weights in self.chunks()))
        if self.checked:
            require_finite(*state.sums)
        return state if self.ranks is None else self.ranks.total(self.ranks.settle(state))

    def best(self, score: Callable[[Tensor], Tensor]) -> Winners:
        """Point at the features that won; they are there."""
        made = list(self.chunks())
        rows = torch.cat([chunk.values for chunk, _ in made])
        number, states = 0, []
        for chunk, weights in made:
            # The items of this state are the numbers of rows.
            numbers = torch.arange(number, number + chunk.layout.total, device=chunk.device)
            with torch.no_grad():
                states.append(max_state(score(chunk.values), chunk.with_values(numbers), weights))
            number += chunk.layout.total
        found = reduce(MaxState.merge, states)
        if self.checked:
            require_finite(found.value[found.number >= 0])
        if self.ranks is not None:
            held, some = self.ranks.gather(found, winners(rows, found.items, found.number >= 0).held)
            places = torch.arange(some.numel(), device=some.device)
            return winners(held.flatten(0, 1), places.reshape(some.shape), some)
        return winners(rows, found.items, found.number >= 0)


def winners(rows: Tensor, place: Tensor, some: Tensor) -> Winners:
    """With a row of zeros for sets without items to point at."""
    return Winners(torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]), torch.where(some, place, len(rows)))

"""What a selector keeps of a set that was read: a state of fixed size, to which items can be added later."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Self, final

import torch

from setgrad._files import read_tensors, write_tensors
from setgrad.encoders import State
from setgrad.encoders._fingerprint import Fingerprint, check_same_encoder, fingerprint_entry, fingerprint_from
from setgrad.errors import FileFormatError, ShapeError, StateError
from setgrad.selector._model import ChoiceModel
from setgrad.selector._parts import check_parts, gather_set, gatherer
from setgrad.sets import Sets

_FORMAT, _REMEDY = "setgrad set state 1", "write it again with state.save"


@final
@dataclass(frozen=True, eq=False)
class SetState:
    """What the members of a selector with phi="umbc" gathered from the items of one set so far.

    Attributes:
        states: The state of each member.
    """

    states: tuple[State, ...]

    def __len__(self) -> int:
        """Return the number of items that were read."""
        return int(self.states[0].count[0])

    def merge(self, other: SetState) -> SetState:
        """Return the state of the items of both.

        Raises:
            StateError: If they were read by different selectors.
        """
        return self._combine(State.merge, other)

    def remove(self, other: SetState) -> SetState:
        """Return the state without the items of another state that was merged before.

        Raises:
            StateError: If too few correct digits would remain, or the states were read by different selectors.
        """
        return self._combine(State.remove, other)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, for `SetState.load`.

        Raises:
            DataError: If the file cannot be written.
        """
        named = {f"{n}.{name}": t for n, state in enumerate(self.states) for name, t in state.to_tensors().items()}
        entries = (fingerprint_entry(state.encoder) for state in self.states)
        metadata = {f"{n}.{name}": text for n, entry in enumerate(entries) for name, text in entry.items()}
        write_tensors(path, named, _FORMAT, **metadata)

    @staticmethod
    def load(path: str | Path, *, device: str | torch.device = "cpu") -> SetState:
        """Return the state that `save` wrote.

        Raises:
            FileFormatError: If the file is missing, damaged or holds something else.
        """
        named, metadata = read_tensors(path, _FORMAT, remedy=_REMEDY, device=device)
        try:
            count = 1 + max(int(name.partition(".")[0]) for name in named)
            states = [State.from_tensors(_part(named, n), fingerprint_from(_part(metadata, n))) for n in range(count)]
            if any(len(state) != 1 or not torch.equal(state.count, states[0].count) for state in states):
                raise ValueError("the members have not read the same items of one set")
        except (LookupError, ValueError) as error:
            raise FileFormatError(f"{path} is not a whole state ({error}); {_REMEDY}") from None
        return SetState(tuple(states))

    def _combine(self, operation: Callable[[State, State], State], other: SetState) -> SetState:
        if not isinstance(other, SetState) or len(other.states) != len(self.states):
            raise StateError("states of selectors with different numbers of members do not go together")
        return SetState(tuple(operation(a, b) for a, b in zip(self.states, other.states, strict=True)))


class AbstractEncoding(abc.ABC):
    """The methods of a fitted selector that read a set into a state."""

    _exact_model: ChoiceModel | None
    model_: ChoiceModel

    @abc.abstractmethod
    def _check_sets(self, sets: Any, scores: Any = None) -> Sets:
        """Return checked sets."""

    @abc.abstractmethod
    def _precise(self) -> ChoiceModel:
        """Return the model in double precision."""

    def encode_set(self, items: Any, *, state: SetState | None = None) -> SetState:
        """Return what phi="umbc" gathers from the items of one set, which are read in chunks.

        The state has a fixed size. With an earlier state only new items are read: those that were appended to the set.

        Args:
            items: The items of one set: a `Sets` of one set, or an array `(n, d)`.
            state: The state of the items that the set had before; None if there were none.

        Raises:
            NotFittedError: If the selector is not fitted.
            OptionError: If phi is not "umbc".
            ShapeError: If there is not exactly one set; other errors are those of `predict`.
            StateError: If the state is that of another selector.

        Examples:
            >>> import setgrad as sg
            >>> task = sg.datasets.load_task("moons", n_train=40, n_validation=20, n_test=2)
            >>> sel = sg.SubsetSelector(phi="umbc", dim=16, max_epochs=2, random_state=0, verbose=0).fit(*task.train)
            >>> old, new = task.test.sets[0][:90], task.test.sets[0][90:]
            >>> state = sel.encode_set(new, state=sel.encode_set(old))
            >>> len(state), sel.within(state).predict([new], size=2)[0].sum().item()
            (100, 2)
        """
        sets = self._check_sets(items if isinstance(items, Sets) else [items])
        if len(sets) != 1:
            raise ShapeError(f"a state belongs to one set, but {len(sets)} were passed; encode each by itself")
        model = self._precise()
        with torch.no_grad():
            read = SetState(tuple(gather_set(model, member, sets.to(model.mean.device)) for member in model.each()))
        return read if state is None else reduce(SetState.merge, (state, read))

    def within(self, state: SetState) -> Self:
        """Return the selector for items of the set of this state: it predicts without reading the set again.

        `within(state).predict([items])`, `decision_function`, `gains` and all others take one set of items at a time:
        all items of the set, or some of them, such as the new ones. An item is described among all items of the state.

        Args:
            state: What `encode_set` returned.

        Raises:
            NotFittedError: If the selector is not fitted.
            OptionError: If phi is not "umbc", or F has more than its features (function="deepset", relation=0).
            StateError: If the state is that of another selector.
        """
        self._check_sets([])
        model = self._precise()
        members = model.each()
        if not isinstance(state, SetState) or len(state.states) != len(members):
            raise StateError("this is not a state of this selector; read the set with encode_set")
        contexts = []
        with torch.no_grad():
            for member, part in zip(members, state.states, strict=True):
                check_same_encoder(part.encoder, Fingerprint.of(gatherer(member)))
                contexts.append(gatherer(member).finish(part))
                check_parts(member)
        other = copy.copy(self)
        other.model_, other._exact_model = self.model_.in_context(contexts), model.in_context(contexts)
        return other


def _part(named: dict[str, Any], number: int) -> dict[str, Any]:
    prefix = f"{number}."
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}

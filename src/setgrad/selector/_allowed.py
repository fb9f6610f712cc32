"""A constraint at work on a batch: which sets go into one call of a solver, and what came of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import CombinatorialSolver, Status
from setgrad.errors import DataError, OptionError, ShapeError, SolverError
from setgrad.selector.constraints import Constraint
from setgrad.sets import Choices, Sets, unpad

# What fills up a short set: so far below 0 that no noise brings it above.
_NOTHING = -1e4


@final
@dataclass(frozen=True, eq=False)
class Call:
    """Sets that are solved in one call.

    Attributes:
        places: Where they are in the batch.
        items: Where their items are in the values of the batch.
        sets: The same numbers as a `Sets`, to be filled up.
        solver: Never raises for an instance without an answer; `policy` says what its owner wants to happen.
    """

    places: np.ndarray
    items: Tensor
    sets: Sets
    solver: CombinatorialSolver
    policy: str

    def fill(self, theta: Tensor) -> Tensor:
        """From worths `(m, total)` of the batch to `(m, count, size)`, turned round for a solver that minimises."""
        own = self.sets.with_values(theta[:, self.items].T)
        filled = own.padded(_NOTHING)[0].permute(2, 0, 1)
        return filled if self.solver.sense == "max" else -filled

    def empty(self, points: Tensor) -> Tensor:
        """From points `(m, count, size)` to `(m, items)`."""
        return unpad(points.permute(1, 2, 0), self.sets).T


@final
@dataclass(frozen=True, eq=False)
class Allowed:
    """A constraint, and which of its sets those of a batch are."""

    constraint: Constraint
    numbers: np.ndarray

    @staticmethod
    def of(constraint: Constraint | CombinatorialSolver, sets: Sets) -> Allowed:
        """Refuse what is no constraint, or one for other sets."""
        if isinstance(constraint, CombinatorialSolver):
            if constraint.dims != 1:
                raise OptionError(
                    f"{type(constraint).__name__} chooses among arrays of {constraint.dims} axes; a constraint on "
                    "subsets chooses among the items of a set, which is one axis"
                )
            constraint = Plain(constraint)
        if not isinstance(constraint, Constraint):
            raise OptionError(
                f"constraint must be a solver of setgrad.discrete or a Constraint, not {type(constraint).__name__}"
            )
        sizes, own = sets.layout.host_lengths, constraint.sizes
        name = type(constraint).__name__
        if own is not None and len(own) != len(sizes):
            raise ShapeError(f"{name} was made for {len(own)} sets, these are {len(sizes)}")
        if own is not None and not np.array_equal(own, sizes):
            first = int(np.flatnonzero(own != sizes)[0])
            raise ShapeError(f"{name} has {own[first]} numbers for set {first}, which has {sizes[first]} items")
        return Allowed(constraint, np.arange(len(sizes)))

    def take(self, places: np.ndarray) -> Allowed:
        """The same for some of the sets."""
        return Allowed(self.constraint, self.numbers[places])

    def calls(self, sets: Sets) -> Iterator[Call]:
        """Group the sets of a batch; sets without items have nothing to choose."""
        filled = np.flatnonzero(sets.layout.host_lengths)
        sizes = sets.layout.host_lengths[filled]
        labels = self.constraint.together(self.numbers[filled], sizes)
        everything = sets.with_values(torch.arange(sets.layout.total, device=sets.device))
        for label in np.unique(labels):
            places = filled[labels == label]
            part = everything.take(places)
            with _about(self, part, places):
                solver = self.constraint.solver(self.numbers[places], part.layout.longest)
            # A copy that shares the counter: failures are told here, where sets have numbers.
            quiet = copy.copy(solver)
            object.__setattr__(quiet, "on_failure", "mask")
            yield Call(places, part.values, part, quiet, solver.on_failure)

    def solve(self, worth: Tensor, sets: Sets) -> Tensor:
        """The allowed subset of the largest sum, for each of several worths `(m, total)`, as booleans `(m, total)`."""
        out = torch.zeros(worth.shape, dtype=torch.bool, device=worth.device)
        ends, policy = np.zeros(len(sets), dtype=np.int64), "mask"
        for call in self.calls(sets):
            with _about(self, call.sets, call.places):
                found = call.solver.run(call.fill(worth.detach()))
            if call.policy != "mask":
                policy = call.policy
                ends[call.places] = found.status.amax(0).cpu().numpy()
            points = call.empty(found.value)
            if not bool(((points == 0) | (points == 1)).all()):
                raise SolverError(
                    f"{type(call.solver).__name__} answers with numbers other than 0 and 1; a constraint on subsets "
                    "says of each item whether it is taken"
                )
            out[:, call.items] = points.bool()
        self._settle(ends, policy)
        return out

    def choose(self, worth: Tensor, sets: Sets) -> Sets:
        """The allowed subset of each set with the largest sum of the worths `(total,)`."""
        return sets.with_values(self.solve(worth[None], sets)[0])

    def refuse_others(self, subsets: Sets) -> None:
        """Raise if a subset is not allowed: the nearest allowed one is then another."""
        nearest = self.choose(2.0 * subsets.values - 1.0, subsets)
        wrong = (nearest.values != subsets.values).nonzero()
        if len(wrong):
            places = np.unique(subsets.layout.ids[wrong[:, 0]].cpu().numpy())
            raise DataError(
                f"the subset chosen from set {self.numbers[places[0]]} (counted from 0) is not one that the constraint "
                f"allows ({len(places)} of {len(subsets)} sets in all); loosen the constraint, or leave these sets out"
            )

    def _settle(self, ends: np.ndarray, policy: str) -> None:
        failed = np.flatnonzero(ends)
        if not len(failed):
            return
        kind = Status(int(ends[failed[0]]))
        message = (
            f"set {self.numbers[failed[0]]} (counted from 0) has no answer under the constraint "
            f"({kind.name}; {len(failed)} of {len(ends)} sets in all): {kind.remedy}"
        )
        if policy == "raise":
            raise SolverError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


@final
@dataclass(frozen=True, eq=False)
class Plain(Constraint):
    """A solver of the user's own for all sets, called once for each size."""

    inner: CombinatorialSolver

    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """As it is."""
        return self.inner


def allowed_parts(
    constraint: Constraint | CombinatorialSolver,
    own: Constraint | CombinatorialSolver | None,
    choices: Choices,
    held_out: Choices,
    kept: np.ndarray,
    held: np.ndarray | None,
) -> tuple[Allowed, Allowed]:
    """The constraint for training and for validation sets, whose subsets must all be allowed.

    Args:
        constraint: That of the sets that were given.
        own: That of validation sets of their own, if they need another.
        choices: All sets that were given.
        held_out: The validation sets.
        kept: Which of the given sets are trained on.
        held: Which of the given sets are held out; None if validation has sets of its own.
    """
    whole = Allowed.of(constraint, choices.sets)
    _refuse_numbers_of_sets(whole, choices.sets)
    whole.refuse_others(choices.subsets)
    if held is not None:
        return whole.take(kept), whole.take(held)
    if own is not None or whole.constraint.sizes is None:
        second = Allowed.of(constraint if own is None else own, held_out.sets)
        _refuse_numbers_of_sets(second, held_out.sets)
        second.refuse_others(held_out.subsets)
        return whole.take(kept), second
    raise OptionError(
        f"{type(constraint).__name__} holds numbers for the training sets; give the validation sets a constraint of "
        "their own: validation=(sets, subsets, constraint)"
    )


def sample_choices(allowed: Allowed, sets: Sets) -> Tensor:
    """What is chosen when worths are drawn by lot, always the same: tells one constraint from another.

    Upper limits show where all items are worth having, lower ones where none is.
    """
    lot = torch.randn(2, sets.layout.total, generator=torch.Generator().manual_seed(0)).to(sets.device)
    return torch.cat([allowed.choose(worth, sets).values for worth in (*lot, lot[0].abs(), -lot[1].abs())])


def _refuse_numbers_of_sets(allowed: Allowed, sets: Sets) -> None:
    """Raise if a plain solver holds parameters for each set: batches of training come in any order."""
    if not isinstance(allowed.constraint, Plain):
        return
    lengths = sets.layout.host_lengths
    for size in np.unique(lengths[lengths > 0]):
        one = Allowed(allowed.constraint, np.flatnonzero(lengths == size)[:1])
        one.solve(torch.zeros(1, int(size)), Sets.from_lengths(torch.zeros(int(size)), [int(size)]))


@contextmanager
def _about(allowed: Allowed, part: Sets, places: np.ndarray) -> Iterator[None]:
    """Say which sets an error of a solver is about."""
    try:
        yield
    except (OptionError, ShapeError) as error:
        hint = ""
        if isinstance(allowed.constraint, Plain) and isinstance(error, ShapeError):
            hint = (
                ". A solver with a number for each item fits sets of one size, all in one call; Budget and Groups of "
                "setgrad.selector fit sets of any sizes, also in fit and in a search"
            )
        first, size = allowed.numbers[places[0]], part.layout.host_lengths[0]
        raise type(error)(f"set {first} (counted from 0), of {size} items: {error}{hint}") from None

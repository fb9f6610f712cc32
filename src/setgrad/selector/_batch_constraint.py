"""A constraint applied to a batch: which sets share a call of a solver, and how failures are reported."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import CombinatorialSolver, Status
from setgrad.errors import DataError, OptionError, ShapeError, SolverError, parameter
from setgrad.selector.constraints import AnyConstraint, Constraint, LinearConstraint
from setgrad.selector.constraints.all_of import as_constraint
from setgrad.sets import Choices, Sets, segment_sum, unpad

# Score of the padding of a short set: so far below 0 that no noise brings it above.
PADDING = -1e4
# Numbers in the rows of the sets whose subsets are compared at a time.
_MOST_NUMBERS = 2**22


@final
@dataclass(frozen=True, eq=False)
class SolverCall:
    """Sets that one call of a solver solves.

    Attributes:
        places: Their positions in the batch.
        items: Positions of their items in the values of the batch.
        sets: The same positions as a `Sets`, for padding.
        solver: The solver. It never raises for a set without a solution.
        policy: What its owner wants to happen for a set without a solution: "raise", "warn" or "mask".
    """

    places: np.ndarray
    items: Tensor
    sets: Sets
    solver: CombinatorialSolver
    policy: str

    def pad(self, theta: Tensor) -> Tensor:
        """Turn scores `(m, total)` of the batch into `(m, count, size)`, negated for a solver that minimises."""
        padded = self.sets.with_values(theta[:, self.items].T).padded(PADDING)[0].permute(2, 0, 1)
        return padded if self.solver.sense == "max" else -padded

    def unpad(self, points: Tensor) -> Tensor:
        """Turn points `(m, count, size)` into `(m, items)`."""
        return unpad(points.permute(1, 2, 0), self.sets).T


@final
@dataclass(frozen=True, eq=False)
class Attempt:
    """The answer of the solvers for a batch.

    Attributes:
        points: The best feasible subsets, booleans `(m, total)`; empty where a set has none.
        statuses: The worst `Status` of each set.
        policies: What the owner of the solver wants to happen for a set without a solution.
    """

    points: Tensor
    statuses: np.ndarray
    policies: np.ndarray


@final
@dataclass(frozen=True, eq=False)
class BatchConstraint:
    """A constraint on the sets of a batch.

    Attributes:
        constraint: The constraint.
        indices: For each set of the batch its index among the sets of the constraint.
    """

    constraint: Constraint
    indices: np.ndarray

    @staticmethod
    def of(constraint: AnyConstraint, sets: Sets) -> BatchConstraint:
        """Return the constraint on all sets.

        Raises:
            DataError: If it names an item that a set does not have.
            OptionError: If the object is not a constraint on the items of a set.
            ShapeError: If the constraint belongs to other sets.
        """
        constraint = as_constraint(constraint)
        if isinstance(constraint, CombinatorialSolver):
            if constraint.dims != 1:
                raise OptionError(
                    f"{type(constraint).__name__} chooses among arrays of {constraint.dims} axes; a constraint on "
                    "subsets chooses among the items of a set, which is one axis"
                )
            constraint = SolverConstraint(constraint)
        if not isinstance(constraint, Constraint):
            raise OptionError(
                f"{parameter('constraint')} must be a Constraint, a list of them, or a solver of setgrad.discrete, not "
                f"{type(constraint).__name__}"
            )
        constraint.check(sets.layout.host_lengths)
        return BatchConstraint(constraint, np.arange(len(sets)))

    @property
    def is_plain_solver(self) -> bool:
        """Whether the constraint is a solver, which may have a row of numbers for each set and then takes all sets."""
        return isinstance(self.constraint, SolverConstraint)

    def take(self, places: np.ndarray) -> BatchConstraint:
        """Return the constraint on the sets at these positions."""
        return BatchConstraint(self.constraint, self.indices[places])

    def calls(self, sets: Sets) -> Iterator[SolverCall]:
        """Yield the calls for a batch; sets without items are left out."""
        filled = np.flatnonzero(sets.layout.host_lengths)
        sizes = sets.layout.host_lengths[filled]
        keys = self.constraint.batch_keys(self.indices[filled], sizes)
        positions = sets.with_values(torch.arange(sets.layout.total, device=sets.device))
        for key in np.unique(keys):
            places = filled[keys == key]
            part = positions.take(places)
            with self._naming_set(part, places):
                solver = self.constraint.solver(self.indices[places], part.layout.longest)
            # A copy with the same call counter, because only this class knows the indices of the sets for a message.
            quiet = copy.copy(solver)
            object.__setattr__(quiet, "on_failure", "mask")
            yield SolverCall(places, part.values, part, quiet, solver.on_failure)

    def solve(self, scores: Tensor, sets: Sets) -> Tensor:
        """Return the feasible subsets with the largest sum of scores.

        Args:
            scores: Several scores of the items, `(m, total)`.
            sets: The batch.

        Returns:
            Booleans `(m, total)`.

        Raises:
            SolverError: If a set has no feasible subset, unless the solver has another policy.
        """
        attempt = self.attempt(scores, sets)
        self.report(attempt)
        return attempt.points

    def attempt(self, scores: Tensor, sets: Sets) -> Attempt:
        """Return what `solve` does, with the status of each set in place of an error."""
        out = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        statuses, policies = np.zeros(len(sets), dtype=np.int64), np.full(len(sets), "mask", dtype=object)
        for call in self.calls(sets):
            with self._naming_set(call.sets, call.places):
                result = call.solver.run(call.pad(scores.detach()))
            policies[call.places] = call.policy
            statuses[call.places] = result.status.amax(0).cpu().numpy()
            points = call.unpad(result.value)
            if not bool(((points == 0) | (points == 1)).all()):
                raise SolverError(
                    f"{type(call.solver).__name__} returned numbers other than 0 and 1; a constraint on subsets "
                    "decides for each item whether it is chosen"
                )
            out[:, call.items] = points.bool()
        return Attempt(out, statuses, policies)

    def allows(self, masks: Tensor, sets: Sets) -> Tensor:
        """Return which subsets the constraint allows.

        Args:
            masks: Subsets of the batch, booleans `(m, total)`.
            sets: The batch.

        Returns:
            Booleans `(m, b)`; true for a set without items.
        """
        if not isinstance(self.constraint, LinearConstraint):
            # The feasible subset with the largest overlap is the subset itself if that is feasible.
            attempt = self.attempt(2.0 * masks - 1.0, sets)
            wrong = segment_sum((attempt.points != masks).T.long(), sets).T
            return (wrong == 0) & sets.layout.to_device(attempt.statuses == Status.SOLVED)
        out = np.ones((len(masks), len(sets)), dtype=bool)
        for places, items, size in _of_one_size(sets):
            points = masks[:, items].reshape(len(masks), len(places), size).cpu().numpy()
            out[:, places] = self.constraint.allows(self.indices[places], points)
        return sets.layout.to_device(out)

    def is_hopeless(self, sets: Sets) -> np.ndarray:
        """Return for which sets one inequality of a linear constraint alone excludes every subset, `(b,)`."""
        out = np.zeros(len(sets), dtype=bool)
        if isinstance(self.constraint, LinearConstraint):
            for places, _, size in _of_one_size(sets):
                out[places] = self.constraint.is_hopeless(self.indices[places], size)
        return out

    def reason(self, place: int, size: int, status: Status) -> str:
        """Return why the set at this position has no allowed subset."""
        if not isinstance(self.constraint, LinearConstraint) or status != Status.INFEASIBLE:
            return f"{status.name}: {status.remedy}"
        index = int(self.indices[place])
        text = self.constraint.reason(index, self.constraint.fixed(np.array([index]), size))
        return "the constraints exclude each other" if text is None else text

    def choose(self, scores: Tensor, sets: Sets) -> Sets:
        """Return the feasible subset of each set with the largest sum of scores `(total,)`."""
        return sets.with_values(self.solve(scores[None], sets)[0])

    def check_feasible(self, subsets: Sets, name_of: Callable[[int], str] = "set {} (counted from 0)".format) -> None:
        """Check that the constraint allows these subsets.

        Args:
            subsets: A subset of each set.
            name_of: Returns the name of a set for the message from its index.

        Raises:
            DataError: If it does not allow one of them. The message names the set.
        """
        places = np.flatnonzero(~self.allows(subsets.values[None], subsets)[0].cpu().numpy())
        if len(places):
            raise DataError(
                f"the constraint does not allow the subset chosen from {name_of(int(self.indices[places[0]]))}; "
                f"{len(places)} of {len(subsets)} sets have such a subset. Loosen the constraint, or leave these sets "
                "out"
            )

    def check_shared(self, sets: Sets) -> None:
        """Check that a plain solver holds no numbers for each set, because training takes the sets in random order.

        Raises:
            ShapeError: If it does.
        """
        if not self.is_plain_solver:
            return
        lengths = sets.layout.host_lengths
        for size in np.unique(lengths[lengths > 0]):
            first = BatchConstraint(self.constraint, np.flatnonzero(lengths == size)[:1])
            first.solve(torch.zeros(1, int(size)), Sets.from_lengths(torch.zeros(int(size)), [int(size)]))

    def report(self, attempt: Attempt) -> None:
        """Raise or warn about sets without a solution, as the solvers want it.

        Raises:
            SolverError: If a solver wants an error.
        """
        failed = np.flatnonzero((attempt.statuses != Status.SOLVED) & (attempt.policies != "mask"))
        if not len(failed):
            return
        status = Status(int(attempt.statuses[failed[0]]))
        message = (
            f"set {self.indices[failed[0]]} (counted from 0) has no solution under the constraint "
            f"({status.name}; {len(failed)} of {len(attempt.statuses)} sets): {status.remedy}"
        )
        if "raise" in attempt.policies[failed]:
            raise SolverError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=7)

    @contextmanager
    def _naming_set(self, part: Sets, places: np.ndarray) -> Iterator[None]:
        """Add to an error of a solver which set it is about."""
        try:
            yield
        except (OptionError, ShapeError) as error:
            hint = ""
            if self.is_plain_solver and isinstance(error, ShapeError):
                hint = (
                    ". A solver with a number for each item fits sets of one size, all in one call; Budget and Groups "
                    "of setgrad.selector fit sets of any sizes, also in fit and in a search"
                )
            index, size = self.indices[places[0]], part.layout.host_lengths[0]
            raise error.with_context(f"set {index} (counted from 0), of {size} items: ", hint) from None


def _of_one_size(sets: Sets) -> Iterator[tuple[np.ndarray, Tensor, int]]:
    """Yield the positions of sets of one size, those of their items, and the size."""
    positions = sets.with_values(torch.arange(sets.layout.total, device=sets.device))
    lengths = sets.layout.host_lengths
    for size in np.unique(lengths[lengths > 0]).tolist():
        same = np.flatnonzero(lengths == size)
        # A constraint has at most about as many rows as a set has items.
        for places in np.array_split(same, -(-len(same) * size**2 // _MOST_NUMBERS)):
            yield places, positions.take(places).values, size


@final
@dataclass(frozen=True, eq=False)
class SolverConstraint(Constraint):
    """A solver of `setgrad.discrete` as a constraint; it is called once for each size of set."""

    inner: CombinatorialSolver

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return the solver."""
        return self.inner


def split_constraint(
    constraint: AnyConstraint,
    validation_constraint: AnyConstraint | None,
    choices: Choices,
    validation: Choices,
    train_indices: np.ndarray,
    validation_indices: np.ndarray | None,
) -> tuple[BatchConstraint, BatchConstraint]:
    """Return the constraints on the training and on the validation sets, and check all subsets.

    Args:
        constraint: The constraint on `choices`.
        validation_constraint: The constraint on separate validation sets, if it is another.
        choices: All sets that were passed to fit.
        validation: The validation sets.
        train_indices: Indices of the training sets in `choices`.
        validation_indices: Indices of the validation sets in `choices`; None if they are separate sets.

    Raises:
        DataError: If a subset is not allowed.
        OptionError: If separate validation sets need their own constraint.
        ShapeError: If a constraint belongs to other sets.
    """
    whole = _checked(constraint, choices)
    if validation_indices is not None:
        return whole.take(train_indices), whole.take(validation_indices)
    if validation_constraint is None and whole.constraint.count is not None:
        name = type(whole.constraint).__name__
        raise OptionError(
            f"{name} holds numbers for the training sets; give the validation sets their own "
            f"constraint: {parameter('validation')}=(sets, subsets, constraint)"
        )
    second = constraint if validation_constraint is None else validation_constraint
    return whole.take(train_indices), _checked(second, validation)


def _checked(constraint: AnyConstraint, choices: Choices) -> BatchConstraint:
    result = BatchConstraint.of(constraint, choices.sets)
    result.check_shared(choices.sets)
    result.check_feasible(choices.subsets)
    return result


def constraint_signature(constraint: BatchConstraint, sets: Sets) -> Tensor:
    """Return the choices under fixed random scores, which differ between constraints.

    Scores that are all positive show upper limits, scores that are all negative show lower ones.
    """
    scores = torch.randn(2, sets.layout.total, generator=torch.Generator().manual_seed(0)).to(sets.device)
    rows = (*scores, scores[0].abs(), -scores[1].abs())
    return torch.cat([constraint.choose(row, sets).values for row in rows])

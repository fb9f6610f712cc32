"""Constraints on the subsets of sets of any sizes: a budget, a limit for each group, a range of sizes, several at once.

Every one makes a solver of `setgrad.discrete` for sets of one size, or of about one size. The parameters of a
constraint belong to sets in their order: the numbers of the sets say which of them to take.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import CardinalityRange, CombinatorialSolver, IntegerProgram, Knapsack, PartitionMatroid
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.selector._exact_program import Exact
from setgrad.sets import Sets

# Whole numbers above this are no longer exact as floats.
_WHOLE = 2.0**53


class Constraint(abc.ABC):
    """Which subsets of sets are allowed: it makes the solvers that find the best of them.

    One of your own needs `solver` alone; `sizes` if it holds numbers for sets or items.
    """

    @abc.abstractmethod
    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """Solver for theta `(len(numbers), size)`: a row for each of the sets with these numbers."""

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the parameters belong to; None if any sets will do."""
        return None

    def together(self, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """A label for each set: those of equal labels are solved in one call. By default they are of equal size.

        Where sizes differ, short sets are filled up with items worth far less than nothing, which must not be chosen.
        """
        return sizes


class LinearConstraint(Constraint):
    """A constraint that can be written as lower <= A z <= upper."""

    @abc.abstractmethod
    def rows(self, numbers: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A `(len(numbers), rows, size)`, lower and upper `(len(numbers), rows)`; all these sets have that size."""


@final
@dataclass(frozen=True, eq=False)
class Budget(LinearConstraint):
    """The weights of the chosen items sum to at most the budget.

    Args:
        weights: What each item weighs or costs, 0 or more: a `Sets` of numbers aligned with the sets, or one list for
            each set. Whole numbers (cents) are solved by a table. Others take an integer program, and so do whole ones
            where the budget and the sum of the set's weights are both above 20,000 times their common divisor; that
            needs SciPy (`pip install "setgrad[solvers]"`).
        budget: One number, or one for each set.

    Example:
        >>> Budget([[3, 4, 5], [2, 2]], budget=[8, 2]).solver(np.array([0]), 3)(torch.tensor([[1.0, 1.0, 1.5]]))
        tensor([[1., 0., 1.]])
    """

    weights: Any
    budget: Any
    # Weights and rooms in steps of the set's own common divisor, and whether a table serves the set.
    _steps: Sets = field(init=False, repr=False)
    _room: np.ndarray = field(init=False, repr=False)
    _table: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = _aligned("weights", self.weights)
        wrong = ~(weights.values.isfinite() & (weights.values >= 0))
        if bool(wrong.any()):
            item = int(wrong.nonzero()[0])
            number = int(weights.layout.ids[item])
            raise DataError(
                f"the weight of item {item - int(weights.layout.host_offsets[number])} of set {number} is "
                f"{weights.values[item].item():g}; weights are finite numbers, 0 or more"
            )
        try:
            budget = np.asarray(self.budget, dtype=np.float64)
        except (TypeError, ValueError):
            raise ShapeError(f"budget must be one number, or one for each set, not {self.budget!r}") from None
        if budget.shape not in ((), (len(weights),)):
            raise ShapeError(
                f"budget has shape {budget.shape}; give one number, or one for each of {len(weights)} sets"
            )
        if np.isnan(budget).any():
            raise DataError("budget holds NaN; inf is no limit")
        budget = np.broadcast_to(budget, (len(weights),))
        values = weights.values.double().numpy()
        whole = _of_sets(np.logical_and, (values == np.round(values)) & (values < _WHOLE), weights)
        steps = np.where(np.repeat(whole, weights.layout.host_lengths), values, 0).astype(np.int64)
        divisor = np.maximum(_of_sets(np.gcd, steps, weights), 1)
        steps //= np.repeat(divisor, weights.layout.host_lengths)
        room = np.clip(np.floor(budget / divisor), -1, _of_sets(np.add, steps, weights)).astype(np.int64)
        made = {
            "weights": weights,
            "budget": budget,
            "_steps": weights.with_values(torch.from_numpy(steps)),
            "_room": room,
            "_table": whole & (room <= MOST_STEPS),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def sizes(self) -> np.ndarray:
        """One weight for each item."""
        return _sizes(self.weights)

    def together(self, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Tables take sets of sizes that differ by less than a factor of 2; programs are solved one by one anyway."""
        return np.where(self._table[numbers], _octave(sizes), -sizes)

    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """A knapsack for each set."""
        if self._table[numbers].all():
            return Knapsack(self._steps.take(numbers).padded()[0], budget=self._room[numbers])
        return Knapsack(self.weights.take(numbers).padded()[0], budget=self.budget[numbers])

    def rows(self, numbers: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row of weights."""
        A = self.weights.take(numbers).padded()[0].double().numpy()[:, None]
        # As much more as the rounding of each weight may make of it, in the numbers that the weights came in.
        kind = self.weights.dtype
        upper = self.budget[numbers][:, None] * (1 + (torch.finfo(kind).eps if kind.is_floating_point else 0))
        return A, np.full_like(upper, -np.inf), upper


@final
@dataclass(frozen=True, eq=False)
class Groups(LinearConstraint):
    """At most so many items of each group of a set.

    Args:
        labels: The group of each item: a `Sets` of whole numbers aligned with the sets, or one list of numbers or
            words for each set.
        at_most: One number for all groups, or numbers by label; groups that are not named have no limit.

    Example:
        >>> fair = Groups([["tea", "tea", "milk"]], at_most=1)
        >>> fair.solver(np.array([0]), 3)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[0., 1., 1.]])
    """

    labels: Any
    at_most: int | Mapping[Hashable, int] = 1
    _codes: Sets = field(init=False, repr=False)
    # The most items of each group, by code.
    _most: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.labels, Sets):
            lists = [part.tolist() for part in _aligned("labels", self.labels).to_list()]
        else:
            lists = [part.tolist() if hasattr(part, "tolist") else list(part) for part in _lists("labels", self.labels)]
        if any(_missing(label) for part in lists for label in part):
            raise DataError("labels hold a missing value (None or NaN); name the group of every item")
        if not all(isinstance(label, Hashable) for part in lists for label in part):
            raise DataError("labels hold a list in place of a word or a number; give each item one group")
        codes: dict[Hashable, int] = {}
        found = [codes.setdefault(label, len(codes)) for part in lists for label in part]
        limits = self.at_most if isinstance(self.at_most, Mapping) else dict.fromkeys(codes, self.at_most)
        for label, limit in limits.items():
            if not isinstance(limit, (int, np.integer)) or limit < 0:
                raise OptionError(f"at_most must be a whole number, 0 or more, not {limit!r} (group {label!r})")
            # No error, because new sets need not have every group.
            if label not in codes:
                warnings.warn(
                    f"at_most speaks of group {label!r}, which no item of these sets belongs to; check its spelling",
                    stacklevel=3,
                )
        most = np.array([limits.get(label, len(found)) for label in codes], dtype=np.int64)
        values = torch.tensor(found, dtype=torch.long)
        object.__setattr__(self, "_codes", Sets.from_lengths(values, [len(part) for part in lists]))
        object.__setattr__(self, "_most", most)

    @property
    def sizes(self) -> np.ndarray:
        """One label for each item."""
        return _sizes(self._codes)

    def together(self, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """What is worth nothing is not chosen, so sets of sizes that differ by less than a factor of 2 go together."""
        return _octave(sizes)

    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """The best of each group."""
        return PartitionMatroid(self._codes.take(numbers).padded()[0], at_most=self._most)

    def rows(self, numbers: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A row of zeros and ones for each group that one of these sets has."""
        seen, local = np.unique(self._codes.take(numbers).values.numpy(), return_inverse=True)
        A = (local.reshape(len(numbers), 1, size) == np.arange(len(seen))[:, None]).astype(np.float64)
        upper = np.broadcast_to(self._most[seen].astype(np.float64), A.shape[:2])
        return A, np.full_like(upper, -np.inf), upper


@final
@dataclass(frozen=True, eq=False)
class SizeRange(LinearConstraint):
    """At least `min_size` items of each set, and at most `max_size`.

    Args:
        min_size: The fewest; a set with fewer items than that is refused, unless it has none at all: that stays empty.
        max_size: The most; None is no limit.

    Example:
        >>> SizeRange(1, 2).solver(np.array([0]), 3)(torch.tensor([[-3.0, -1.0, -2.0]]))
        tensor([[0., 1., 0.]])
    """

    min_size: int = 0
    max_size: int | None = None

    def __post_init__(self) -> None:
        CardinalityRange(self.min_size, self.max_size)

    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """The same for all sets."""
        return CardinalityRange(self.min_size, self.max_size)

    def rows(self, numbers: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row of ones."""
        shape = (len(numbers), 1)
        upper = np.full(shape, np.inf if self.max_size is None else float(self.max_size))
        return np.ones((*shape, size)), np.full(shape, float(self.min_size)), upper


@final
@dataclass(frozen=True, eq=False)
class AllOf(Constraint):
    """Several constraints at once, as one integer program for each set (`pip install "setgrad[solvers]"`).

    Args:
        parts: Budgets (several, if you like), groups and size ranges.

    Example:
        >>> both = AllOf([Budget([[3, 4, 5]], budget=9), SizeRange(max_size=1)])
        >>> both.solver(np.array([0]), 3)(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[0., 1., 0.]])
    """

    parts: Sequence[LinearConstraint]

    def __post_init__(self) -> None:
        several = isinstance(self.parts, Sequence) and len(self.parts) > 0
        if not several or not all(isinstance(part, LinearConstraint) for part in self.parts):
            raise OptionError("AllOf takes a list of Budget, Groups and SizeRange, one or more")
        known = [part.sizes for part in self.parts if part.sizes is not None]
        if any(not np.array_equal(sizes, known[0]) for sizes in known):
            raise ShapeError("the parts of AllOf belong to different sets; give each of them the same sets, in order")

    @property
    def sizes(self) -> np.ndarray | None:
        """Those that the parts agree on."""
        return next((part.sizes for part in self.parts if part.sizes is not None), None)

    def solver(self, numbers: np.ndarray, size: int) -> CombinatorialSolver:
        """All rows in one program."""
        parts = [part.rows(numbers, size) for part in self.parts]
        A, lower, upper = (np.concatenate(pieces, 1) for pieces in zip(*parts, strict=True))
        return IntegerProgram(A, upper=upper, lower=lower, backend=Exact())


def _aligned(name: str, given: Any) -> Sets:
    """One number for each item, on the host."""
    # By way of NumPy, because torch would make single precision of Python's numbers.
    sets = (
        given
        if isinstance(given, Sets)
        else Sets.from_list([p if isinstance(p, Tensor) else np.asarray(p) for p in _lists(name, given)])
    )
    values = sets.values.detach().cpu()
    if values.shape[1:] not in ((), (1,)) and len(values):
        raise ShapeError(f"{name} holds items of shape {tuple(values.shape[1:])}; give one number for each item")
    return Sets(values.reshape(len(values)), sets.layout.to("cpu"))


def _lists(name: str, given: Any) -> list[Any]:
    """One list for each set, or an error."""
    parts = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(part, Iterable) for part in parts):
        raise ShapeError(f"{name} must be one list for each set, or a Sets aligned with the sets, not {given!r}")
    return parts


def _missing(label: Any) -> bool:
    """None, NaN and what pandas has for them, which is not even sure to differ from itself."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def _sizes(sets: Sets) -> np.ndarray:
    return sets.layout.host_lengths


def _octave(sizes: np.ndarray) -> np.ndarray:
    """The next power of 2."""
    return 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)


def _of_sets(operation: np.ufunc, values: np.ndarray, sets: Sets) -> np.ndarray:
    """Reduce the values of each set; a set without items gives what the operation starts from."""
    start = 1 if operation is np.logical_and else 0
    out = np.full(len(sets), start, dtype=values.dtype)
    filled = sets.layout.host_lengths > 0
    if filled.any():
        out[filled] = operation.reduceat(values, sets.layout.host_offsets[:-1][filled])
    return out

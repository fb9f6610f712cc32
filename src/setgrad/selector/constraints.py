"""Constraints on subsets: a budget, a limit for each group, a range of sizes, or several of them at once.

A constraint returns a solver of `setgrad.discrete` for a group of sets of the same or of similar size. Its numbers
belong to the sets in their order; the indices of the sets tell which of them to use.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad import discrete
from setgrad.discrete import CardinalityRange, CombinatorialSolver, IntegerProgram, Knapsack, PartitionMatroid
from setgrad.discrete.solvers._cuts import Cut, cover_cut, solve_with_cuts
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import DataError, OptionError, ShapeError, parameter
from setgrad.sets import Sets

# Larger whole numbers are not exact as floats.
_MAX_EXACT = 2.0**53
_EPSILON = np.finfo(np.float64).eps


class Constraint(abc.ABC):
    """A constraint on subsets: it returns solvers for the best feasible subset.

    A subclass needs `solver`, and `sizes` if it holds numbers for sets or items.
    """

    @abc.abstractmethod
    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for scores `(len(indices), size)`, with one row for each of the sets with these indices."""

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the numbers belong to; None if the constraint fits any sets."""
        return None

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return a key for each set: sets with the same key are solved in one call. By default the key is the size.

        If sizes under one key differ, short sets are padded with items of very low score, which must not be chosen.
        """
        return sizes


class LinearConstraint(Constraint):
    """A constraint of the form lower <= A z <= upper."""

    @abc.abstractmethod
    def rows(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return A `(len(indices), rows, size)`, and lower and upper `(len(indices), rows)`, for sets of this size."""


@final
@dataclass(frozen=True, eq=False)
class Budget(LinearConstraint):
    """The costs of the chosen items sum to at most the budget.

    Whole costs (cents) are solved by dynamic programming. Other costs need an integer program, and so do whole ones if
    the budget and the total cost of a set are both above 20,000 times their common divisor; that needs SciPy
    (`pip install "setgrad[solvers]"`).

    Args:
        costs: The cost of each item, at least 0: a `Sets` of numbers aligned with the sets, or one list for each set.
        budget: One number, or one for each set.

    Raises:
        DataError: If a cost is negative or not finite, or the budget is NaN.
        ShapeError: If costs or budget have the wrong shape.

    Examples:
        >>> Budget([[3, 4, 5], [2, 2]], budget=[8, 2]).solver(np.array([0]), 3)(torch.tensor([[1.0, 1.0, 1.5]]))
        tensor([[1., 0., 1.]])
    """

    costs: Any
    budget: Any
    # Costs and budgets in units of the common divisor of a set, and whether dynamic programming can solve the set.
    _units: Sets = field(init=False, repr=False)
    _budget_units: np.ndarray = field(init=False, repr=False)
    _is_whole: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        costs = _as_sets("costs", self.costs)
        wrong = ~(costs.values.isfinite() & (costs.values >= 0))
        if bool(wrong.any()):
            item = int(wrong.nonzero()[0])
            number = int(costs.layout.ids[item])
            raise DataError(
                f"the cost of item {item - int(costs.layout.host_offsets[number])} of set {number} is "
                f"{costs.values[item].item():g}; costs are finite numbers of at least 0"
            )
        name = parameter("budget")
        try:
            budget = np.asarray(self.budget, dtype=np.float64)
        except (TypeError, ValueError):
            raise ShapeError(f"{name} must be one number, or one for each set, not {self.budget!r}") from None
        if budget.shape not in ((), (len(costs),)):
            raise ShapeError(f"{name} has shape {budget.shape}; give one number, or one for each of {len(costs)} sets")
        if np.isnan(budget).any():
            raise DataError(f"{name} holds NaN; use inf for no limit")
        budget = np.broadcast_to(budget, (len(costs),))
        values = costs.values.double().numpy()
        whole = _reduce(np.logical_and, (values == np.round(values)) & (values < _MAX_EXACT), costs)
        units = np.where(np.repeat(whole, costs.layout.host_lengths), values, 0).astype(np.int64)
        divisor = np.maximum(_reduce(np.gcd, units, costs), 1)
        units //= np.repeat(divisor, costs.layout.host_lengths)
        budget_units = np.clip(np.floor(budget / divisor), -1, _reduce(np.add, units, costs)).astype(np.int64)
        derived = {
            "costs": costs,
            "budget": budget,
            "_units": costs.with_values(torch.from_numpy(units)),
            "_budget_units": budget_units,
            "_is_whole": whole & (budget_units <= MOST_STEPS),
        }
        for attribute, value in derived.items():
            object.__setattr__(self, attribute, value)

    @property
    def sizes(self) -> np.ndarray:
        """Number of costs of each set."""
        return self.costs.layout.host_lengths

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Group sets whose sizes differ by less than a factor of 2; integer programs are solved one by one anyway."""
        return np.where(self._is_whole[indices], _next_power_of_2(sizes), -sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a knapsack solver."""
        if self._is_whole[indices].all():
            return Knapsack(self._units.take(indices).padded()[0], budget=self._budget_units[indices])
        return Knapsack(self.costs.take(indices).padded()[0], budget=self.budget[indices])

    def rows(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return one row with the costs."""
        A = self.costs.take(indices).padded()[0].double().numpy()[:, None]
        # Larger by the rounding error of the costs in their own dtype.
        dtype = self.costs.dtype
        upper = self.budget[indices][:, None] * (1 + (torch.finfo(dtype).eps if dtype.is_floating_point else 0))
        return A, np.full_like(upper, -np.inf), upper


@final
@dataclass(frozen=True, eq=False)
class Groups(LinearConstraint):
    """At most `at_most` items of each group of a set.

    Args:
        labels: The group of each item: a `Sets` of whole numbers aligned with the sets, or one list of numbers or
            strings for each set.
        at_most: One number for all groups, or numbers by label; other groups then have no limit.

    Raises:
        DataError: If a label is missing or is a list.
        OptionError: If a limit is not a whole number of at least 0.
        ShapeError: If labels have the wrong shape.

    Examples:
        >>> fair = Groups([["tea", "tea", "milk"]], at_most=1)
        >>> fair.solver(np.array([0]), 3)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[0., 1., 1.]])
    """

    labels: Any
    at_most: int | Mapping[Hashable, int] = 1
    _codes: Sets = field(init=False, repr=False)
    # The limit of each group by its code.
    _limits: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.labels, Sets):
            lists = [part.tolist() for part in _as_sets("labels", self.labels).to_list()]
        else:
            lists = [p.tolist() if hasattr(p, "tolist") else list(p) for p in _as_lists("labels", self.labels)]
        name = parameter("labels")
        if any(_is_missing(label) for part in lists for label in part):
            raise DataError(f"{name} hold a missing value (None or NaN); give every item a group")
        if not all(isinstance(label, Hashable) for part in lists for label in part):
            raise DataError(f"{name} hold a list in place of a string or a number; give every item one group")
        codes: dict[Hashable, int] = {}
        item_codes = [codes.setdefault(label, len(codes)) for part in lists for label in part]
        limits = self.at_most if isinstance(self.at_most, Mapping) else dict.fromkeys(codes, self.at_most)
        for label, limit in limits.items():
            if not isinstance(limit, (int, np.integer)) or limit < 0:
                raise OptionError(
                    f"{parameter('at_most')} must be a whole number of at least 0, not {limit!r} (group {label!r})"
                )
            # No error, because new sets need not have every group.
            if label not in codes:
                warnings.warn(
                    f"at_most has a limit for group {label!r}, which no item of these sets belongs to; check its "
                    "spelling",
                    stacklevel=3,
                )
        values = torch.tensor(item_codes, dtype=torch.long)
        by_code = np.array([limits.get(label, len(item_codes)) for label in codes], dtype=np.int64)
        object.__setattr__(self, "_codes", Sets.from_lengths(values, [len(part) for part in lists]))
        object.__setattr__(self, "_limits", by_code)

    @property
    def sizes(self) -> np.ndarray:
        """Number of labels of each set."""
        return self._codes.layout.host_lengths

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Group sets whose sizes differ by less than a factor of 2."""
        return _next_power_of_2(sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for the best items of each group."""
        return PartitionMatroid(self._codes.take(indices).padded()[0], at_most=self._limits)

    def rows(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return one row of zeros and ones for each group of these sets."""
        present, local = np.unique(self._codes.take(indices).values.numpy(), return_inverse=True)
        A = (local.reshape(len(indices), 1, size) == np.arange(len(present))[:, None]).astype(np.float64)
        upper = np.broadcast_to(self._limits[present].astype(np.float64), A.shape[:2])
        return A, np.full_like(upper, -np.inf), upper


@final
@dataclass(frozen=True, eq=False)
class SizeRange(LinearConstraint):
    """At least `min_size` and at most `max_size` items of each set; a set without items stays empty.

    Args:
        min_size: The smallest number of items. A set with fewer items is an error.
        max_size: The largest number of items; None for no limit.

    Raises:
        OptionError: If the range is empty or negative.

    Examples:
        >>> SizeRange(1, 2).solver(np.array([0]), 3)(torch.tensor([[-3.0, -1.0, -2.0]]))
        tensor([[0., 1., 0.]])
    """

    min_size: int = 0
    max_size: int | None = None

    def __post_init__(self) -> None:
        CardinalityRange(self.min_size, self.max_size)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for the best items.

        Raises:
            OptionError: If a set has fewer than `min_size` items.
        """
        if size < self.min_size:
            raise OptionError(f"cannot choose {self.min_size} of {size} items; lower {parameter('min_size')}")
        return CardinalityRange(self.min_size, self.max_size)

    def rows(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return one row of ones."""
        shape = (len(indices), 1)
        upper = np.full(shape, np.inf if self.max_size is None else float(self.max_size))
        return np.ones((*shape, size)), np.full(shape, float(self.min_size)), upper


@final
@dataclass(frozen=True, eq=False)
class AllOf(Constraint):
    """Several constraints at once, as one integer program for each set (`pip install "setgrad[solvers]"`).

    Args:
        parts: Budgets, groups and size ranges, several of a kind if needed.

    Raises:
        OptionError: If a part is not a `LinearConstraint`.
        ShapeError: If the parts belong to different sets.

    Examples:
        >>> both = AllOf([Budget([[3, 4, 5]], budget=9), SizeRange(max_size=1)])
        >>> both.solver(np.array([0]), 3)(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[0., 1., 0.]])
    """

    parts: Sequence[LinearConstraint]

    def __post_init__(self) -> None:
        is_list = isinstance(self.parts, Sequence) and len(self.parts) > 0
        if not is_list or not all(isinstance(part, LinearConstraint) for part in self.parts):
            raise OptionError("AllOf takes a list of at least one Budget, Groups or SizeRange")
        known = [part.sizes for part in self.parts if part.sizes is not None]
        if any(not np.array_equal(sizes, known[0]) for sizes in known):
            raise ShapeError("the parts of AllOf belong to different sets; give each of them the same sets, in order")

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the parts belong to."""
        return next((part.sizes for part in self.parts if part.sizes is not None), None)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return an integer program with the rows of all parts."""
        parts = [part.rows(indices, size) for part in self.parts]
        A, lower, upper = (np.concatenate(arrays, 1) for arrays in zip(*parts, strict=True))
        return IntegerProgram(A, upper=upper, lower=lower, backend=ExactBackend())


def _as_sets(name: str, values: Any) -> Sets:
    """Return one number for each item, on the CPU."""
    # Through NumPy, because torch would turn Python floats into single precision.
    sets = (
        values
        if isinstance(values, Sets)
        else Sets.from_list([p if isinstance(p, Tensor) else np.asarray(p) for p in _as_lists(name, values)])
    )
    numbers = sets.values.detach().cpu()
    if numbers.shape[1:] not in ((), (1,)) and len(numbers):
        raise ShapeError(
            f"{parameter(name)} hold items of shape {tuple(numbers.shape[1:])}; give one number for each item"
        )
    return Sets(numbers.reshape(len(numbers)), sets.layout.to("cpu"))


def _as_lists(name: str, values: Any) -> list[Any]:
    parts = list(values) if isinstance(values, Iterable) else [values]
    if not all(isinstance(part, Iterable) for part in parts):
        raise ShapeError(
            f"{parameter(name)} must be one list for each set, or a Sets aligned with the sets, not {values!r}"
        )
    return parts


def _is_missing(label: Any) -> bool:
    # NaN differs from itself; comparing pandas.NA raises.
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def _next_power_of_2(sizes: np.ndarray) -> np.ndarray:
    return 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)


def _reduce(operation: np.ufunc, values: np.ndarray, sets: Sets) -> np.ndarray:
    """Reduce the values of each set; a set without items gives the identity of the operation."""
    out = np.full(len(sets), 1 if operation is np.logical_and else 0, dtype=values.dtype)
    filled = sets.layout.host_lengths > 0
    if filled.any():
        out[filled] = operation.reduceat(values, sets.layout.host_offsets[:-1][filled])
    return out


@final
@dataclass(frozen=True)
class ExactBackend(discrete.Backend):
    """Solves binary programs by HiGHS; points that break a constraint within its tolerance are cut off.

    Only the rounding of the sum itself is allowed: three times 0.1 is more than 0.3 in floats, and is feasible.
    """

    def find(self, program: discrete.Program) -> tuple[np.ndarray | None, discrete.Status]:
        """Solve again with more cuts until the point is feasible."""
        return solve_with_cuts(discrete.HiGHS(time_limit=self.time_limit), program, partial(_find_cut, program))


def _find_cut(program: discrete.Program, point: np.ndarray) -> Cut | None:
    """Return an inequality that cuts off a point that breaks a constraint; None if it breaks none."""
    rounding = len(point) * _EPSILON
    for row, lower, upper in zip(program.A, program.lower, program.upper, strict=True):
        slack = rounding * (np.abs(row) @ point)
        if (row >= 0).all():
            cut = cover_cut(row, upper + rounding * abs(upper), point)
            if cut is not None:
                return cut
            upper = np.inf
        if not lower - slack <= row @ point <= upper + slack:
            # Every other binary point differs in at least one entry.
            return 2 * point - 1, point.sum() - 1
    return None

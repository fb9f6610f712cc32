"""Limits for each group of items."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from setgrad.discrete import CombinatorialSolver, PartitionMatroid
from setgrad.errors import DataError, OptionError, parameter
from setgrad.selector.constraints._base import FixedItems, LinearConstraint
from setgrad.selector.constraints._input import as_lists, as_sets, next_power_of_2
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints._solvers import GroupLimits
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Groups(LinearConstraint):
    """At least `at_least` and at most `at_most` items of each group of a set; a set without items stays empty.

    Args:
        labels: The group of each item: a `Sets` of whole numbers aligned with the sets, or one list of numbers or
            strings for each set.
        at_most: One number for all groups, or numbers by label; other groups then have no limit. None for no limit;
            if `at_least` is left out too, 1.
        at_least: One number for all groups that a set has, or numbers by label. A set without items of a group that
            is named here with a number above 0 has no allowed subset.

    Raises:
        DataError: If a label is missing or is a list.
        OptionError: If a limit is not a whole number of at least 0, or a minimum is above the maximum.
        ShapeError: If labels have the wrong shape.

    Examples:
        >>> fair = Groups([["tea", "tea", "milk"]], at_most=1)
        >>> fair.solver(np.array([0]), 3)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[0., 1., 1.]])
        >>> Groups([["tea", "tea", "milk"]], at_least={"tea": 1}).solver(np.array([0]), 3)(-torch.ones(1, 3))
        tensor([[1., 0., 0.]])
    """

    labels: Any
    at_most: int | Mapping[Hashable, int] | None = None
    at_least: int | Mapping[Hashable, int] = 0
    _codes: Sets = field(init=False, repr=False)
    # The label of each code, the limits of each group by its code, and whether sets without its items need some.
    _names: list[Hashable] = field(init=False, repr=False)
    _least: np.ndarray = field(init=False, repr=False)
    _most: np.ndarray = field(init=False, repr=False)
    _is_required: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lists = _label_lists(self.labels)
        codes: dict[Hashable, int] = {}
        item_codes = [codes.setdefault(label, len(codes)) for part in lists for label in part]
        is_bare = self.at_most is None and not isinstance(self.at_least, Mapping) and self.at_least == 0
        at_most = 1 if is_bare else self.at_most
        most = _by_label("at_most", {} if at_most is None else at_most, codes)
        least = _by_label("at_least", self.at_least, codes)
        named = [label for label in least if isinstance(self.at_least, Mapping) and least[label] > 0]
        for label in named:
            # A group of no item has a code too, so that the sets that lack it are found.
            codes.setdefault(label, len(codes))
        for label in codes:
            if least.get(label, 0) > most.get(label, np.inf):
                raise OptionError(
                    f"group {label!r} needs at least {least[label]} and at most {most[label]} items; lower "
                    f"{parameter('at_least')} or raise {parameter('at_most')}"
                )
        derived = {
            "at_most": at_most,
            "_codes": Sets.from_lengths(torch.tensor(item_codes, dtype=torch.long), [len(part) for part in lists]),
            "_names": list(codes),
            "_least": np.array([least.get(label, 0) for label in codes], dtype=np.int64),
            "_most": np.array([most.get(label, len(item_codes)) for label in codes], dtype=np.int64),
            "_is_required": np.array([label in named for label in codes], dtype=bool),
        }
        for attribute, value in derived.items():
            object.__setattr__(self, attribute, value)

    @property
    def sizes(self) -> np.ndarray:
        """Number of labels of each set."""
        return self._codes.layout.host_lengths

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Group sets whose sizes differ by less than a factor of 2, if no minimum could choose the padding."""
        return sizes if self._least.any() else next_power_of_2(sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for the best items of each group."""
        if self._least.any():
            return self.solver_beside(indices, size, FixedItems.none(len(indices), size))
        return PartitionMatroid(self._codes.take(indices).padded()[0], at_most=self._most)

    def solver_beside(self, indices: np.ndarray, size: int, fixed: FixedItems) -> CombinatorialSolver:
        """Return a solver for the best of the other items of each group."""
        present, groups = self._groups(indices, size)
        least, most = (torch.from_numpy(part) for part in self._limits(present))
        return GroupLimits(groups, least, most, torch.from_numpy(fixed.chosen), torch.from_numpy(fixed.excluded))

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row of zeros and ones for each group of a set."""
        present, groups = self._groups(indices, size)
        A = (groups.numpy()[:, None] == np.arange(present.shape[1])[:, None]).astype(np.float64)
        least, most = self._limits(present)
        return Rows(A, least.astype(np.float64), most.astype(np.float64))

    def allows(self, indices: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return which subsets are allowed, by counting: rows would take the square of the size of a set."""
        present, groups = self._groups(indices, points.shape[-1])
        least, most = self._limits(present)
        counts = _count(groups, points, present.shape[1])
        return np.asarray(((least <= counts) & (counts <= most)).all(-1))

    def is_hopeless(self, indices: np.ndarray, size: int) -> np.ndarray:
        """Return which sets have too few items of a group."""
        present, groups = self._groups(indices, size)
        counts = _count(groups, np.ones((1, len(indices), size), dtype=bool), present.shape[1])[0]
        return np.asarray((counts < self._limits(present)[0]).any(-1))

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Tell which group has too few items, or too many that must be chosen."""
        codes = self._codes[index].numpy()
        for code in dict.fromkeys([*codes.tolist(), *np.flatnonzero(self._is_required).tolist()]):
            name, least, most, inside = self._names[code], self._least[code], self._most[code], codes == code
            has, free = int(inside.sum()), int((inside & ~fixed.excluded[0]).sum())
            must = int((inside & fixed.chosen[0]).sum())
            if has < least:
                return f"group {name!r} needs at least {least} items and has {has}"
            if free < least:
                return f"group {name!r} needs at least {least} items, and only {free} of its {has} may be chosen"
            if must > most:
                return f"{must} items of group {name!r} must be chosen, and it may have at most {most}"
        return None

    def _groups(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, torch.Tensor]:
        """Return the codes of the groups of each set, `(sets, groups)`, and which of them each item has.

        Sets with fewer groups are filled up with -1, a group without items and without limits.
        """
        codes = self._codes.take(indices).values.numpy().reshape(len(indices), size)
        required = np.flatnonzero(self._is_required)
        local = [np.union1d(part, required) for part in codes]
        present = np.full((len(indices), max(map(len, local), default=0)), -1, dtype=np.int64)
        groups = np.empty_like(codes)
        for number, names in enumerate(local):
            present[number, : len(names)] = names
            groups[number] = np.searchsorted(names, codes[number])
        return present, torch.from_numpy(groups)

    def _limits(self, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.append(self._least, 0)[present], np.append(self._most, len(self._codes.values))[present]


def _count(groups: torch.Tensor, points: np.ndarray, total: int) -> np.ndarray:
    """Return how many items of each group subsets `(m, b, size)` have, `(m, b, total)`."""
    counts = torch.zeros(*points.shape[:2], total, dtype=torch.long)
    return counts.scatter_add(-1, groups.expand(points.shape), torch.from_numpy(points).long()).numpy()


def _label_lists(labels: Any) -> list[list[Any]]:
    if isinstance(labels, Sets):
        lists = [part.tolist() for part in as_sets("labels", labels).to_list()]
    else:
        lists = [part.tolist() if hasattr(part, "tolist") else list(part) for part in as_lists("labels", labels)]
    name = parameter("labels")
    if any(_is_missing(label) for part in lists for label in part):
        raise DataError(f"{name} hold a missing value (None or NaN); give every item a group")
    if not all(isinstance(label, Hashable) for part in lists for label in part):
        raise DataError(f"{name} hold a list in place of a string or a number; give every item one group")
    return lists


def _by_label(name: str, limits: int | Mapping[Hashable, int], codes: dict[Hashable, int]) -> dict[Hashable, int]:
    """Return the limits by label."""
    by_label = dict(limits) if isinstance(limits, Mapping) else dict.fromkeys(codes, limits)
    for label, limit in by_label.items():
        if not isinstance(limit, (int, np.integer)) or limit < 0:
            raise OptionError(
                f"{parameter(name)} must be a whole number of at least 0, not {limit!r} (group {label!r})"
            )
        # No error, because new sets need not have every group.
        if label not in codes:
            warnings.warn(
                f"{name} has a limit for group {label!r}, which no item of these sets belongs to; check its spelling",
                stacklevel=4,
            )
    return by_label


def _is_missing(label: Any) -> bool:
    # NaN differs from itself; comparing pandas.NA raises.
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True

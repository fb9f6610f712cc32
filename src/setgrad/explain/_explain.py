"""Explains the choices from some sets: puts the parts together, in the ids of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import OptionError, parameter
from setgrad.explain._subject import AbstractSubject, ItemColumn, find_columns
from setgrad.explain.counterfactuals import Swaps, best_swaps, changing_additions, smallest_changes
from setgrad.explain.effects import column_effects
from setgrad.explain.explanation import EFFECT, Explanation
from setgrad.explain.gains import find_explained, gains_at
from setgrad.explain.interactions import differences_of
from setgrad.explain.shapley import shapley_of
from setgrad.explain.steps import steps_of
from setgrad.sets import Sets


@final
@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """What to explain; the arguments of `SubsetSelector.explain`.

    Raises:
        OptionError: If a number is out of its range.
    """

    near: int = 5
    columns: Iterable[str] | None = None
    vary: Iterable[str] = ()
    replacements: int | None = None
    random_state: int = 0

    def __post_init__(self) -> None:
        for name, least in (("near", 0), ("replacements", 1)):
            number = getattr(self, name)
            if number is None and name == "replacements":
                continue
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise OptionError(f"{parameter(name)} must be a whole number of at least {least}, not {number!r}")


@final
@dataclass(frozen=True, eq=False)
class Names:
    """How the caller calls sets and items.

    Attributes:
        set_ids: One id for each set.
        item_ids: One id for each item, in the order of the sets.
        set_name: Name of the column of set ids.
        item_name: Name of the column of item ids.
    """

    set_ids: Sequence[Any]
    item_ids: Sequence[Any] | np.ndarray
    set_name: str = "set"
    item_name: str = "item"


@torch.no_grad()
def explain_choice(
    subject: AbstractSubject,
    sets: Sets,
    subsets: Sets,
    options: ExplainOptions,
    names: Names,
    *,
    fixed: Tensor,
    is_choice: bool,
    kind: Any = None,
) -> Explanation:
    """Return why the subsets are what they are.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: The chosen items.
        options: What to explain.
        names: Ids of sets and items.
        fixed: Items that are known to be in or out, `(total,)`.
        is_choice: Whether the subsets are what the subject chooses, so that it can be asked what would change them.
        kind: The table of the caller.
    """
    shown = find_columns(subject.columns, options.columns, "columns")
    varied = [_check_number(column) for column in find_columns(subject.columns, options.vary, "vary")]
    if varied and not is_choice:
        raise OptionError(f"{parameter('vary')} asks what would change the choice of the model; leave out the subsets")
    gains = gains_at(subject, sets, subsets)
    explained = find_explained(gains, subsets, fixed, options.near)
    rows = explained.nonzero()[:, 0]
    shares = shapley_of(subject.bind, sets, subsets.values, random_state=options.random_state)
    steps = steps_of(subject.bind, sets, subsets.values)
    effects = column_effects(subject, sets, subsets.values, rows, shown, options.replacements)
    table = _Table(sets, names)
    picked = rows.cpu().numpy()
    items = {
        **table.ids(picked),
        "chosen": subsets.values[rows].cpu().numpy(),
        "gain": gains.values[rows].cpu().numpy(),
        "shapley": shares.values.values[rows].cpu().numpy(),
        "shapley_error": shares.errors.values[rows].cpu().numpy(),
        "step": steps.steps.values[rows].cpu().numpy(),
        "step_gain": steps.gains.values[rows].cpu().numpy(),
        **{EFFECT + column.name: effects[:, index].numpy() for index, column in enumerate(shown)},
    }
    differences = differences_of(subject.bind, sets, subsets.values, explained)
    swaps = best_swaps(subject, sets, subsets.values, explained, fixed)
    movable = rows[~fixed[rows]] if is_choice else rows[:0]
    changes = smallest_changes(subject, sets, subsets.values, movable, varied)
    additions = changing_additions(subject, sets, subsets.values, movable)
    first, second, values = (part.numpy() for part in (differences.first, differences.second, differences.values))
    order = np.lexsort((-np.abs(values), table.ids_of_sets[first]))
    first, second, values = first[order], second[order], values[order]
    return Explanation(
        items=items,
        pairs={**table.ids(first), "other": table.items(second), "interaction": values},
        swaps=_swap_columns(table, swaps),
        changes={
            **table.ids(changes.items),
            "column": _objects([column.name for column in varied])[changes.columns],
            "value": changes.before,
            "new_value": changes.after,
        },
        additions={
            **table.ids(additions.items),
            "copy_of": table.items(additions.copied),
            "flips": additions.changed,
        },
        set_name=table.set_name,
        item_name=table.item_name,
        kind=kind,
    )


# Columns of the tables that no id can be called like.
_TAKEN = {
    *("chosen", "gain", "shapley", "shapley_error", "other", "interaction", "difference", "column", "value"),
    *("new_value", "copy_of", "flips", "shapley_error", "step", "step_gain"),
}


@final
class _Table:
    """Writes rows of items as the ids of the caller."""

    def __init__(self, sets: Sets, names: Names) -> None:
        self.set_name = _free_name(names.set_name, _TAKEN)
        self.item_name = _free_name(names.item_name, _TAKEN | {self.set_name})
        self.ids_of_sets = sets.layout.ids.cpu().numpy()
        self._sets, self._items = _objects(names.set_ids), _objects(names.item_ids)

    def ids(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of set and item."""
        return {self.set_name: self._sets[self.ids_of_sets[rows]], self.item_name: self.items(rows)}

    def items(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of items."""
        found: np.ndarray = self._items[rows]
        return found


def _swap_columns(table: _Table, swaps: Swaps) -> Mapping[str, np.ndarray]:
    return {**table.ids(swaps.items), "other": table.items(swaps.partners), "difference": swaps.differences}


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken or name.startswith(EFFECT):
        name = f"id of {name}"
    return name


def _objects(values: Any) -> np.ndarray:
    """Return ids as an array of plain Python objects."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def _check_number(column: ItemColumn) -> ItemColumn:
    if not column.is_number:
        raise OptionError(f"{parameter('vary')} takes columns of numbers, and {column.name!r} is not one")
    return column

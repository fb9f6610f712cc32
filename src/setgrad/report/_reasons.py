"""Why items were chosen: which columns matter, how the gains add up, and which items go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from setgrad._text_table import TextTable, percent
from setgrad.explain import gain_steps, second_differences
from setgrad.explain._texts import signed
from setgrad.report._bars import Bar, bars_between
from setgrad.report._scores import Evaluation
from setgrad.report._set_view import ExtremeSets, has_names, name_of_set, names_of_items, readable
from setgrad.selector import SubsetSelector
from setgrad.sets import Sets, subset_sizes

# Importance chooses again for each column and repeat, from sets with so many items at most, but at least so many sets.
_MOST_ITEMS, _LEAST_SETS, _REPEATS = 4_000, 20, 3
# How many columns, steps and pairs are shown.
_COLUMNS, _STEPS, _PAIRS = 25, 20, 8
# Rounding makes interactions of this size.
_NOISE = 1e-9
# Subsets with more items have too many pairs.
_MOST_PICKS = 60


@final
@dataclass(frozen=True, eq=False)
class Importances:
    """Bars of the most important columns, and a note on how they were measured."""

    bars: list[Bar]
    note: str


@final
@dataclass(frozen=True, eq=False)
class Waterfall:
    """The gains of the chosen items of one set, which add up to their value."""

    name: str
    bars: list[Bar]


def importances(selector: SubsetSelector, evaluation: Evaluation) -> Importances | None:
    """Return how much the score falls without each column; None if the columns have no names or there are no items."""
    if selector.table_ is None or not evaluation.choices.sets.layout.total:
        return None
    numbers = _some_sets(evaluation.choices.sets)
    sets, subsets = (part.take(numbers) for part in evaluation.choices)
    found = selector.importance(sets, subsets, repeats=_REPEATS)
    rows = [
        (readable(name), f"{100 * drop:+.2f} ± {100 * error:.2f}", 0.0, float(drop))
        for name, drop, error in zip(found.columns, found.drops, found.errors, strict=True)
    ][:_COLUMNS]
    if not rows:
        return None
    more = len(found.columns) - len(rows)
    note = (
        f"By how many points the mean Jaccard score of {100 * found.score:.2f} falls when the values of a column are "
        f"exchanged among the items of each set, with standard errors ({_REPEATS} times, {len(sets)} sets). A column "
        "with one value in each set is exchanged among the sets."
    )
    return Importances(
        bars_between(rows), note + (f" {more} columns with smaller values are not shown." if more else "")
    )


def waterfalls(selector: SubsetSelector, evaluation: Evaluation, extremes: ExtremeSets) -> list[Waterfall]:
    """Return the steps from the empty subset to the chosen one, for the worst and the best set with chosen items."""
    choices, picks = evaluation.choices, evaluation.picks
    sizes = subset_sizes(picks)
    filled = ([number for number in numbers if sizes[number] > 0] for numbers in (extremes.worst, extremes.best))
    numbers = [number for part in filled for number in part[:1]]
    if not numbers or not has_names(choices):
        return []
    found = gain_steps(selector.function_, _precise(choices.sets.take(numbers)), picks.take(numbers))
    return [
        Waterfall(
            f"{name_of_set(choices, number)}, Jaccard {percent(float(evaluation.jaccard[number]))}",
            _steps(names_of_items(choices, number), found.steps[place].cpu().numpy(), found.gains[place].cpu().numpy()),
        )
        for place, number in enumerate(numbers)
    ]


def _steps(names: Sequence[str], steps: np.ndarray, gains: np.ndarray) -> list[Bar]:
    order = np.argsort(steps, kind="stable")[int((steps == 0).sum()) :]
    ends = np.cumsum(gains[order])
    rows = [
        (names[item], signed(gain), end - gain, end)
        for item, gain, end in zip(order[:_STEPS], gains[order], ends, strict=False)
    ]
    if len(order) > _STEPS:
        rows.append((f"{len(order) - _STEPS} more items", signed(ends[-1] - rows[-1][3]), rows[-1][3], ends[-1]))
    whole = "together"
    return bars_between([*rows, (whole, signed(ends[-1]), 0.0, ends[-1])], total=whole)


def pair_tables(selector: SubsetSelector, evaluation: Evaluation) -> list[TextTable]:
    """Return the pairs of chosen items that go together most, and those that replace each other most."""
    choices, sizes = evaluation.choices, subset_sizes(evaluation.picks)
    numbers = _some_sets(choices.sets)
    numbers = numbers[(sizes[numbers] > 1) & (sizes[numbers] <= _MOST_PICKS)]
    if not len(numbers) or not has_names(choices):
        return []
    sets, picks = choices.sets.take(numbers), evaluation.picks.take(numbers)
    found = second_differences(selector.function_, _precise(sets), picks, picks)
    names = [name for number in numbers.tolist() for name in names_of_items(choices, number)]
    # By their ids: long names that are shown may be cut to the same text.
    offsets = choices.sets.layout.host_offsets
    own = np.concatenate([np.arange(*offsets[number : number + 2]) for number in numbers])
    _, item, place = np.unique(np.asarray(choices.item_ids)[own].astype(str), return_index=True, return_inverse=True)
    ends = np.sort(np.stack([place[found.first.numpy()], place[found.second.numpy()]], 1), axis=1)
    pairs, rows, counts = np.unique(ends, axis=0, return_inverse=True, return_counts=True)
    means = np.bincount(rows.ravel(), found.values.numpy(), len(pairs)) / counts
    order = np.argsort(-means, kind="stable")
    together, instead = order[means[order] > _NOISE][:_PAIRS], order[means[order] < -_NOISE][::-1][:_PAIRS]
    titles = ("items that go together", "items that replace each other")
    columns = ("item", "other item", "interaction, mean", "sets")
    return [
        TextTable(
            title,
            columns,
            tuple((*(names[item[end]] for end in pairs[k]), signed(means[k]), str(counts[k])) for k in listed),
        )
        for title, listed in zip(titles, (together, instead), strict=True)
        if len(listed)
    ]


def _some_sets(sets: Sets) -> np.ndarray:
    """Return sets in even steps, few enough to be quick."""
    share = max(1.0, sets.layout.total / _MOST_ITEMS)
    count = min(len(sets), max(_LEAST_SETS, int(len(sets) / share)))
    chosen: np.ndarray = np.unique(np.linspace(0, len(sets) - 1, count).astype(int))
    return chosen


def _precise(sets: Sets) -> Sets:
    return sets.with_values(sets.values.double())

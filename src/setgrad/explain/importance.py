"""How much the choice depends on each column of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._text_table import TextTable, plain_table
from setgrad.errors import DataError, OptionError, parameter
from setgrad.explain._subject import AbstractSubject, ItemColumn, find_columns
from setgrad.explain._texts import clean
from setgrad.sets import Sets, segment_max, segment_order, segment_sum


@final
@dataclass(frozen=True, eq=False)
class Importance:
    """How much the mean Jaccard score falls when the values of a column are exchanged.

    Attributes:
        columns: The columns, the most important first.
        drops: By how much the score falls, from 0 to 1, the mean over the repeats.
        errors: Standard errors of the drops, over the sets and the repeats.
        score: The score without any exchange. It is 1 where what was chosen is not known: the picks are then compared
            with the picks from exchanged columns.
        exchanged: For each column "items" if values were exchanged among the items of each set, and "sets" if they
            were exchanged among the sets, because each set has one value.

    Examples:
        >>> found = Importance(("price",), np.array([0.4]), np.array([0.01]), 0.9, ("items",))
        >>> print(found)
        points that the mean Jaccard score of 90.00 loses without a column
        column  lost   +-    exchanged among
        ------  -----  ----  ---------------
        price   40.00  1.00  items
    """

    columns: tuple[str, ...]
    drops: np.ndarray
    errors: np.ndarray
    score: float
    exchanged: tuple[str, ...]

    def table(self) -> TextTable:
        """Return a table of text, in points of 100."""
        rows = zip(self.columns, self.drops, self.errors, self.exchanged, strict=True)
        return TextTable(
            f"points that the mean Jaccard score of {100 * self.score:.2f} loses without a column",
            ("column", "lost", "+-", "exchanged among"),
            tuple((clean(name), f"{100 * drop:.2f}", f"{100 * error:.2f}", kind) for name, drop, error, kind in rows),
        )

    def __str__(self) -> str:
        return plain_table(self.table())

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns of the table as lists."""
        return {
            "column": list(self.columns),
            "lost": self.drops.tolist(),
            "standard_error": self.errors.tolist(),
            "exchanged_among": list(self.exchanged),
        }


def measure_importance(
    subject: AbstractSubject,
    sets: Sets,
    chosen: Sets | None,
    *,
    columns: Iterable[str] | None = None,
    repeats: int = 5,
    random_state: int = 0,
) -> Importance:
    """Return how important each column is for the choice; see `SubsetSelector.importance`."""
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise OptionError(f"{parameter('repeats')} must be a whole number of at least 1, not {repeats!r}")
    if not len(sets):
        raise DataError("there are no sets; importance needs some")
    asked = find_columns(subject.columns, columns, "columns")
    everything = np.arange(len(sets))
    picks = subject.choose(sets, everything)
    true = picks if chosen is None else chosen
    score = _jaccard(picks, true)
    generator = torch.Generator().manual_seed(random_state)
    drops, kinds = [], []
    for column in asked:
        is_fact = _has_one_value(sets, column)
        kinds.append("sets" if is_fact else "items")
        exchanges = _exchanges(sets, generator, repeats, is_fact=is_fact)
        scores = [_jaccard(subject.choose(_replaced(sets, column, rows), everything), true) for rows in exchanges]
        drops.append(score - torch.stack(scores))
    # The sets are independent of each other; the repeats of a set are not.
    lost = torch.stack(drops).mean(1) if drops else torch.zeros(0, len(sets), dtype=torch.float64)
    mean, error = (
        lost.mean(1).numpy(),
        (lost.std(1, correction=1) / len(sets) ** 0.5 if len(sets) > 1 else lost[:, 0] * 0),
    )
    order = np.argsort(-mean, kind="stable")
    return Importance(
        tuple(asked[index].name for index in order),
        mean[order],
        error.numpy()[order],
        float(score.mean()),
        tuple(kinds[index] for index in order),
    )


def _jaccard(picks: Sets, true: Sets) -> Tensor:
    """Return the Jaccard score of each set, `(b,)`; 1 for two empty subsets."""
    both = segment_sum((picks.values & true.values).double(), picks)
    either = segment_sum((picks.values | true.values).double(), picks)
    return torch.where(either > 0, both / either.clamp(min=1), 1.0).cpu()


def _has_one_value(sets: Sets, column: ItemColumn) -> bool:
    """Return whether the items of each set have the same value, which the sets do not all share."""
    values = sets.values.flatten(1)[:, column.slice].double()
    is_fact = torch.equal(segment_max(values, sets), -segment_max(-values, sets))
    return is_fact and len(sets) > 1


def _exchanges(sets: Sets, generator: torch.Generator, repeats: int, *, is_fact: bool) -> Iterator[Tensor]:
    """Yield for each repeat the row of the item whose value each item gets."""
    layout = sets.layout
    full = torch.from_numpy(np.flatnonzero(layout.host_lengths))
    for _ in range(repeats):
        if not is_fact:
            yield segment_order(torch.rand(layout.total, generator=generator).to(sets.device), sets)
            continue
        source = torch.zeros(len(sets), dtype=torch.long)
        source[full] = full[torch.randperm(len(full), generator=generator)]
        yield layout.offsets[:-1][source.to(sets.device)][layout.ids]


def _replaced(sets: Sets, column: ItemColumn, rows: Tensor) -> Sets:
    values = sets.values.flatten(1).clone()
    values[:, column.slice] = values[:, column.slice][rows]
    return sets.with_values(values.view(-1, *sets.item_shape))

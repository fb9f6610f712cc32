"""`explain` and `importance` of a fitted selector."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from setgrad._progress import showing
from setgrad.explain._explain import ExplainOptions, Names, explain_choice
from setgrad.explain._subject import AbstractSubject, ItemColumn
from setgrad.explain.explanation import Explanation
from setgrad.explain.importance import Importance, measure_importance
from setgrad.functions import BoundSetFunction
from setgrad.selector._batched_inference import batch_items
from setgrad.selector._choosing import AbstractChoosing
from setgrad.selector._input import Input
from setgrad.selector._known import Known
from setgrad.selector._prediction import SubsetRequest
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Sets

if TYPE_CHECKING:
    from setgrad.columns._columns import Columns


class AbstractExplaining(AbstractChoosing, abc.ABC):
    """The methods of a fitted selector that tell why."""

    def explain(
        self,
        sets: Any,
        subsets: Any = None,
        *,
        given: Any = None,
        excluded: Any = None,
        size: int | None = None,
        near: int = 5,
        columns: Iterable[str] | None = None,
        vary: Iterable[str] = (),
        replacements: int | None = None,
        random_state: int = 0,
        groups: Any = None,
    ) -> Explanation:
        """Tell why items are chosen, and why others nearly are.

        For each chosen item and each near miss: its gain at the chosen subset, the effect of each column on this gain,
        its share of the value of the subset (Shapley value), the items that it goes with or replaces, and what would
        change the choice.

        Args:
            sets: The sets to explain; or, after a fit on a table, another table. A few: work grows with each item.
            subsets: The subsets to explain; None for those that `predict` chooses.
            given: Items that are in the subset already, as in `predict`.
            excluded: Items that are known to be out of it.
            size: How many items are chosen, as in `predict`.
            near: How many items that were not chosen are explained, those with the largest gains.
            columns: Columns whose effects are wanted; None for all, () for none, which is faster.
            vary: Columns of numbers, such as a price, of which to find the smallest change that flips the choice.
            replacements: How many other items lend their value to find the effect of a column; None for 16, and fewer
                in large sets.
            random_state: Seed of the Shapley values of subsets of more than 12 items, which are sampled.
            groups: The set of each row, as in `predict`.

        Returns:
            The explanation; `print` shows its first sets, `to_frame` returns its tables.

        Raises:
            OptionError: If arguments do not go together; other errors are those of `predict`.

        Examples:
            >>> import setgrad as sg
            >>> task = sg.datasets.load_task("moons", n_train=40, n_validation=20, n_test=20)
            >>> sel = sg.SubsetSelector(dim=16, max_epochs=2, random_state=0, verbose=0).fit(*task.train)
            >>> why = sel.explain(task.test.sets[:2], near=3)
            >>> why.columns, len(why.to_dict("pairs")["interaction"]) > 0
            (['feature 0', 'feature 1'], True)
        """
        options = ExplainOptions(
            near=near, columns=columns, vary=vary, replacements=replacements, random_state=random_state
        )
        asked = self._open(sets, groups)
        known = Known.of(*asked.masks(given, excluded), asked.sets)
        chosen = None if subsets is None else asked.chosen(subsets)
        return self.explain_input(asked, options, known=known, subsets=chosen, size=size, kind=sets)

    def explain_input(
        self,
        asked: Input,
        options: ExplainOptions,
        *,
        known: Known | None = None,
        subsets: Sets | None = None,
        size: int | None = None,
        wanted: np.ndarray | None = None,
        kind: Any = None,
    ) -> Explanation:
        """Return the explanation of what was read; `wanted` are the indices of some of the sets."""
        sets, names = asked.sets, _names_of(asked)
        if wanted is not None:
            rows = sets.with_values(torch.arange(sets.layout.total)).take(wanted).values.numpy()
            item_ids = np.asarray(names.item_ids, dtype=object)[rows]
            names = Names([names.set_ids[index] for index in wanted], item_ids, names.set_name, names.item_name)
            sets, known = sets.take(wanted), None if known is None else known.take(wanted)
            subsets = None if subsets is None else subsets.take(wanted)
        subject = _Selector(self, sets, known, size, asked.table and asked.table.schema)
        is_choice = subsets is None
        if subsets is None:
            subsets = subject.choose(sets, np.arange(len(sets)))
        nothing = torch.zeros(sets.layout.total, dtype=torch.bool, device=sets.device)
        fixed = nothing if known is None else known.inside.values | known.outside.values
        with showing("explaining", self.verbose > 0):
            return explain_choice(subject, sets, subsets, options, names, fixed=fixed, is_choice=is_choice, kind=kind)

    def importance(
        self,
        sets: Any,
        subsets: Any = None,
        *,
        columns: Iterable[str] | None = None,
        repeats: int = 5,
        random_state: int = 0,
        groups: Any = None,
    ) -> Importance:
        """Return how much the mean Jaccard score falls when the values of a column are exchanged within each set.

        A column with one value in each set is exchanged among the sets. What counts is what this model uses: of two
        columns that tell the same, it may use either.

        Args:
            sets: Sets, choices or a table, which the fit has not seen.
            subsets: What was chosen. Choices, and tables with the column of the fit, hold it. If it is not known, the
                picks are compared with those from exchanged columns.
            columns: The columns; None for all.
            repeats: Exchanges of each column.
            random_state: Seed of the exchanges.
            groups: The set of each row, as in `predict`.

        Raises:
            DataError: If there are no sets; other errors are those of `predict`.
        """
        asked = self._open(sets, groups)
        if subsets is not None:
            chosen = asked.chosen(subsets)
        elif self._tells_choice(sets, asked):
            asked = self._open(sets, groups, chosen=True)
            chosen = asked.chosen(None)
        else:
            chosen = None
        return self.importance_of(asked, chosen, columns=columns, repeats=repeats, random_state=random_state)

    def importance_of(
        self,
        asked: Input,
        chosen: Sets | None,
        *,
        columns: Iterable[str] | None = None,
        repeats: int = 5,
        random_state: int = 0,
    ) -> Importance:
        """Return the importance of the columns for what was read; arguments are those of `importance`."""
        subject = _Selector(self, asked.sets, None, None, asked.table and asked.table.schema)
        return measure_importance(
            subject, asked.sets, chosen, columns=columns, repeats=repeats, random_state=random_state
        )

    def _tells_choice(self, data: Any, asked: Input) -> bool:
        if asked.table is None:
            return hasattr(data, "subsets")
        schema = self.table_
        return schema is not None and schema.chosen in asked.table.source.schema.names

    def columns_of_items(self, schema: TableSchema | None) -> tuple[ItemColumn, ...]:
        """Return the columns of an item as the caller knows them."""
        shape = self.model_.config.item_shape
        if schema is not None and schema.columns is not None:
            return _fitted_columns(schema.columns)
        if len(shape) != 1:
            # The parts of an image or of a sequence have no names.
            return (ItemColumn("item", 0, math.prod(shape), is_number=False),)
        names = [f"feature {number}" for number in range(shape[0])] if schema is None else schema.features
        is_number = not any(getattr(member.function.phi, "reads_tokens", False) for member in self.model_.each())
        return tuple(ItemColumn(name, place, is_number=is_number) for place, name in enumerate(names))


@final
class _Selector(AbstractSubject):
    """A fitted selector as what is explained.

    Args:
        selector: The selector.
        sets: The sets whose choice is explained.
        known: Items that are known to be in or out.
        size: How many items are chosen; None for the rule of the selector.
        schema: The columns of the table; None for sets.
    """

    def __init__(
        self,
        selector: AbstractExplaining,
        sets: Sets,
        known: Known | None,
        size: int | None,
        schema: TableSchema | None,
    ) -> None:
        self.selector, self.known, self.size = selector, known, size
        self.columns = selector.columns_of_items(schema or selector.table_)
        self.batch_items = batch_items(selector.model_.mean.device)

    def bind(self, sets: Sets, *, exact: bool = True) -> BoundSetFunction:
        """Return F for these sets."""
        is_exact = exact or sets.dtype == torch.float64
        model = self.selector._precise() if is_exact else self.selector.model_.eval()
        return model.bind(sets.to(model.mean.device))

    def choose(self, sets: Sets, origin: np.ndarray, added: int = 0) -> Sets:
        """Return what `predict` chooses from changed sets."""
        known = None if self.known is None else self.known.take(origin)
        if known is not None and added:
            known = Known(_longer(known.inside, added), _longer(known.outside, added))
        return self.selector._choose(sets, SubsetRequest(size=self.size), known)


def _longer(masks: Sets, added: int) -> Sets:
    lengths = masks.layout.host_lengths + added
    result = Sets.from_lengths(torch.zeros(int(lengths.sum()), dtype=torch.bool, device=masks.device), lengths)
    values = result.values
    values[result.layout.positions < masks.lengths[result.layout.ids]] = masks.values
    return result.with_values(values)


def _fitted_columns(columns: Columns) -> tuple[ItemColumn, ...]:
    from setgrad.columns.number import NumberColumn

    widths = [column.width for column in columns.columns]
    starts = np.cumsum([0, *widths])[:-1].tolist()
    return tuple(
        ItemColumn(column.name, start, width, is_number=isinstance(column, NumberColumn))
        for column, start, width in zip(columns.columns, starts, widths, strict=True)
    )


def _names_of(asked: Input) -> Names:
    layout = asked.sets.layout
    if asked.table is None:
        rows = layout.positions.cpu().numpy() if asked.order is None else asked.order
        return Names(range(len(asked.sets)), rows)
    read, schema = asked.read, asked.table.schema
    item_ids = layout.positions.cpu().numpy() if read is None or read.item_ids is None else np.asarray(read.item_ids)
    return Names(asked.set_ids, item_ids, asked.table.set_id, schema.item_id or "item")

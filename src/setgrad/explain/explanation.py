"""`Explanation`: why items were chosen, as tables and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from setgrad._text_table import TextTable, plain_table
from setgrad.errors import DataError, unknown_name
from setgrad.explain._texts import clean, signed

# The tables of an explanation.
TABLES = ("items", "pairs", "swaps", "changes", "additions")
EFFECT = "effect of "
# How many columns of an item, and how many pairs of a set, are shown.
_DRIVERS, _PAIRS, _SETS = 3, 5, 3


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Why items of some sets were chosen, and why others nearly were.

    Each table is a dictionary of columns, in the ids of the caller.

    Attributes:
        items: One row for each chosen item and each near miss: set, item, chosen, gain, shapley, shapley_error, step,
            step_gain, and "effect of ..." for each column. The gain is that at the chosen subset. Steps lead from the
            empty subset to the chosen one, and their gains add up.
        pairs: Pairs of these items: set, item, other, interaction, the largest first. A positive interaction means that
            they go together, a negative one that one replaces the other.
        swaps: The best swap of each item: set, item, other, difference of F.
        changes: Changed numbers that flip the choice of an item: set, item, column, value, new_value.
        additions: Items of which a copy, added to the set, flips the choice of an item: set, item, copy_of, and how
            many choices change (flips).
        set_name: Name of the first column of each table.
        item_name: Name of the second.
        kind: The table that was passed, whose kind `to_frame` returns; None for sets.
    """

    items: Mapping[str, np.ndarray]
    pairs: Mapping[str, np.ndarray]
    swaps: Mapping[str, np.ndarray]
    changes: Mapping[str, np.ndarray]
    additions: Mapping[str, np.ndarray]
    set_name: str = "set"
    item_name: str = "item"
    kind: Any = None

    @property
    def set_ids(self) -> list[Any]:
        """The sets with rows, in their order."""
        return list(dict.fromkeys(self.items[self.set_name].tolist()))

    @property
    def columns(self) -> list[str]:
        """The columns whose effects are known."""
        return [name.removeprefix(EFFECT) for name in self.items if name.startswith(EFFECT)]

    def of_set(self, set_id: Any) -> Explanation:
        """Return the part about one set.

        Raises:
            DataError: If nothing is known about such a set.
        """
        if set_id not in self.set_ids:
            raise DataError(f"there is no explained item of set {set_id!r}")
        return self._of([set_id])

    def to_dict(self, table: str = "items") -> dict[str, list[Any]]:
        """Return one of the tables as lists of plain values, NaN as None.

        Args:
            table: "items", "pairs", "swaps", "changes" or "additions".

        Raises:
            OptionError: If there is no such table.
        """
        return {name: _plain(values) for name, values in self._table(table).items()}

    def to_frame(self, table: str = "items") -> Any:
        """Return one of the tables as a frame of the kind that was passed (pandas, polars, else Arrow).

        Args:
            table: "items", "pairs", "swaps", "changes" or "additions".

        Raises:
            OptionError: If there is no such table.
        """
        columns = self.to_dict(table)
        library = type(self.kind).__module__.partition(".")[0]
        if library == "pandas":
            import pandas

            return pandas.DataFrame(columns)
        if library == "polars":
            import polars

            return polars.DataFrame(columns, strict=False)
        import pyarrow

        return pyarrow.table(columns)

    def parts(self, sets: int = _SETS) -> list[TextTable | str]:
        """Return the first sets for people: for each a table of its items, and sentences about them."""
        found: list[TextTable | str] = []
        for set_id in self.set_ids[:sets]:
            part = self._of([set_id])
            found += [part._item_table(f"{clean(self.set_name)} {clean(set_id)}"), *part._sentences()]
        left = len(self.set_ids) - sets
        return [*found, *([f"not shown: {left} of {left + sets} sets"] if left > 0 else [])]

    def __str__(self) -> str:
        if not len(self.items[self.set_name]):
            return "nothing to explain: there are no items"
        return "\n".join(plain_table(part) if isinstance(part, TextTable) else part for part in self.parts())

    def __repr__(self) -> str:
        return f"Explanation({len(self.set_ids)} sets, {len(self.items[self.set_name])} items)"

    def _table(self, name: str) -> Mapping[str, np.ndarray]:
        if name not in TABLES:
            raise unknown_name("table", name, TABLES)
        table: Mapping[str, np.ndarray] = getattr(self, name)
        return table

    def _of(self, set_ids: Sequence[Any]) -> Explanation:
        wanted = set(set_ids)
        parts: dict[str, Any] = {}
        for name in TABLES:
            table = self._table(name)
            kept = np.array([value in wanted for value in table[self.set_name].tolist()], dtype=bool)
            parts[name] = {column: values[kept] for column, values in table.items()}
        return replace(self, **parts)

    def _item_table(self, title: str) -> TextTable:
        items = self.items
        effects = np.stack([items[EFFECT + name] for name in self.columns], 1) if self.columns else None
        order = np.lexsort((-items["gain"], ~items["chosen"]))
        rows = []
        for index in order:
            cells = [clean(items[self.item_name][index]), "yes" if items["chosen"][index] else ""]
            cells += [signed(items["gain"][index]), signed(items["shapley"][index])]
            rows.append((*cells, "" if effects is None else _drivers(self.columns, effects[index])))
        return TextTable(title, (clean(self.item_name), "chosen", "gain", "Shapley", "driven by"), tuple(rows))

    def _sentences(self) -> list[str]:
        name, lines = self.item_name, []
        chosen = dict(zip(self.items[name].tolist(), self.items["chosen"].tolist(), strict=True))
        table = self.pairs
        rows = zip(table[name].tolist(), table["other"].tolist(), table["interaction"].tolist(), strict=True)
        # Of two items that were not chosen, none is in the subset that is explained.
        rows_shown = [row for row in rows if row[2] and (chosen[row[0]] or chosen[row[1]])][:_PAIRS]
        for one, other, value in rows_shown:
            verb = "goes with" if value > 0 else "replaces"
            lines.append(f"  {clean(one)} {verb} {clean(other)} ({signed(value)})")
        table = self.swaps
        if len(table[name]):
            best = int(np.argmax(table["difference"]))
            new, old = table[name][best], table["other"][best]
            if chosen.get(new):
                new, old = old, new
            lines.append(
                f"  nearest swap: {clean(new)} in place of {clean(old)}, F {signed(table['difference'][best])}"
            )
        table = self.changes
        for index in range(len(table[name])):
            one, column = table[name][index], clean(table["column"][index])
            end = "would not be chosen" if chosen.get(one) else "would be chosen"
            before, after = table["value"][index], table["new_value"][index]
            was = "a gap" if before != before else f"{before:.6g}"
            lines.append(f"  {clean(one)} {end} with {column} {after:.6g} instead of {was}")
        table = self.additions
        for index in range(min(_PAIRS, len(table[name]))):
            one, copied = table[name][index], clean(table["copy_of"][index])
            end = "would not be chosen" if chosen.get(one) else "would be chosen"
            lines.append(f"  {clean(one)} {end} if there were one more {copied}")
        return lines


def _drivers(columns: Sequence[str], effects: np.ndarray) -> str:
    known = np.flatnonzero(np.nan_to_num(effects) != 0)
    order = known[np.argsort(-np.abs(effects[known]), kind="stable")][:_DRIVERS]
    return ", ".join(f"{clean(columns[index])} {signed(effects[index])}" for index in order)


def _plain(values: np.ndarray) -> list[Any]:
    listed: list[Any] = values.tolist()
    return [None if isinstance(value, float) and value != value else value for value in listed]

"""Picks of a few sets for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from setgrad._text_table import TextTable

if TYPE_CHECKING:
    import pyarrow as pa

# How many items that were not chosen are shown of a set, and how many letters of a value.
_OTHERS, _LETTERS = 3, 40


def show_picks(rows: pa.Table, count: int) -> TextTable:
    """Return the picks of the first sets, chosen items first, with the best of the others.

    Args:
        rows: The picks: set id, item id, chosen, probability, rank, and more columns.
        count: Number of sets.
    """
    from setgrad.sets._ids import factorize

    set_id, item_id, _, _, _, *carried = rows.column_names
    sets = factorize(rows[set_id])
    chosen, rank = (rows[name].to_numpy() for name in ("chosen", "rank"))
    shown = min(count, int(sets.max()) + 1)
    last = np.bincount(sets, weights=chosen)[sets] + _OTHERS
    kept = np.flatnonzero((sets < shown) & (rank <= last))
    kept = kept[np.lexsort((rank[kept], sets[kept]))]
    names = [set_id, item_id, *carried, "chosen", "probability", "rank"]
    shown_rows = rows.take(kept)
    columns = [[_cell(value) for value in shown_rows[name].to_pylist()] for name in names]
    columns[names.index("probability")] = [f"{value:.4f}" for value in shown_rows["probability"].to_pylist()]
    title = f"the first {shown} of {int(sets.max()) + 1} sets: what was chosen, and the next {_OTHERS} of each"
    return TextTable(title, tuple(names), tuple(zip(*columns, strict=True)))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.10g}"
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"

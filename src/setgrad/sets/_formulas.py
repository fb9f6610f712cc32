"""Texts that a spreadsheet would run as formulas when it opens a CSV file.

An apostrophe before such a text keeps it a text. A text that has apostrophes already gets one more, so that it can be
undone: remove one apostrophe from every text that has, after its apostrophes, one of = + - @, a tab or a return.
Imported only when a table is written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_RUNS = r"^'*[=+\-@\t\r]"
# A spreadsheet shows a number, also one with a sign, as it is.
_NUMBER = r"^[+\-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+\-]?\d+)?$"


def guard_formulas(table: pa.Table) -> tuple[pa.Table, int]:
    """Return the table with an apostrophe before each text or name of a column that could run, and their number."""
    count, columns, names = 0, [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        guarded = _guard(pa.array([name]))[0][0].as_py()
        count += guarded != name
        names.append(guarded)
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if types.is_string(column.type) or types.is_large_string(column.type):
            column, changed = _guard(column)
            count += changed
        columns.append(column)
    return pa.table(columns, names), count


def _guard(texts: pa.Array | pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, int]:
    runs = pc.and_not(pc.match_substring_regex(texts, _RUNS), pc.match_substring_regex(texts, _NUMBER))
    changed = pc.sum(runs).as_py() or 0
    if not changed:
        return texts, 0
    apostrophe = pa.scalar("'", texts.type)
    return pc.if_else(runs, pc.binary_join_element_wise(apostrophe, texts, pa.scalar("", texts.type)), texts), changed

"""What was understood of a table: each column with its kind and use, and what looks wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from setgrad._text_table import TextTable, plain_table


@final
@dataclass(frozen=True)
class ColumnSummary:
    """What was understood of a column.

    Attributes:
        name: Its name; first and last of numbered columns that belong together.
        kind: Its kind or role.
        type: Its type in the table.
        missing: Number of rows without a value.
        distinct: Number of different values.
        use: How it is used, or why it is not.
        used: Whether the model reads it.
    """

    name: str
    kind: str
    type: str
    missing: int
    distinct: int
    use: str
    used: bool


@final
@dataclass(frozen=True)
class TableDescription:
    """What was understood of a table; its text is a table with one row for each column.

    Attributes:
        name: The table.
        sets: Number of sets.
        items: Number of rows.
        chosen: Number of chosen items; None if no column tells.
        columns: The columns.
        warnings: What looks wrong, one sentence each.
    """

    name: str
    sets: int
    items: int
    chosen: int | None
    columns: tuple[ColumnSummary, ...]
    warnings: tuple[str, ...]

    @property
    def unused(self) -> tuple[ColumnSummary, ...]:
        """The columns that the model does not read, but those that the user left out."""
        return tuple(column for column in self.columns if not column.used and column.use != LEFT_OUT)

    @property
    def text_table(self) -> TextTable:
        """One row for each column."""
        chosen = "" if self.chosen is None else f", {self.chosen} chosen"
        return TextTable(
            f"{self.name}: {self.sets} sets of {self.items} items{chosen}",
            ("column", "kind", "type", "missing", "distinct", "use"),
            tuple(
                (column.name, column.kind, column.type, str(column.missing), str(column.distinct), column.use)
                for column in self.columns
            ),
        )

    def __str__(self) -> str:
        return "\n".join([plain_table(self.text_table), *(f"warning: {text}" for text in self.warnings)])


# Use of a column that the user does not want.
LEFT_OUT = "left out, as asked"

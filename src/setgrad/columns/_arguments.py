"""What the user says about the columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, final

from setgrad.errors import OptionError, parameter

if TYPE_CHECKING:
    from setgrad.columns._fit import ColumnChoice
    from setgrad.sets._read import Roles


@final
@dataclass(frozen=True, eq=False)
class TableArguments:
    """The arguments of `fit` that name columns of a table."""

    set_id: str | None = None
    chosen: str | None = None
    item_id: str | None = None
    features: Iterable[str] | None = None
    weight: str | None = None
    columns: Mapping[str, str] | None = None
    embed: Iterable[str] = ()

    def names(self) -> list[str]:
        """Return the names of the arguments that were given."""
        return [part.name for part in fields(self) if getattr(self, part.name) not in (None, ())]

    def check_no_table(self) -> None:
        """Raise an OptionError if one is given, because there is no table."""
        if self.names():
            listed = " and ".join(map(parameter, self.names()))
            raise OptionError(f"{listed} name columns of a table, but sets were passed; leave them out")

    def roles(self, *, chosen: bool = True) -> Roles:
        """Return the columns that are not features.

        Args:
            chosen: Whether the column of the choices must be named.

        Raises:
            OptionError: If the column of the sets or of the choices is not named.
        """
        from setgrad.sets._read import Roles

        needed = ("set_id", "chosen") if chosen else ("set_id",)
        missing = [parameter(name) for name in needed if getattr(self, name) is None]
        if self.set_id is None or missing:
            raise OptionError(
                f"a table needs {' and '.join(missing)}: the names of the columns with the set of a row, and with "
                "whether its item was chosen"
            )
        for name in ("set_id", "chosen", "item_id", "weight"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(f"{parameter(name)} must be the name of a column, not {getattr(self, name)!r}")
        return Roles(self.set_id, self.chosen, self.item_id, self.weight)

    def choice(self) -> ColumnChoice:
        """Return what is said about features.

        Raises:
            OptionError: If that cannot be read.
        """
        from setgrad.columns._fit import ColumnChoice

        return ColumnChoice.of(self.features, self.columns, self.embed)

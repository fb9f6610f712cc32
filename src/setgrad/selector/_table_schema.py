"""The columns of the table that a selector was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from setgrad.errors import FileFormatError

if TYPE_CHECKING:
    from setgrad.columns._columns import Columns

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@final
@dataclass(frozen=True)
class TableSchema:
    """Names of the columns of a table by role, and the dtype of their numbers.

    The dtype is the one of the fit. If it were chosen from the values of each table, the picks of a set would depend on
    the other rows.

    Args:
        set_id: Column with the set of a row; None if `fit` had groups instead.
        features: Columns with the features of an item.
        item_id: Column with the name of an item.
        chosen: Column that tells whether an item was chosen; None if `fit` had an array of them instead.
        dtype: "float32" or "float64"; None to choose it from the values of each table.
        columns: How the features become numbers; None if they are numbers.

    Examples:
        >>> TableSchema("basket", ("price", "stars")).torch_dtype is None
        True
    """

    set_id: str | None
    features: tuple[str, ...]
    item_id: str | None = None
    chosen: str | None = None
    dtype: str | None = None
    columns: Columns | None = None

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype as one of torch; None to choose it from the values."""
        return None if self.dtype is None else _DTYPES[self.dtype]

    @property
    def number_names(self) -> tuple[str, ...]:
        """The column of each number of an item."""
        if self.columns is None:
            return self.features
        return tuple(column.name for column in self.columns.columns for _ in range(column.width))

    @staticmethod
    def dtype_name(dtype: torch.dtype) -> str | None:
        """Return the name of a dtype; None if tables are not read in it."""
        return next((name for name, known in _DTYPES.items() if known == dtype), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain strings and lists."""
        return {
            "set_id": self.set_id,
            "features": list(self.features),
            "item_id": self.item_id,
            "chosen": self.chosen,
            "dtype": self.dtype,
            "columns": None if self.columns is None else self.columns.to_json(),
        }

    @staticmethod
    def from_json(data: Any, place: str) -> TableSchema:
        """Return the schema that `to_json` described.

        Args:
            data: The value from the JSON file.
            place: Where it was read from, for messages.

        Raises:
            FileFormatError: If it is not a schema.
        """
        if not isinstance(data, dict):
            raise FileFormatError(f"{place} is not an object with the columns of a table")
        features = data.get("features")
        set_id, item_id, chosen = optional = tuple(data.get(name) for name in ("set_id", "item_id", "chosen"))
        has_features = isinstance(features, list) and bool(features) and all(map(_is_name, features))
        if not has_features or not all(name is None or _is_name(name) for name in optional):
            raise FileFormatError(f"{place} is damaged: it does not name the columns of a table")
        dtype = data.get("dtype")
        if dtype not in (None, *_DTYPES):
            raise FileFormatError(f"{place} is damaged: {dtype!r:.80} is not one of the dtypes {', '.join(_DTYPES)}")
        columns = None
        if data.get("columns") is not None:
            from setgrad.columns._columns import Columns

            columns = Columns.from_json(data["columns"], place)
            if list(columns.names) != features:
                raise FileFormatError(f"{place} is damaged: its columns are not those of its features")
        return TableSchema(set_id, tuple(data["features"]), item_id, chosen, dtype, columns)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name != ""

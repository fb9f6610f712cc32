"""A valid table, and a function that writes it in every format."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

ENDINGS = [".parquet", ".pq", ".csv", ".feather", ".arrow"]

# Five rows: set 10 has three items, set 20 one, set 15 one.
VALID: dict[str, Any] = {
    "basket": [10, 10, 10, 20, 15],
    "sku": ["a", "b", "c", "a", "a"],
    "price": [1.5, 2.0, -3.0, 0.25, 1e-3],
    "stock": [1, 2, 3, 4, 5],
    "note": ["x", "y", "z", "x", "y"],
    "bought": [True, False, True, False, True],
    "load": [1.0, 0.0, 2.5, 1.0, 1.0],
}
ROLES: dict[str, Any] = {"set_id": "basket", "item_id": "sku", "chosen": "bought", "weight": "load"}


def save(path: Path, columns: dict[str, Any], *, rows: int = 1000) -> Path:
    """Write columns in the format of the file ending, with `rows` rows in each row group."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    elif path.suffix in (".parquet", ".pq"):
        pa.parquet.write_table(table, path, row_group_size=rows)
    else:
        pa.feather.write_feather(table, str(path), chunksize=rows)
    return path

"""Whether a table is streamed. PyArrow is imported where a table is used."""

from __future__ import annotations

import sys
from typing import Any

from setgrad._progress import announce
from setgrad.errors import DataError, OptionError, parameter
from setgrad.selector._table_input import is_table

# A table in memory takes about so many times the bytes of its columns, while it is read and fitted.
_COPIES = 4


def is_streamed(data: Any, stream: bool | None, *, verbose: bool) -> bool:
    """Return whether to read a table block by block: if that was asked for, or it would not fit into memory.

    Args:
        data: What was passed to `fit`.
        stream: What the user says; None to find out.
        verbose: Whether to say that a table is streamed.

    Raises:
        OptionError: If something is to be streamed that is no table of files.
    """
    if stream is not None and not isinstance(stream, bool):
        raise OptionError(f"{parameter('stream')} must be True, False or None, not {stream!r}")
    has_frame = hasattr(data, "__arrow_c_stream__") and not _is_dataset(data)
    if stream and (has_frame or not (is_table(data) or _is_dataset(data))):
        raise OptionError(
            f"{parameter('stream')} is for Parquet files, and what was passed is in memory already; leave it out"
        )
    if stream is not None:
        return stream
    if has_frame or not (is_table(data) or _is_dataset(data)):
        return False
    from setgrad.sets._memory import memory_limit
    from setgrad.sets._parquet import ParquetTable, is_address, is_parquet

    if _is_dataset(data) or is_address(data):
        return True
    if not is_parquet(data):
        return False
    try:
        table = ParquetTable.open(data)
    except DataError:
        # The usual reader says what is wrong.
        return False
    limit, need = memory_limit(), _COPIES * table.bytes
    if limit is None or need <= limit:
        return False
    announce(
        f"{table.name} needs about {need / 2**30:.1f} GiB in memory, and {limit / 2**30:.1f} GiB may be used: it is "
        "streamed from its files; stream=False, or --no-stream, reads it whole",
        shown=verbose,
    )
    return True


def _is_dataset(data: Any) -> bool:
    # Without an import of PyArrow: whoever has a data set has imported it.
    module = sys.modules.get("pyarrow.dataset")
    return module is not None and isinstance(data, module.Dataset)


def check_streamed(constraint: Any, **beside: Any) -> None:
    """Raise an OptionError for arguments of `fit` that need all sets in memory.

    Args:
        constraint: The constraint.
        **beside: Arrays with a value for each row.
    """
    if constraint is not None:
        raise OptionError(
            f"constraints and limits need all sets in memory; leave out {parameter('stream')}, or fit on a part of the "
            "table"
        )
    names = [name for name, value in beside.items() if value is not None]
    if names:
        raise OptionError(
            f"{', '.join(map(parameter, names))} cannot be passed beside a table that is streamed; name columns instead"
        )

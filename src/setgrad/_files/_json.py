"""JSON of files that may be damaged or hostile: size, depth and number of values are limited before it is parsed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from setgrad.errors import DataError

# Far above what setgrad writes: the columns of a table with a million names, the record of a million epochs.
_MAX_BYTES, _MAX_VALUES, _MAX_DEPTH = 2**28, 2**24, 64
# A text; the last one may lack its end.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def from_json(data: bytes) -> Any:
    """Return the value that JSON describes.

    Raises:
        ValueError: If it is not JSON in UTF-8, or is larger or deeper than anything that setgrad writes.

    Examples:
        >>> from_json(b'{"members": [1, 2]}')
        {'members': [1, 2]}
        >>> from_json(b"[" * 100000)
        Traceback (most recent call last):
        ValueError: it is nested 100000 deep, and 64 is the limit
    """
    _check_size(data)
    # The parser would guess UTF-16 and UTF-32, in which the limits mean nothing.
    value = json.loads(data.decode("utf-8"))
    if rb"\ud" in data.lower():
        # Half of a character: valid JSON, but no text that can be printed or written.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def to_json(value: Any) -> bytes:
    """Return a value as JSON that people can read and `from_json` accepts.

    Raises:
        DataError: If the value is too large.
    """
    data = (json.dumps(value, indent=2, default=_to_python) + "\n").encode()
    try:
        _check_size(data)
    except ValueError as error:
        raise DataError(f"this cannot be saved: {error}; use fewer or shorter names") from None
    return data


def _check_size(data: bytes) -> None:
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and {_MAX_BYTES} is the limit")
    symbols = np.frombuffer(_TEXT.sub(b"", data), np.uint8)
    opens, closes = (np.isin(symbols, list(brackets)) for brackets in (b"[{", b"]}"))
    values = int(np.count_nonzero(symbols == ord(",")) + np.count_nonzero(opens))
    if values > _MAX_VALUES:
        raise ValueError(f"it has {values} values, and {_MAX_VALUES} is the limit")
    depth = int(np.cumsum(opens.astype(np.int32) - closes, dtype=np.int32).max(initial=0))
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested {depth} deep, and {_MAX_DEPTH} is the limit")


def _to_python(number: Any) -> Any:
    """Turn a number of NumPy or another type, as a grid of options may hold, into one of Python."""
    return number.item() if hasattr(number, "item") else float(number)

"""Items in `.npy` files that are mapped into memory: the system reads what is used, and may forget it again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, FileFormatError


def map_npy(path: str | Path) -> Tensor:
    """Return the array in a `.npy` file as a tensor that is mapped from it; see `Sets.from_npy`."""
    try:
        # Copied on write, because torch has no tensors that cannot be written to. The file stays as it is.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; write it with np.save or sets.write_npy") from None
    except (OSError, ValueError, EOFError) as error:
        raise FileFormatError(f"{path} cannot be mapped as an array: {error}; write it again with np.save") from None
    if not isinstance(array, np.ndarray) or array.ndim < 1 or array.dtype.kind not in "fiub":
        raise FileFormatError(f"{path} must hold one array of numbers with one item in each row (np.save)")
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{path} holds {array.dtype}, which torch cannot read: {error}; convert it") from None


def write_npy(chunks: Iterable[Any], path: str | Path) -> int:
    """Write chunks of rows, such as those of `ParquetChunks`, to one `.npy` file for `Sets.from_npy`.

    One chunk at a time is in memory.

    Args:
        chunks: Arrays or tensors `(n, ...)` of one type and with items of one shape.
        path: The file, which is replaced.

    Returns:
        The number of rows.

    Raises:
        DataError: If there is no chunk, or chunks differ in the shape or the type of items.

    Examples:
        >>> import tempfile
        >>> from setgrad.sets import Sets
        >>> path = Path(tempfile.mkdtemp()) / "items.npy"
        >>> write_npy([np.zeros((3, 2), np.float32), np.ones((1, 2), np.float32)], path)
        4
        >>> Sets.from_npy(path)
        Sets(1 sets, 4 items, sizes 4 to 4, item shape (2,), torch.float32, cpu)
    """
    kind: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    rows = 0
    with open(path, "wb") as file:
        for chunk in chunks:
            array = np.ascontiguousarray(chunk)
            if kind is None:
                kind = array.shape[1:], array.dtype
                _write_header(file, 0, kind)
            if (array.shape[1:], array.dtype) != kind:
                raise DataError(
                    f"a chunk holds items {array.shape[1:]} of {array.dtype}, the first one {kind[0]} of {kind[1]}; "
                    "give all chunks one shape and type"
                )
            array.tofile(file)
            rows += len(array)
        if kind is None:
            raise DataError("there is no chunk to write; pass at least one, without rows for an empty set")
        # The header leaves space for any number of rows.
        file.seek(0)
        _write_header(file, rows, kind)
    return rows


def _write_header(file: Any, rows: int, kind: tuple[tuple[int, ...], np.dtype[Any]]) -> None:
    shape, dtype = kind
    np.lib.format.write_array_header_1_0(
        file, {"shape": (rows, *shape), "fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
    )

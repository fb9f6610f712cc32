"""Conversion of arrays, lists and data frames to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError


def as_tensor(x: Any) -> Tensor:
    """Return `torch.as_tensor(x)`, also for inputs that it rejects or warns about.

    These are read-only arrays (from data frames and PyArrow), reversed views, lists of arrays or tensors, and objects
    that only have `__array__`, such as data frames.

    Raises:
        DataError: If the tensor is sparse, or entries of the array are masked out.

    Examples:
        >>> import numpy as np
        >>> as_tensor(np.arange(3)[::-1]).tolist()
        [2, 1, 0]
    """
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise DataError(f"the tensor is not dense but {x.layout}; pass x.to_dense()")
        return x
    if isinstance(x, (list, tuple)):
        if x and all(isinstance(row, Tensor) for row in x):
            return torch.stack(list(x))
        if any(isinstance(row, np.ndarray) for row in x):
            for row in x:
                _check_unmasked(row)
            x = np.asarray(x)
    elif not isinstance(x, np.ndarray) and hasattr(x, "__array__"):
        x = np.asarray(x)
        if x.dtype == object:
            # A frame with columns of several types, or of nullable types: convert its plain Python values.
            x = np.array(x.tolist())
    _check_unmasked(x)
    if isinstance(x, np.ndarray) and not (x.flags.writeable and all(step >= 0 for step in x.strides)):
        x = np.array(x, order="C")
    return torch.as_tensor(x)


def _check_unmasked(x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise DataError("entries of the array are masked out; fill them in with x.filled(...), or drop their rows")

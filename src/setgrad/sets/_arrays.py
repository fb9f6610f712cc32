"""From whatever users hold to a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError


def as_tensor(x: Any) -> Tensor:
    """Do what `torch.as_tensor` does, also for arrays that it refuses or warns about.

    Those are read-only arrays (what data frames and PyArrow give out), reversed views, lists of arrays or of tensors,
    and objects that only know how to become an array, such as a data frame. Entries that are masked out or not stored
    are refused, because nobody could tell later what stood there.

    Example:
        >>> import numpy as np
        >>> as_tensor(np.arange(3)[::-1]).tolist()
        [2, 1, 0]
    """
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise DataError(f"the tensor is not dense but {x.layout}; give x.to_dense()")
        return x
    if isinstance(x, (list, tuple)):
        if x and all(isinstance(row, Tensor) for row in x):
            return torch.stack(list(x))
        if any(isinstance(row, np.ndarray) for row in x):
            for row in x:
                _refuse_masked(row)
            x = np.asarray(x)
    elif not isinstance(x, np.ndarray) and hasattr(x, "__array__"):
        x = np.asarray(x)
        if x.dtype == object:
            # Columns of different types, or of those that know missing values: once more, from the plain values.
            x = np.array(x.tolist())
    _refuse_masked(x)
    if isinstance(x, np.ndarray) and not (x.flags.writeable and all(step >= 0 for step in x.strides)):
        x = np.array(x, order="C")
    return torch.as_tensor(x)


def _refuse_masked(x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise DataError("entries of the array are masked out; fill them in, x.filled(...), or drop their rows")

"""What users write as numbers and labels of items, in one form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from setgrad.errors import ShapeError, parameter
from setgrad.sets import Sets


def as_sets(name: str, values: Any) -> Sets:
    """Return one number for each item, on the CPU."""
    # Through NumPy, because torch would turn Python floats into single precision.
    sets = (
        values
        if isinstance(values, Sets)
        else Sets.from_list([p if isinstance(p, Tensor) else np.asarray(p) for p in as_lists(name, values)])
    )
    numbers = sets.values.detach().cpu()
    if numbers.shape[1:] not in ((), (1,)) and len(numbers):
        raise ShapeError(
            f"{parameter(name)} hold items of shape {tuple(numbers.shape[1:])}; give one number for each item"
        )
    return Sets(numbers.reshape(len(numbers)), sets.layout.to("cpu"))


def as_lists(name: str, values: Any) -> list[Any]:
    """Return the entries of the sets."""
    if isinstance(values, str):
        raise ShapeError(
            f"{parameter(name)} must be one list for each set, not the name of a column; of a data frame: "
            f"[rows[{values!r}].tolist() for _, rows in frame.groupby(SET_ID, sort=False)]"
        )
    parts = list(values) if isinstance(values, Iterable) else [values]
    if not all(isinstance(part, Iterable) for part in parts):
        raise ShapeError(
            f"{parameter(name)} must be one list for each set, or a Sets aligned with the sets, not {values!r}"
        )
    return parts


def next_power_of_2(sizes: np.ndarray) -> np.ndarray:
    """Return a key under which sizes differ by less than a factor of 2."""
    return 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)

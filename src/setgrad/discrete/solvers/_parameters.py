"""Parameters of solvers: converted to tensors, checked, and broadcast to the batch axes of theta."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError


def as_tensor(value: Any) -> Tensor:
    """Return a number, list, array or tensor as a tensor."""
    # Through NumPy, because torch would convert Python floats to single precision.
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def as_integers(name: str, value: Any) -> Tensor:
    """Return a tensor of whole numbers as long; raise an OptionError for other numbers instead of truncating them."""
    tensor = as_tensor(value)
    integers = tensor.long()
    if not bool((integers == tensor).all()):
        raise OptionError(f"{name} must contain whole numbers only")
    return integers


def check_counts(minimum: int | None = None, /, **counts: Any) -> None:
    """Raise an OptionError if a named value is not a whole number (True and False are not), or below the minimum."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise OptionError(f"{name} must be a whole number, not {count!r}")
        if minimum is not None and count < minimum:
            raise OptionError(f"{name} must be {minimum} or more, got {count}")


def check_floats(value: Any, taker: str, name: str) -> None:
    """Raise a ShapeError if a value is not a float tensor; `taker` begins its message."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{taker} {name} as a tensor of floats, not {kind}; use torch.as_tensor({name}).float()")


def check_square(name: str, theta: Tensor, minimum: int = 1) -> None:
    """Raise a ShapeError if instances are not n x n, or n is below the minimum."""
    rows, columns = theta.shape[-2:]
    if rows != columns:
        raise ShapeError(f"{name} takes square matrices, got {rows} x {columns}")
    if rows < minimum:
        raise ShapeError(f"{name} needs {minimum} nodes or more, got {rows}")


def broadcast_parameter(name: str, value: Tensor, batch: torch.Size, *instance: int) -> Tensor:
    """Return a parameter of shape (..., *instance) with the batch axes of theta, broadcast from the right.

    Raises:
        ShapeError: If it does not broadcast.

    Examples:
        >>> broadcast_parameter("weights", torch.ones(4, 3), torch.Size([2, 4]), 3).shape
        torch.Size([2, 4, 3])
    """
    shape = (*batch, *instance)
    try:
        # A single number serves all entries, but a list of one is a mistake: only batch axes broadcast.
        if value.ndim and instance and value.shape[-len(instance) :] != instance:
            raise RuntimeError
        return value.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to {shape}, the shape that theta needs: the last "
            f"{len(instance)} axes form an instance; those before them must equal theta's batch axes, or be 1 or absent"
        ) from None

"""Parameters of solvers: made into tensors once, brought to the batch axes, dtype and device of a theta later."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError


def as_tensor(value: Any) -> Tensor:
    """A tensor from whatever the user wrote: a number, a list, an array or a tensor."""
    # By way of NumPy, because torch would make single precision of Python's numbers.
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def check_counts(least: int | None = None, /, **counts: Any) -> None:
    """Refuse what is no whole number, or below the least; True and False are answers, not numbers."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise OptionError(f"{name} must be a whole number, not {count!r}")
        if least is not None and count < least:
            raise OptionError(f"{name} must be {least} or more, got {count}")


def check_floats(value: Any, taker: str, name: str) -> None:
    """Refuse what is no tensor of floats; `taker` begins the sentence that says so."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{taker} {name} as a tensor of floats, not {kind}; use torch.as_tensor({name}).float()")


def as_whole(name: str, value: Any) -> Tensor:
    """The same for whole numbers, as long; other numbers are refused, not cut off."""
    tensor = as_tensor(value)
    whole = tensor.long()
    if not bool((whole == tensor).all()):
        raise OptionError(f"{name} must hold whole numbers")
    return whole


def spread(name: str, value: Tensor, batch: torch.Size, *own: int) -> Tensor:
    """A parameter whose last axes are `own`, with the batch axes of theta (broadcast from the right).

    Example:
        >>> spread("weights", torch.ones(4, 3), torch.Size([2, 4]), 3).shape
        torch.Size([2, 4, 3])
    """
    shape = (*batch, *own)
    try:
        # One number serves all, but a list of one is a mistake: only batch axes broadcast.
        if value.ndim and own and value.shape[-len(own) :] != own:
            raise RuntimeError
        return value.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to {shape}, which theta asks for: the last "
            f"{len(own)} axes make one instance, those before them must equal theta's batch axes, or be 1 or absent"
        ) from None

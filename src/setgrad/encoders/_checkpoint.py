"""Activation checkpointing: results that the backward pass computes again instead of keeping them in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.checkpoint import checkpoint

from setgrad._autograd import in_transform

Result = TypeVar("Result")


def checkpointed(function: Callable[..., Result], *args: Any) -> Result:
    """Return `function(*args)`, and call the function again in the backward pass to save memory.

    The function must not draw random numbers. Inside a transform of `torch.func`, which does not support
    checkpoints, the intermediate results are kept.
    """
    if in_transform():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)

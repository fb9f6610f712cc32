"""Pieces that the backward pass computes again, so that only what they are made of is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Piece = TypeVar("Piece")


def in_transform() -> bool:
    """Whether a transform of `torch.func` is at work. What is compiled cannot ask, and has none."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


def computed_again(function: Callable[..., Piece], *given: Any) -> Piece:
    """Call a function without chance in it, and again in the backward pass.

    Transforms of `torch.func` cannot do that: there, what the call computes is kept.
    """
    if in_transform():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)

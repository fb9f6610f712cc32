"""Pieces that the backward pass computes again, so that only what they are made of is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.checkpoint import checkpoint

from setgrad._autograd import in_transform

Piece = TypeVar("Piece")


def computed_again(function: Callable[..., Piece], *given: Any) -> Piece:
    """Call a function without chance in it, and again in the backward pass.

    Transforms of `torch.func` cannot do that: there, what the call computes is kept.
    """
    if in_transform():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)

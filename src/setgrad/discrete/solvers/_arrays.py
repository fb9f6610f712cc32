"""Tensors of the CPU as NumPy arrays: a small step costs a third there of what it costs in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def small_arrays(size: int, most: int, *tensors: Tensor) -> list[Any] | None:
    """The memory of tensors of one device as arrays, to be read only; None where a solver is to stay with torch.

    That is where a step over `size` numbers, more than `most`, is work for torch's threads; on other devices; and under
    `torch.compile`, recording and the transforms of `torch.func`, whose tensors have no memory to share.
    """
    shared = size > most and torch.get_num_threads() > 1
    if shared or torch.compiler.is_compiling() or tensors[0].device.type != "cpu":
        return None
    try:
        return [part.numpy() for part in tensors]
    except RuntimeError:
        return None

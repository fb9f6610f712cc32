"""CPU tensors as NumPy arrays: a small operation takes a third of the time that it takes in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def numpy_views(size: int, limit: int, *tensors: Tensor) -> list[Any] | None:
    """Return read-only NumPy views of tensors on one device, or None if the solver should use torch.

    It should use torch if an operation on `size` numbers, more than the limit, gains from torch's threads; on other
    devices than the CPU; and under `torch.compile` and the transforms of `torch.func`, whose tensors have no memory
    to share.
    """
    use_threads = size > limit and torch.get_num_threads() > 1
    if use_threads or torch.compiler.is_compiling() or tensors[0].device.type != "cpu":
        return None
    try:
        return [tensor.numpy() for tensor in tensors]
    except RuntimeError:
        return None

"""Whether somebody follows a tensor: reverse mode, forward mode, or a transform of `torch.func`.

`requires_grad` alone speaks of the innermost transform only: it is False for a tensor that `vmap` maps while a `grad`
outside waits for its derivative. Every level must be asked.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad


def is_transformed(*tensors: Tensor) -> bool:
    """Whether `torch.func` maps or differentiates one of them, so that values are hidden and cannot be looked at."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def is_tracked(tensor: Tensor) -> bool:
    """Whether reverse mode follows a tensor, at any level of `torch.func` or outside of it."""
    while not tensor.requires_grad:
        if not is_transformed(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return True


def in_transform() -> bool:
    """Whether a transform of `torch.func` is at work. What is compiled cannot ask, and has none."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


def in_forward_mode() -> bool:
    """Whether forward mode is at work, be it for other tensors."""
    return forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward mode follows a tensor, of which `requires_grad` says nothing."""
    return in_forward_mode() and _has_tangent(tensor)


def _has_tangent(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    # Tensors that are mapped have no rule for this question, and the answer lies inside them.
    if not functorch.is_batchedtensor(tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    if functorch.peek_interpreter_stack() is None:
        return False
    # A transform hides the tangents that lie below it, so that each steps aside in turn.
    interpreter = retrieve_current_functorch_interpreter()
    inside = functorch.get_unwrapped(tensor) if levels(tensor)[:1] == [interpreter.level()] else tensor
    with interpreter.lower():
        return _has_tangent(inside)


def levels(tensor: Tensor) -> list[int]:
    """The transforms of `torch.func` that a tensor takes part in, the innermost first."""
    found = []
    while is_transformed(tensor):
        found.append(torch._C._functorch.maybe_get_level(tensor))
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return found

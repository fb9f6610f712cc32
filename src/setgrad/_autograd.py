"""Autograd helpers that several packages share.

Whether a tensor is differentiated is harder to tell than it looks: `requires_grad` describes the innermost transform of
`torch.func` only. It is False for a tensor that `vmap` maps while a `grad` outside waits for its derivative, so every
level must be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm

from setgrad.errors import DerivativeError

Result = TypeVar("Result")


def is_transformed(*tensors: Tensor) -> bool:
    """Return whether `torch.func` maps or differentiates one of the tensors, so that values cannot be read."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def is_tracked(tensor: Tensor) -> bool:
    """Return whether reverse mode tracks a tensor, at any level of `torch.func` or outside of it."""
    while not tensor.requires_grad:
        if not is_transformed(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return True


def in_transform() -> bool:
    """Return whether a transform of `torch.func` is active. Compiled code cannot tell and has none."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


def in_forward_mode() -> bool:
    """Return whether forward mode is active, possibly for other tensors."""
    return forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    """Return whether forward mode tracks a tensor; `requires_grad` does not show it."""
    return in_forward_mode() and _has_tangent(tensor)


def _has_tangent(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    # Mapped tensors have no rule for this call; the answer is inside them.
    if not functorch.is_batchedtensor(tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    if functorch.peek_interpreter_stack() is None:
        return False
    # A transform hides the tangents below it, so each level is lowered in turn.
    interpreter = retrieve_current_functorch_interpreter()
    inside = functorch.get_unwrapped(tensor) if levels(tensor)[:1] == [interpreter.level()] else tensor
    with interpreter.lower():
        return _has_tangent(inside)


def levels(tensor: Tensor) -> list[int]:
    """Return the levels of the `torch.func` transforms that a tensor is part of, innermost first."""
    found = []
    while is_transformed(tensor):
        found.append(torch._C._functorch.maybe_get_level(tensor))
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return found


def batch_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yield the submodules that normalise by the current batch, not by running statistics, with their names."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and (part.training or not part.track_running_stats):
            yield name, part


def outside_graph(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function that `torch.compile` cannot trace, with a graph break where it is compiling.

    Not a decorator: `torch.compiler.disable` imports the compiler, which takes as long as importing torch.
    """
    if not torch.compiler.is_compiling():
        return function(*args)
    result: Result = torch.compiler.disable(function)(*args)
    return result


@final
class _FirstOrderOnly(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, message: str, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.message = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise DerivativeError(ctx.message)


def first_order_only(gradient: Tensor, *sources: Tensor, message: str) -> Tensor:
    """Return a gradient that raises a DerivativeError when it is differentiated with respect to itself or its sources.

    `once_differentiable` is not enough: torch then raises only where the incoming gradient is differentiated.
    """
    if not torch.is_grad_enabled():
        return gradient
    tied: Tensor = _FirstOrderOnly.apply(gradient, message, *sources)
    return tied

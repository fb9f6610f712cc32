"""Checks and adapters for the user's function: modules, captured tensors, shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from setgrad._autograd import batch_norms, has_tangent, is_tracked, levels
from setgrad.errors import OptionError, ShapeError

# fn(y, *args) -> a tensor of the shape of y (of an objective: of the batch). Samples must not mix.
TensorFunction = Callable[..., Tensor]
Tensors = tuple[Tensor, ...]


def with_parameters(fn: TensorFunction, y0: Tensor, args: Tensors) -> tuple[TensorFunction, Tensors, Tensors]:
    """Turn a module into a function of y, the arguments, its parameters and its buffers, in this order.

    Buffers are passed too, because torch then raises in the backward pass if one was changed in place.

    Returns:
        The function, the tensors to differentiate (`args` and the parameters), and the constants (the buffers).

    Raises:
        OptionError: If the module normalises by the statistics of its batch.
    """
    if not isinstance(fn, nn.Module):
        return fn, args, ()
    _check_batch_norms(fn, y0)
    parameters, buffers = dict(fn.named_parameters()), dict(fn.named_buffers())
    # A buffer that is differentiated stays captured, so that `check_function` rejects it.
    buffers = {name: b for name, b in buffers.items() if not is_tracked(b) and not has_tangent(b)}
    names, n_args = (*parameters, *buffers), len(args)

    def call(y: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values[n_args:], strict=True))
        out: Tensor = torch.func.functional_call(fn, state, (y, *values[:n_args]))
        return out

    return call, (*args, *parameters.values()), tuple(buffers.values())


def _check_batch_norms(module: nn.Module, y0: Tensor) -> None:
    n_samples = y0.shape[:-1].numel()
    for name, layer in batch_norms(module):
        # A single sample may normalise over its own unknowns, as long as no running statistics are written.
        if n_samples > 1 or layer.track_running_stats:
            where = f" at {name!r}" if name else ""
            raise OptionError(
                f"{type(layer).__name__}{where} normalises by the statistics of its batch, which mixes samples, and in "
                "training mode writes running statistics at every call of the solver; put it into evaluation mode "
                "(module.eval()) with running statistics, or use LayerNorm"
            )


def check_function(fn: TensorFunction, y0: Tensor, args: Tensors) -> Tensor | None:
    """Call the function once and raise if a derivative would be lost.

    Returns:
        The residual at `y0`, or None under a transform of `torch.func`.

    Raises:
        OptionError: If an argument is not a tensor, or if the function captures a tensor that is differentiated.
        ShapeError: If the function does not return one tensor of the shape of y.
    """
    for number, arg in enumerate(args):
        if not isinstance(arg, Tensor):
            raise OptionError(
                f"argument {number} is {type(arg).__name__}, not a tensor; let the function capture constants instead"
            )
    # The arguments are detached, so if the output is tracked, a captured tensor is the reason.
    with torch.enable_grad():
        out = check_shape(fn(y0, *(a.detach() for a in args)), y0)
    if is_tracked(out) or has_tangent(out):
        raise OptionError(
            "the function captures a tensor that requires a gradient, which would be lost: pass it as an argument "
            "(fn(y, weight) with weight in *args), pass a module itself as fn, or detach it"
        )
    transforms = {level for tensor in (y0, *args) for level in levels(tensor)}
    if not transforms.issuperset(levels(out)):
        raise OptionError(
            "the function captures a tensor that torch.func maps or differentiates, and no argument is: pass it as an "
            "argument (fn(y, weight) with weight in *args)"
        )
    return None if transforms else out


def check_shape(out: Tensor, y: Tensor) -> Tensor:
    """Return the function's output, or raise a ShapeError if it is not one tensor of the shape of y."""
    if not isinstance(out, Tensor):
        raise ShapeError(
            f"the function must return one tensor of the shape of y, {tuple(y.shape)}, but returned "
            f"{type(out).__name__}; stack several unknowns on the last axis"
        )
    if out.shape != y.shape:
        raise ShapeError(f"the function must return the shape of y, {tuple(y.shape)}, but returned {tuple(out.shape)}")
    return out

"""Modules as functions of what they hold, and those that no solver can call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from setgrad._autograd import batch_norms, has_tangent, is_tracked
from setgrad.errors import OptionError
from setgrad.implicit._theorem import Function

Tensors = tuple[Tensor, ...]


def with_parameters(fn: Function, y0: Tensor, args: Tensors) -> tuple[Function, Tensors, Tensors]:
    """A module as a function of y, its arguments and what it holds, in the order in which they are returned.

    Its parameters count as arguments. Its buffers come apart: they are no arguments, but what is handed over is kept
    for the backward pass, and torch raises there if it was changed in place.
    """
    if not isinstance(fn, nn.Module):
        return fn, args, ()
    _refuse_batch_norm(fn, y0)
    parameters, buffers = dict(fn.named_parameters()), dict(fn.named_buffers())
    # What is followed stays captured, and so is refused: its derivative would be lost.
    buffers = {name: b for name, b in buffers.items() if not is_tracked(b) and not has_tangent(b)}
    names, count = (*parameters, *buffers), len(args)

    def call(y: Tensor, *values: Tensor) -> Tensor:
        own = dict(zip(names, values[count:], strict=True))
        out: Tensor = torch.func.functional_call(fn, own, (y, *values[:count]))
        return out

    return call, (*args, *parameters.values()), tuple(buffers.values())


def _refuse_batch_norm(module: nn.Module, y0: Tensor) -> None:
    several = y0.shape[:-1].numel() > 1
    for name, part in batch_norms(module):
        # One sample may normalise over a batch that it makes of itself, if nothing is written.
        if several or part.track_running_stats:
            where = f" at {name!r}" if name else ""
            raise OptionError(
                f"{type(part).__name__}{where} normalises by the statistics of its batch, which mixes samples, and in "
                "training mode writes running statistics at every call, which a function that is solved must not do; "
                "put it into evaluation mode (module.eval()) with running statistics, or use LayerNorm"
            )

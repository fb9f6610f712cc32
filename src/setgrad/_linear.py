"""Linear layers by the faster of two libraries on a CPU.

torch multiplies matrices in single precision with MKL. oneDNN, which comes with torch too, takes less than half the
time on an AMD EPYC with AVX-512: 130 billion multiply-adds a second on one core, where MKL does 55.
"""

from __future__ import annotations

from functools import cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from setgrad._autograd import in_forward_mode, in_transform

# Multiply-adds from which oneDNN pays: it prepares the first product of a new shape for up to half a millisecond.
_LEAST_WORK = 2**23


@final
class Linear(nn.Linear):
    """`nn.Linear`, by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return `torch.nn.functional.linear`, up to rounding, or the positive part of it.

    Examples:
        >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
        >>> linear(x, weight, torch.tensor([5.0]))
        tensor([[16.]])
    """
    if not _is_faster(x, weight):
        out = functional.linear(x, weight, bias)
        return out.relu_() if relu else out
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        out = _Linear.apply(rows, weight, bias)
        out = out.relu_() if relu else out
    else:
        out = _product(rows, weight, bias, "relu" if relu else "none")
    return out.reshape(*x.shape[:-1], len(weight))


def _is_faster(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN is there, faster, and can replace MKL in this state of torch."""
    return (
        not torch.compiler.is_compiling()
        and x.numel() * weight.shape[0] >= _LEAST_WORK
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and _has_wide_vectors()
        and not (in_transform() or in_forward_mode() or torch.is_autocast_enabled("cpu"))
    )


@cache
def _has_wide_vectors() -> bool:
    is_there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_there and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    """Return the product by oneDNN, without a graph, and what is `then` done to it."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return out


@final
class _Linear(torch.autograd.Function):
    """A product whose derivatives are such products too, so it has derivatives of every order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.T) if of_x else None,
            linear(gradient.T, x.T) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )

"""Parts that neural set functions share: rho as plain tensors, and gains piece by piece.

A bound function keeps the tensors that F depends on, and no module: what is bound stays as it was when the module
changes, and inference can differentiate with respect to every tensor by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders._checkpoint import checkpointed
from setgrad.errors import OptionError


def make_rho(in_dim: int, hidden: Sequence[int]) -> nn.Sequential:
    """Make a perceptron from a code to one number."""
    if not hidden or min(hidden) < 1:
        raise OptionError(f"hidden must name at least one layer of at least 1 unit, not {tuple(hidden)}")
    parts: list[nn.Module] = []
    for before, after in pairwise((in_dim, *hidden)):
        parts += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Linear(hidden[-1], 1))


def layers_of(rho: nn.Sequential) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of rho, first layer first."""
    layers = [layer for layer in rho if isinstance(layer, nn.Linear)]
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def finish(first: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, spare: bool = False) -> Tensor:
    """Apply rho after its first layer: pre-activations `(..., h)` to values `(...)`.

    `spare` says that nobody needs the pre-activations again, so that they may be overwritten.
    """
    # One axis of rows: a layer of more axes returns a view, and autograd copies a view that is overwritten many times.
    x = (first.relu_() if spare else torch.relu(first)).flatten(0, -2)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = linear(x, weight, bias).relu_()
    return linear(x, weights[-1], biases[-1]).reshape(first.shape[:-1])


def in_and_out(sums: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Sums `(m, k, h)`, one for each item, with the item's row `(k, h)` fully in and fully out: `(2, m, k, h)`.

    `shares` `(m, k)` says how much of the item they hold. One tensor, so that one chain of kernels serves both.
    """
    shares = shares.to(rows.dtype)
    return torch.addcmul(sums, torch.stack([1 - shares, -shares])[..., None], rows)


def in_chunks(compute: Callable[..., Tensor], bits: Tensor, *items: Tensor, chunk: int) -> Tensor:
    """Gains `(m, n)` from `compute(bits (m, k), *rows (k, ...))`, with at most `chunk` flipped subsets at once.

    Pieces are computed again in the backward pass, so that only what they are made of is kept.
    """
    step = max(1, chunk // max(1, len(bits)))
    if bits.shape[1] <= step:
        return compute(bits, *items)
    pieces = zip(bits.split(step, 1), *(x.split(step) for x in items), strict=True)
    return torch.cat([checkpointed(compute, *piece) for piece in pieces], 1)

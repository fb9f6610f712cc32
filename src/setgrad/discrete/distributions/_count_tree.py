"""The distribution of the number of ones among independent Bernoulli variables, by divide and conquer.

The counts of two blocks add up to that of their union, so their distributions are convolved. Blocks are joined in pairs
until one is left, and counts above a maximum are dropped: n items need n log(max_count) numbers in all. All terms are
positive, so nothing cancels. Counts are on the FIRST axis, so that the inner loops are long.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


def count_tree(outside: Tensor, inside: Tensor, max_count: int) -> list[Tensor]:
    """Return the distribution of the count of each block, from single items (first) to the whole set (last).

    Args:
        outside: Probability that an item is not counted, of shape (*batch, n).
        inside: Probability that it is counted.
        max_count: Counts above this are dropped.

    Returns:
        Tensors of shape (counts, *batch, blocks). A block without a partner is joined with an empty one.
    """
    levels = [torch.stack([outside, inside])[: max_count + 1]]
    while levels[-1].shape[-1] > 1:
        left, right = halves(levels[-1])
        levels.append(convolve(left, right, min(2 * len(left) - 1, max_count + 1)))
    return levels


def halves(level: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and second partners of a level; the last partner may be an empty block, whose count is 0."""
    middle = (level.shape[-1] + 1) // 2
    left, right = level[..., :middle], level[..., middle:]
    if left.shape[-1] > right.shape[-1]:
        empty = torch.zeros_like(left[..., :1])
        empty[0] = 1
        right = torch.cat([right, empty], -1)
    return left, right


@torch.no_grad()
def sample_counts(levels: list[Tensor], number: int, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return samples with exactly `number` ones, by splitting the number between halves, down to single items."""
    top = levels[-1]
    counts = torch.full((samples, *top.shape[1:]), number, dtype=torch.long, device=top.device)
    for level in reversed(levels[:-1]):
        left, right = (half[:, None].expand(-1, samples, *half.shape[1:]) for half in halves(level))
        taken = torch.arange(len(level), device=top.device).reshape(-1, *(1,) * counts.ndim)
        rest = counts - taken
        possible = (rest >= 0) & (rest < len(level))
        below = torch.where(possible, left * right.gather(0, rest.clamp(0, len(level) - 1)), 0).cumsum(0)
        total = below[-1]
        uniform = torch.rand(total.shape, dtype=total.dtype, device=total.device, generator=generator)
        # The threshold stays below the total even if the product rounds up, so a split of probability 0 is never drawn.
        threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        share = (below <= threshold).sum(0)
        counts = torch.cat([share, counts - share], -1)[..., : level.shape[-1]]
    return counts


def convolve(a: Tensor, b: Tensor, size: int) -> Tensor:
    """Return out[s] = sum over i + j = s of a[i] b[j], for s < size, on the first axis."""
    return _Convolve.apply(a, b, size)


def correlate(g: Tensor, b: Tensor, size: int) -> Tensor:
    """Return out[i] = sum over j of g[i + j] b[j], for i < size: the adjoint of `convolve`."""
    return _Correlate.apply(g, b, size)


@final
class _Convolve(torch.autograd.Function):
    """One shifted sum for each entry of b, in place: no table of all products."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, size: int) -> Tensor:
        out = a.new_zeros((size, *a.shape[1:]))
        for j in range(min(len(b), size)):
            reach = min(len(a), size - j)
            out[j : j + reach].addcmul_(a[:reach], b[j])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        need_a, need_b, _ = ctx.needs_input_grad
        return correlate(g, b, len(a)) if need_a else None, correlate(g, a, len(b)) if need_b else None, None


@final
class _Correlate(torch.autograd.Function):
    """The same, with the shift on the other side."""

    @staticmethod
    def forward(g: Tensor, b: Tensor, size: int) -> Tensor:
        out = g.new_zeros((size, *g.shape[1:]))
        for j in range(min(len(b), len(g))):
            reach = min(size, len(g) - j)
            out[:reach].addcmul_(g[j : j + reach], b[j])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        g, b = ctx.saved_tensors
        need_g, need_b, _ = ctx.needs_input_grad
        return convolve(h, b, len(g)) if need_g else None, correlate(g, h, len(b)) if need_b else None, None

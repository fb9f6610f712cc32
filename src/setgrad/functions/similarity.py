"""How alike two items are: what facility location, graph cut and log-determinant are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.functions._protocol import real
from setgrad.sets import Sets

# Items (b, n, ...) and (b, k, ...) to similarities (b, n, k).
Similarity = Callable[[Tensor, Tensor], Tensor]


def rbf(gamma: float | Tensor = 1.0) -> Similarity:
    """Return the kernel exp(-gamma |x - y|^2), for items of any shape.

    Example:
        >>> x = torch.tensor([[[0.0], [2.0]]])
        >>> rbf(gamma=0.25)(x, x)
        tensor([[[1.0000, 0.3679],
                 [0.3679, 1.0000]]])
    """

    def similarity(x: Tensor, y: Tensor) -> Tensor:
        squares: Tensor = _Squares.apply(x[:, :, None].flatten(2), y[:, :, None].flatten(2))
        return (-gamma * squares).exp()

    return similarity


@final
class _Squares(torch.autograd.Function):
    """Squared distances `(b, n, k)` of rows `(b, n, d)` and `(b, k, d)`, of true differences.

    |x|^2 + |y|^2 - 2 xy would be quicker, and wrong where items lie near each other and far from 0. Derivatives are
    made of products all the same, in double precision: they lose digits only once, not twice.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        """No tensor of size n k d."""
        kind = torch.promote_types(x.dtype, torch.float32)
        apart = torch.cdist(x.to(kind), y.to(kind), compute_mode="donot_use_mm_for_euclid_dist")
        return apart.square().to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Items are all that is kept."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        """Twice the differences, weighted and summed."""
        x, y, g = (t.double() for t in (*ctx.saved_tensors, cotangents[0]))
        to_x = 2 * (x * g.sum(2)[..., None] - g @ y)
        to_y = 2 * (y * g.sum(1)[..., None] - g.mT @ x)
        return to_x.to(ctx.saved_tensors[0].dtype), to_y.to(ctx.saved_tensors[1].dtype)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """Twice the difference times that of the tangents, for every pair."""
        x, y = (t.double() for t in ctx.saved_tensors)
        dx, dy = (torch.zeros_like(t) if d is None else d.double() for t, d in zip((x, y), tangents, strict=True))
        own = (x * dx).sum(2)[:, :, None] + (y * dy).sum(2)[:, None]
        return (2 * (own - x @ dy.mT - dx @ y.mT)).to(ctx.saved_tensors[0].dtype)


def kernel(similarity: Similarity | None, sets: Sets) -> Tensor:
    """Compare all pairs of items of each set, `(b, longest, longest)`; 0 where either place holds no item."""
    # Ones rather than zeros in the empty places: a similarity may divide by the norm, and NaN survives masking.
    items, there = sets.with_values(real(sets.values)).padded(fill=1.0)
    pairs = real((similarity or rbf())(items, items))
    count, longest = there.shape
    if pairs.shape != (count, longest, longest):
        raise ShapeError(
            f"the similarity returned shape {tuple(pairs.shape)} for items of shape {tuple(items.shape)}; "
            f"it must return one number for each pair, {(count, longest, longest)}"
        )
    return torch.where(there[:, :, None] & there[:, None], pairs, torch.zeros_like(pairs))

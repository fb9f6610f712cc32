"""Similarities of items, for facility location, graph cut and log-determinant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.functions._set_function import to_real
from setgrad.sets import Sets

# From items (b, n, ...) and (b, k, ...) to similarities (b, n, k).
Similarity = Callable[[Tensor, Tensor], Tensor]


def rbf(gamma: float | Tensor = 1.0) -> Similarity:
    """Return the similarity exp(-gamma |x - y|^2), for items of any shape.

    Examples:
        >>> x = torch.tensor([[[0.0], [2.0]]])
        >>> rbf(gamma=0.25)(x, x)
        tensor([[[1.0000, 0.3679],
                 [0.3679, 1.0000]]])
    """

    def similarity(x: Tensor, y: Tensor) -> Tensor:
        squares: Tensor = _SquaredDistances.apply(x[:, :, None].flatten(2), y[:, :, None].flatten(2))
        return (-gamma * squares).exp()

    return similarity


@final
class _SquaredDistances(torch.autograd.Function):
    """Squared distances `(b, n, k)` of rows `(b, n, d)` and `(b, k, d)`, from their differences.

    |x|^2 + |y|^2 - 2 xy is faster, but wrong for items that are close to each other and far from 0. Derivatives do use
    such products, in double precision, where only one subtraction loses digits.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        # `cdist` builds no tensor of size n k d.
        dtype = torch.promote_types(x.dtype, torch.float32)
        distances = torch.cdist(x.to(dtype), y.to(dtype), compute_mode="donot_use_mm_for_euclid_dist")
        return distances.square().to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        x, y, g = (t.double() for t in (*ctx.saved_tensors, cotangents[0]))
        to_x = 2 * (x * g.sum(2)[..., None] - g @ y)
        to_y = 2 * (y * g.sum(1)[..., None] - g.mT @ x)
        return to_x.to(ctx.saved_tensors[0].dtype), to_y.to(ctx.saved_tensors[1].dtype)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        x, y = (t.double() for t in ctx.saved_tensors)
        dx, dy = (torch.zeros_like(t) if d is None else d.double() for t, d in zip((x, y), tangents, strict=True))
        own = (x * dx).sum(2)[:, :, None] + (y * dy).sum(2)[:, None]
        return (2 * (own - x @ dy.mT - dx @ y.mT)).to(ctx.saved_tensors[0].dtype)


def pairwise_similarities(similarity: Similarity | None, sets: Sets) -> Tensor:
    """Return the similarities of all pairs of items of each set, `(b, longest, longest)`, with 0 in the padding.

    Raises:
        ShapeError: If the similarity does not return one number for each pair.
    """
    # The padding is 1, not 0, because a similarity may divide by the norm, and the gradient of NaN survives a mask.
    items, mask = sets.with_values(to_real(sets.values)).padded(fill=1.0)
    pairs = to_real((similarity or rbf())(items, items))
    count, longest = mask.shape
    if pairs.shape != (count, longest, longest):
        raise ShapeError(
            f"the similarity returned shape {tuple(pairs.shape)} for items of shape {tuple(items.shape)}; "
            f"it must return one number for each pair, {(count, longest, longest)}"
        )
    return torch.where(mask[:, :, None] & mask[:, None], pairs, torch.zeros_like(pairs))

"""How alike two items are: what facility location, graph cut and log-determinant are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from setgrad.errors import ShapeError
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
        x, y = x[:, :, None].flatten(2), y[:, :, None].flatten(2)
        # Distances do not change under a shift, so it needs no graph; near 0 the products below lose no digits.
        origin = x[:, :1].detach()
        x, y = x - origin, y - origin
        squares = x.square().sum(2)[:, :, None] + y.square().sum(2)[:, None]
        return (-gamma * (squares - 2 * x @ y.mT).clamp(min=0)).exp()

    return similarity


def kernel(similarity: Similarity | None, sets: Sets) -> Tensor:
    """Compare all pairs of items of each set, `(b, longest, longest)`; 0 where either place holds no item."""
    # Ones rather than zeros in the empty places: a similarity may divide by the norm, and NaN survives masking.
    items, real = (sets if sets.dtype.is_floating_point else sets.to(torch.get_default_dtype())).padded(fill=1.0)
    pairs = (similarity or rbf())(items, items)
    count, longest = real.shape
    if pairs.shape != (count, longest, longest):
        raise ShapeError(
            f"the similarity returned shape {tuple(pairs.shape)} for items of shape {tuple(items.shape)}; "
            f"it must return one number for each pair, {(count, longest, longest)}"
        )
    return torch.where(real[:, :, None] & real[:, None], pairs, torch.zeros_like(pairs))

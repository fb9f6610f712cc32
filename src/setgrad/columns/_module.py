"""The part of a model that reads the numbers of items: quantities as they are, codes as learned vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.columns._part import Part, count_features

# Length of the vector of a category before training, in standard deviations of a number. One-hot features that are
# scaled like numbers have a similar length.
_LENGTH = 2.0


@final
class ColumnItems(nn.Module):
    """Maps the numbers of items `(total, width)` to features `(total, out_dim)`.

    Args:
        parts: What the numbers are.

    Attributes:
        out_dim: Number of features of an item.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.widths = [part.width for part in parts]
        self.tables = nn.ModuleList([CodeVectors(part) if part.codes else nn.Identity() for part in parts])
        self.out_dim = count_features(parts)

    def forward(self, items: Tensor) -> Tensor:
        """Return the features of items."""
        pieces = items.split(self.widths, 1)
        return torch.cat([table(piece) for table, piece in zip(self.tables, pieces, strict=True)], 1)


@final
class CodeVectors(nn.Module):
    """The sum of the vectors of the codes of an item, over the root of their number; code 0 does not count.

    Args:
        part: What the numbers are.
    """

    def __init__(self, part: Part) -> None:
        super().__init__()
        # Code 0 has no row.
        rows = part.codes - 1
        weight = torch.eye(rows, part.dim) if rows <= part.dim else torch.randn(rows, part.dim) * part.dim**-0.5
        if part.scales is not None:
            weight *= torch.as_tensor(part.scales[1:], dtype=weight.dtype)[:, None]
        self.weight = nn.Parameter(_LENGTH * weight)

    def forward(self, codes: Tensor) -> Tensor:
        """Return a vector for each item, from `(total, width)` to `(total, dim)`."""
        known = codes > 0
        vectors = self.weight[(codes.long() - 1).clamp(min=0)] * known[..., None]
        return vectors.sum(1) / known.sum(1, keepdim=True).clamp(min=1).to(vectors.dtype).sqrt()

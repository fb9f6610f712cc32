"""The part of a model that reads the numbers of items: quantities as they are, codes as learned vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.columns._part import HASHED, Part, count_features

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
        self.widths, self.dims = [part.width for part in parts], [part.features for part in parts]
        self.are_texts = [part.words > 0 for part in parts]
        self.tables = nn.ModuleList([CodeVectors(part) if part.codes else nn.Identity() for part in parts])
        self.out_dim = count_features(parts)

    def forward(self, items: Tensor) -> Tensor:
        """Return the features of items."""
        pieces = items.split(self.widths, 1)
        return torch.cat([table(piece) for table, piece in zip(self.tables, pieces, strict=True)], 1)

    def compared(self, items: Tensor, features: Tensor) -> Tensor:
        """Return the features by which pairs of items are compared, `(total, d)`.

        These are the features of the items, but for texts: vectors of words are learned for other purposes, and are too
        short to tell how many words two texts share.

        Args:
            items: The numbers of the items.
            features: Their features.
        """
        if not any(self.are_texts):
            return features
        pieces = zip(self.are_texts, items.split(self.widths, 1), features.split(self.dims, 1), strict=True)
        return torch.cat([hashed(codes).to(own.dtype) if is_text else own for is_text, codes, own in pieces], 1)


def hashed(codes: Tensor) -> Tensor:
    """Return signed counts of codes in `HASHED` places, over the root of their number; code 0 does not count.

    The product of two items is about the number of codes that they share. Signs let collisions cancel on average.
    """
    numbers, known = codes.long(), codes > 0
    signs = (1 - 2 * (numbers // HASHED % 2)) * known
    counts = codes.new_zeros(codes.shape[0], HASHED).scatter_add(1, numbers % HASHED, signs.to(codes.dtype))
    return _LENGTH * counts / known.sum(1, keepdim=True).clamp(min=1).to(codes.dtype).sqrt()


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
        # Plain indexing takes several times as long.
        rows = torch.cat([self.weight.new_zeros(1, self.weight.shape[1]), self.weight])
        vectors = nn.functional.embedding(codes.long(), rows, padding_idx=0)
        count = (codes > 0).sum(1, keepdim=True).clamp(min=1)
        return vectors.sum(1) / count.to(vectors.dtype).sqrt()

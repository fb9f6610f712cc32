"""Conversion between flat masks `(m, total)` and the padded batch `(m, b, longest)` that batched products need."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.sets import Sets


def pad_masks(masks: Tensor, sets: Sets, dtype: torch.dtype) -> Tensor:
    """Return masks as numbers in a padded batch, with 0 in the padding."""
    padded, _ = sets.with_values(masks.T.to(dtype)).padded()
    return padded.permute(2, 0, 1)


def take_items(x: Tensor, sets: Sets, coordinates: Tensor | None) -> Tensor:
    """Return the entries of `(m, b, longest)` that belong to all items, or to the items `coordinates`."""
    rows = sets.layout.padded_rows if coordinates is None else sets.layout.padded_rows[coordinates]
    return x.flatten(1)[:, rows]

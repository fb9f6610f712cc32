"""Between flat masks `(m, total)` and the padded batch `(m, b, longest)` that batched products want."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.sets import Sets


def pad_masks(masks: Tensor, sets: Sets, dtype: torch.dtype) -> Tensor:
    """Return masks as numbers in the padded batch; places without an item are 0, that is, never chosen."""
    padded, _ = sets.with_values(masks.T.to(dtype)).padded()
    return padded.permute(2, 0, 1)


def take_items(x: Tensor, sets: Sets, coordinates: Tensor | None) -> Tensor:
    """Take the entries of real items out of `(m, b, longest)`: all of them, or those asked for."""
    slots = sets.layout.padded_rows if coordinates is None else sets.layout.padded_rows[coordinates]
    return x.flatten(1)[:, slots]

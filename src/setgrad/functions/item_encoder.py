"""How set functions make their item encoder phi from the argument `phi`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from setgrad.encoders import ITEM_ENCODERS, ItemEncoder, ItemWise
from setgrad.errors import unknown_name


def make_item_encoder(in_dim: int | Sequence[int], phi: str | nn.Module, dim: int | None = None) -> ItemEncoder:
    """Return the item encoder for a preset, an encoder, or a module that works on single items.

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: The name of a preset in `setgrad.encoders.ITEM_ENCODERS`, an `ItemEncoder`, or any other module.
        dim: Number of features that a preset returns; None for the preset's default.

    Raises:
        OptionError: If there is no preset of that name.
    """
    if isinstance(phi, ItemEncoder):
        return phi
    if isinstance(phi, nn.Module):
        return ItemWise(phi, in_dim)
    if phi not in ITEM_ENCODERS:
        raise unknown_name("phi", phi, ITEM_ENCODERS)
    encoder = ITEM_ENCODERS[phi]
    return encoder(in_dim) if dim is None else encoder(in_dim, dim)

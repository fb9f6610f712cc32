"""The item encoder that the options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setgrad.encoders import ContextItems, ItemEncoder, Stacked, UMBCItems
from setgrad.functions._neural import make_item_encoder
from setgrad.selector._tables import CONTEXT, PLUS_CONTEXT, UMBC

if TYPE_CHECKING:
    from setgrad.selector._model_config import ModelConfig


def make_phi(config: ModelConfig) -> ItemEncoder:
    """Build the item encoder that the options name."""
    options, name = config.options, config.phi or CONTEXT
    if name == UMBC:
        return UMBCItems(config.feature_shape, options.dim, layers=options.layers, heads=options.heads)
    first, joined, _ = name.partition(PLUS_CONTEXT)
    if name != CONTEXT and not joined:
        return make_item_encoder(config.feature_shape, name, options.dim)
    in_shape = options.dim if joined else config.feature_shape
    context = ContextItems(in_shape, options.dim, layers=options.layers, heads=options.heads, slots=config.slots)
    return Stacked(make_item_encoder(config.feature_shape, first, options.dim), context) if joined else context

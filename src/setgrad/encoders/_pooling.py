"""Helpers that several set encoders share: features of items, slot logits, checks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, ItemWise, item_shape
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Sets, segment_max


def item_encoder(phi: nn.Module | None, in_dim: int | Sequence[int]) -> ItemEncoder:
    """Return phi as an item encoder: an encoder unchanged, a module wrapped, the raw features for None."""
    module = nn.Flatten(1) if phi is None else phi
    if not isinstance(module, nn.Module):
        raise OptionError(f"phi must be a module, such as MLPItems(in_dim, dim), not {phi!r}")
    if not isinstance(module, ItemEncoder):
        return ItemWise(module, in_dim)
    shape = getattr(module, "shape", item_shape(in_dim))
    if shape != item_shape(in_dim):
        raise ShapeError(f"phi reads items of shape {shape}, but in_dim is {in_dim}; build both for the same items")
    return module


def item_features(phi: ItemEncoder, sets: Sets, like: Tensor | None) -> Tensor:
    """Return the features of every item, `(total, phi.out_dim)`.

    Floating-point items are converted to the dtype of `like`, a parameter of the encoder, if it has any. Integers are
    left unchanged, since they may be tokens.
    """
    check_sets(sets)
    values = sets.values
    if values.dtype.is_floating_point:
        return phi(sets if like is None or values.dtype == like.dtype else sets.with_values(values.to(like.dtype)))
    try:
        features = phi(sets)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise _unsupported_items(values) from error
    if like is not None and not features.dtype.is_floating_point:
        raise _unsupported_items(values)
    return features


def _unsupported_items(values: Tensor) -> DataError:
    return DataError(
        f"phi cannot compute features of {values.dtype} items; if they are quantities, convert them "
        "(sets.to(torch.float32))"
    )


def check_sets(sets: object) -> None:
    """Raise a DataError for anything that is not `Sets`, such as a tensor that could be one set or many."""
    if not isinstance(sets, Sets):
        raise DataError(f"encoders read Sets, not {type(sets).__name__}; use Sets.from_list or Sets.from_padded")


def check_attention_sizes(dim: int, heads: int, slots: int, name: str = "slots") -> None:
    """Raise an OptionError for sizes that attention cannot have."""
    if min(dim, heads, slots) < 1:
        raise OptionError(f"dim, heads and {name} must be at least 1, not {dim}, {heads} and {slots}")
    if dim % heads:
        raise OptionError(f"dim must be a multiple of heads, but {dim} is not a multiple of {heads}")


def first_arg_max(x: Tensor, sets: Sets, valid: Tensor | None = None) -> Tensor:
    """Return the row of the largest entry of each column in each set, `(b, columns)`; -1 where there is none.

    The first of equal entries wins. Only rows where `valid` `(total,)` is true take part, all if None; the others must
    be -inf. NaN counts as larger than any number, so that it is not lost.

    Examples:
        >>> sets = Sets.from_lengths(torch.zeros(3, 1), [2, 0, 1])
        >>> first_arg_max(torch.tensor([[1.0], [4.0], [2.0]]), sets).tolist()
        [[1], [-1], [2]]
    """
    x = x.detach()
    maxima = segment_max(x, sets).index_select(0, sets.layout.ids)
    rows = torch.arange(len(x), device=x.device)[:, None].expand_as(x)
    # Counted from the end, so that the largest number belongs to the first row, and 0 means that there is none.
    wins = (x == maxima) | x.isnan()
    ranked = torch.where(wins if valid is None else wins & valid[:, None], len(x) - rows, 0)
    best = segment_max(ranked, sets, empty=0)
    return torch.where(best > 0, len(x) - best, -1)

"""Small things that several poolings share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, ItemWise
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Sets, segment_max


def item_encoder(phi: nn.Module | None, in_dim: int | Sequence[int]) -> ItemEncoder:
    """What is seen of an item: an encoder as it is, a module wrapped, the item's own numbers for None."""
    module = nn.Flatten(1) if phi is None else phi
    if not isinstance(module, nn.Module):
        raise OptionError(f"phi must be a module, such as MLPItems(in_dim, width), not {phi!r}")
    return module if isinstance(module, ItemEncoder) else ItemWise(module, in_dim)


def item_features(phi: ItemEncoder, sets: Sets, shape: tuple[int, ...], like: Tensor | None) -> Tensor:
    """Features of every item, after a check that the items are those the encoder was made for.

    Items that are floating-point numbers take the type of `like`, a weight of the encoder, if it has any; whole numbers
    are left as they are, since they may be names.
    """
    require_sets(sets)
    if tuple(sets.item_shape) != shape:
        raise ShapeError(
            f"this encoder reads items of shape {shape}, but the sets hold items of {tuple(sets.item_shape)}"
        )
    if like is not None and sets.dtype.is_floating_point and sets.dtype != like.dtype:
        sets = sets.with_values(sets.values.to(like.dtype))
    if sets.dtype.is_floating_point:
        return phi(sets)
    try:
        features = phi(sets)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise _unread(sets) from error
    if like is not None and not features.dtype.is_floating_point:
        raise _unread(sets)
    return features


def _unread(sets: Sets) -> DataError:
    return DataError(
        f"phi makes no features of items of {sets.dtype}; if they are quantities, convert them (sets.to(torch.float32))"
    )


def require_sets(sets: object) -> None:
    """Refuse what is no `Sets`, as a tensor that could be one set or many."""
    if not isinstance(sets, Sets):
        raise DataError(f"encoders read Sets, not {type(sets).__name__}; use Sets.from_list or Sets.from_padded")


def require_sizes(dim: int, heads: int, slots: int, name: str = "slots") -> None:
    """Refuse an attention that has nothing to look with."""
    if min(dim, heads, slots) < 1:
        raise OptionError(f"dim, heads and {name} must be at least 1, not {dim}, {heads} and {slots}")
    if dim % heads:
        raise OptionError(f"dim must be a multiple of heads, but {dim} is not a multiple of {heads}")


def first_arg_max(x: Tensor, sets: Sets, some: Tensor | None = None) -> Tensor:
    """Row of the largest entry of each column in each set, `(b, width)`; the first of equals, -1 where there is none.

    Only the rows of which `some` `(total,)` is true take part, all if None; the others must be -inf. NaN counts as
    larger than any number, so that it is seen.

    Example:
        >>> sets = Sets.from_lengths(torch.zeros(3, 1), [2, 0, 1])
        >>> first_arg_max(torch.tensor([[1.0], [4.0], [2.0]]), sets).tolist()
        [[1], [-1], [2]]
    """
    x = x.detach()
    top = segment_max(x, sets).index_select(0, sets.layout.ids)
    rows = torch.arange(len(x), device=x.device)[:, None].expand_as(x)
    # Counted from the end, so that the largest number belongs to the first row, and 0 says that there is none.
    wins = (x == top) | x.isnan()
    ranked = torch.where(wins if some is None else wins & some[:, None], len(x) - rows, 0)
    best = segment_max(ranked, sets, empty=0)
    return torch.where(best > 0, len(x) - best, -1)

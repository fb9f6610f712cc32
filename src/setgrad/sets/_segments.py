"""Operations inside each set of a batch: sum, mean, max, softmax, ranks and top-k.

The first argument holds one row for each item, `(total, ...)`; the second says where the sets are. Nothing here
waits for the device, and the result for a set does not depend on its batch mates, but for the rounding of sums: a
batch of equal sizes is summed by a quicker way, in another order. Half precision is added up in single precision, and
comes back as it came; whole numbers and booleans are added up as int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._layout import Layout
from setgrad.sets._sets import Sets

# Types in which sums are made as they come.
_WIDE = (torch.float32, torch.float64)


def segment_sum(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Sum over the items of each set, `(b, ...)`; 0 for an empty set. Whole numbers and booleans give int64."""
    return _as_given(_total(x, _layout(x, sets)), x)


def segment_mean(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Mean over the items of each set, `(b, ...)`; 0 for an empty set. That of whole numbers is a default float."""
    layout = _layout(x, sets)
    kind = torch.get_default_dtype() if _is_whole(x.dtype) else _sum_type(x.dtype)
    count = layout.lengths.clamp(min=1).to(kind).reshape(-1, *[1] * (x.dim() - 1))
    return _as_given(_total(x, layout) / count, x)


def segment_max(x: Tensor, sets: Sets | Layout, empty: float = -torch.inf) -> Tensor:
    """Maximum over the items of each set, `(b, ...)`; `empty` for an empty set. Ties share the gradient.

    Whole numbers know no infinity: for them, say what `empty` is to be when there are empty sets.
    """
    layout = _layout(x, sets)
    if empty == -torch.inf and not x.dtype.is_floating_point:
        if not layout.host_lengths.all():
            raise DataError(f"an empty set has no maximum in {x.dtype}; give segment_max a value for it, e.g. empty=0")
        empty = 0  # never seen: no set is empty
    out = x.new_full((len(layout), *x.shape[1:]), empty)
    ids = layout.ids.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return out.scatter_reduce(0, ids, x, "amax", include_self=False)


def segment_softmax(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Softmax over the items of each set, of the shape of `x`."""
    layout, wide = _layout(x, sets), _cast(x, _sum_type(x.dtype))
    # The shift cancels in value and in derivative, so it needs no graph.
    top = segment_max(wide.detach(), layout, empty=0.0)
    e = (wide - top[layout.ids]).exp()
    return _as_given(e / segment_sum(e, layout)[layout.ids], x)


def segment_order(x: Tensor, sets: Sets | Layout, descending: bool = True) -> Tensor:
    """Item numbers sorted by `x` `(total,)` inside each set, sets in order; ties keep their order."""
    layout = _layout(x, sets)
    if layout.uniform:
        rows = x.reshape(len(layout), layout.longest).sort(dim=1, descending=descending, stable=True).indices
        return (rows + layout.offsets[:-1, None]).reshape(-1)
    order = x.sort(descending=descending, stable=True).indices
    return order[layout.ids[order].sort(stable=True).indices]


def segment_rank(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Rank of every item inside its set, 0 for the largest `x`; ties in order of position."""
    layout = _layout(x, sets)
    order = segment_order(x, layout)
    return torch.empty_like(order).scatter(0, order, layout.positions)


def segment_top_k(x: Tensor, sets: Sets | Layout, k: int | Sequence[int] | np.ndarray) -> Tensor:
    """Numbers of the `k` largest items of each set, best first, as indices into `x`.

    `k` is known on the host, one number for all sets or one for each, so the size of the result is too. A set with
    fewer than `k` items gives all of them.
    """
    layout = _layout(x, sets)
    wanted = np.asarray(k)
    if wanted.shape not in ((), (len(layout),)) or (wanted.size and not np.issubdtype(wanted.dtype, np.integer)):
        raise ShapeError(f"k must be one whole number, or a list of {len(layout)}, one for each set; got {k!r}")
    if (wanted < 0).any():
        raise DataError(f"k must not be negative; got {wanted.min()}")
    counts = np.minimum(wanted, layout.host_lengths).astype(np.int64)
    picked = Layout.from_lengths(counts, layout.device)
    starts = np.repeat(layout.host[:-1] - picked.host[:-1], counts)
    return segment_order(x, layout)[layout.to_device(starts + np.arange(picked.total))]


def segment_matmul(weights: Tensor, x: Tensor, sets: Sets | Layout) -> Tensor:
    """Weighted sums over each set for many weightings at once: `(m, total)` and `(total, h)` give `(m, b, h)`.

    They have the type of `x`; where `x` holds whole numbers, that of the weights, or int64 if these are whole too.
    """
    layout = _layout(x, sets)
    if not x.is_floating_point():
        kind = torch.promote_types(weights.dtype, x.dtype)
        x = x.to(torch.int64 if _is_whole(kind) else kind)
    m, (count, longest) = len(weights), (len(layout), layout.longest)
    # Padding turns the work into one batched product, which pays unless the sizes differ wildly. A GPU has none of
    # whole numbers.
    if count * longest <= 2 * layout.total + 4096 and not _is_whole(x.dtype):
        padded_x, _ = Sets(x, layout).padded()
        padded_w, _ = Sets(weights.T, layout).padded()
        # A sum over many items needs the digits that the caller gave it.
        with torch.autocast(x.device.type, enabled=False):
            return torch.einsum("bnm,bnh->mbh", padded_w.to(x.dtype), padded_x)
    if not m:
        return x.new_zeros(0, count, x.shape[1])
    return torch.stack([segment_sum(w[:, None].to(x.dtype) * x, layout) for w in weights])


def _total(x: Tensor, layout: Layout) -> Tensor:
    """Sum over the items of each set, in the type that it is made in."""
    kind = _sum_type(x.dtype)
    if layout.uniform:
        return x.reshape(len(layout), layout.longest, *x.shape[1:]).sum(1, dtype=kind)
    return x.new_zeros(len(layout), *x.shape[1:], dtype=kind).index_add(0, layout.ids, _cast(x, kind))


def _sum_type(kind: torch.dtype) -> torch.dtype:
    """Where many numbers can be added up: 256 + 1 is 256 in bfloat16, and 255 + 1 is 0 in uint8."""
    if kind in _WIDE:
        return kind
    return torch.int64 if _is_whole(kind) else torch.promote_types(kind, torch.float32)


def _is_whole(kind: torch.dtype) -> bool:
    return not (kind.is_floating_point or kind.is_complex)


def _as_given(result: Tensor, x: Tensor) -> Tensor:
    """The result in the type of `x`, if that can hold it."""
    return result if _is_whole(x.dtype) else _cast(result, x.dtype)


def _cast(x: Tensor, kind: torch.dtype) -> Tensor:
    # Asked first, because a conversion to the same type costs small batches time too.
    return x if x.dtype == kind else x.to(kind)


def _layout(x: Tensor, sets: Sets | Layout) -> Layout:
    layout = sets.layout if isinstance(sets, Sets) else sets
    if x.shape[:1] != (layout.total,):
        raise ShapeError(
            f"a tensor with one row for each of {layout.total} items was expected, not shape {tuple(x.shape)}"
        )
    return layout

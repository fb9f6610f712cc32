"""Operations inside each set of a batch: sum, mean, max, softmax, ranks and top-k.

The first argument holds one row for each item, `(total, ...)`; the second says where the sets are. Nothing here
waits for the device, and the result for a set does not depend on its batch mates, but for the rounding of sums: a
batch of equal sizes is summed by a quicker way, in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._layout import Layout
from setgrad.sets._sets import Sets


def segment_sum(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Sum over the items of each set, `(b, ...)`; 0 for an empty set."""
    layout = _layout(x, sets)
    if layout.uniform:
        return x.reshape(len(layout), layout.longest, *x.shape[1:]).sum(1)
    return x.new_zeros(len(layout), *x.shape[1:]).index_add(0, layout.ids, x)


def segment_mean(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Mean over the items of each set, `(b, ...)`; 0 for an empty set."""
    layout = _layout(x, sets)
    count = layout.lengths.clamp(min=1).to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    return segment_sum(x, layout) / count


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
    layout = _layout(x, sets)
    # The shift cancels in value and in derivative, so it needs no graph.
    top = segment_max(x.detach(), layout, empty=0.0)
    e = (x - top[layout.ids]).exp()
    return e / segment_sum(e, layout)[layout.ids]


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
    """Weighted sums over each set for many weightings at once: `(m, total)` and `(total, h)` give `(m, b, h)`."""
    layout = _layout(x, sets)
    m, (count, longest) = len(weights), (len(layout), layout.longest)
    # Padding turns the work into one batched product, which pays unless the sizes differ wildly.
    if count * longest <= 2 * layout.total + 4096:
        padded_x, _ = Sets(x, layout).padded()
        padded_w, _ = Sets(weights.T, layout).padded()
        # A sum over many items needs the digits that the caller gave it.
        with torch.autocast(x.device.type, enabled=False):
            return torch.einsum("bnm,bnh->mbh", padded_w.to(x.dtype), padded_x)
    if not m:
        return x.new_zeros(0, count, x.shape[1])
    return torch.stack([segment_sum(w[:, None].to(x.dtype) * x, layout) for w in weights])


def _layout(x: Tensor, sets: Sets | Layout) -> Layout:
    layout = sets.layout if isinstance(sets, Sets) else sets
    if x.shape[:1] != (layout.total,):
        raise ShapeError(
            f"a tensor with one row for each of {layout.total} items was expected, not shape {tuple(x.shape)}"
        )
    return layout

"""Operations inside each set of a batch: sum, mean, max, softmax, ranks and top-k.

The first argument has one row for each item, `(total, ...)`; the second gives the boundaries of the sets. No operation
waits for the device. The result for a set does not depend on the other sets of the batch, except for the rounding of
sums: a batch of sets of equal size is summed by a faster kernel, in another order. Half precision is summed in single
precision and returned in half precision; integers and booleans are summed as int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets._layout import Layout
from setgrad.sets._sets import Sets

# Types that are summed without a conversion.
_WIDE = (torch.float32, torch.float64)


def segment_sum(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Return the sum over the items of each set, `(b, ...)`; 0 for an empty set. Integers and booleans give int64.

    Raises:
        ShapeError: If `x` does not have one row for each item. All functions of this module raise it.

    Examples:
        >>> segment_sum(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 0, 1])).tolist()
        [3.0, 0.0, 3.0]
    """
    return _restore_dtype(_sum(x, _layout(x, sets)), x)


def segment_mean(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Return the mean over the items of each set, `(b, ...)`; 0 for an empty set. Integers give the default dtype.

    Examples:
        >>> segment_mean(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 0, 1])).tolist()
        [1.5, 0.0, 3.0]
    """
    layout = _layout(x, sets)
    dtype = torch.get_default_dtype() if _is_integral(x.dtype) else _sum_dtype(x.dtype)
    count = layout.lengths.clamp(min=1).to(dtype).reshape(-1, *[1] * (x.dim() - 1))
    return _restore_dtype(_sum(x, layout) / count, x)


def segment_max(x: Tensor, sets: Sets | Layout, empty: float = -torch.inf) -> Tensor:
    """Return the maximum over the items of each set, `(b, ...)`. Tied items share the gradient.

    Args:
        x: One row for each item.
        sets: The boundaries of the sets.
        empty: Value for empty sets. Integers have no infinity, so they need one if there are empty sets.

    Raises:
        DataError: If `x` holds integers, a set is empty and `empty` is infinite.

    Examples:
        >>> segment_max(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 0, 1])).tolist()
        [2.0, -inf, 3.0]
    """
    layout = _layout(x, sets)
    if empty == -torch.inf and not x.dtype.is_floating_point:
        if not layout.host_lengths.all():
            raise DataError(f"an empty set has no maximum in {x.dtype}; pass segment_max a value for it, e.g. empty=0")
        empty = 0  # unused: no set is empty
    if layout.uniform:
        return x.reshape(len(layout), layout.longest, *x.shape[1:]).amax(1)
    out = x.new_full((len(layout), *x.shape[1:]), empty)
    ids = layout.ids.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return out.scatter_reduce(0, ids, x, "amax", include_self=False)


def segment_softmax(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Return the softmax over the items of each set, in the shape of `x`.

    Examples:
        >>> segment_softmax(torch.tensor([1.0, 1.0, 3.0]), Layout.from_lengths([2, 1])).tolist()
        [0.5, 0.5, 1.0]
    """
    layout, wide = _layout(x, sets), _cast(x, _sum_dtype(x.dtype))
    # The shift cancels in the value and in the derivative, so it needs no graph.
    top = segment_max(wide.detach(), layout, empty=0.0)
    e = (wide - top[layout.ids]).exp()
    return _restore_dtype(e / segment_sum(e, layout)[layout.ids], x)


def segment_order(x: Tensor, sets: Sets | Layout, descending: bool = True) -> Tensor:
    """Return the indices that sort `x` `(total,)` inside each set, set by set; ties keep their order.

    Examples:
        >>> segment_order(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 1])).tolist()
        [1, 0, 2]
    """
    layout = _layout(x, sets)
    if layout.uniform:
        rows = x.reshape(len(layout), layout.longest).sort(dim=1, descending=descending, stable=True).indices
        return (rows + layout.offsets[:-1, None]).reshape(-1)
    order = x.sort(descending=descending, stable=True).indices
    return order[layout.ids[order].sort(stable=True).indices]


def segment_rank(x: Tensor, sets: Sets | Layout) -> Tensor:
    """Return the rank of each item inside its set, 0 for the largest `x`; ties are ranked by position.

    Examples:
        >>> segment_rank(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 1])).tolist()
        [1, 0, 0]
    """
    layout = _layout(x, sets)
    order = segment_order(x, layout)
    return torch.empty_like(order).scatter(0, order, layout.positions)


def segment_top_k(x: Tensor, sets: Sets | Layout, k: int | Sequence[int] | np.ndarray) -> Tensor:
    """Return the indices into `x` of the `k` largest items of each set, best first.

    Args:
        x: One number for each item, `(total,)`.
        sets: The boundaries of the sets.
        k: One integer for all sets, or one for each. It is known on the host, and so is the size of the result. A set
            with fewer than `k` items contributes all of them.

    Raises:
        ShapeError: If `k` is neither an integer nor a list of one integer for each set.
        DataError: If `k` is negative.

    Examples:
        >>> segment_top_k(torch.tensor([1.0, 2.0, 3.0]), Layout.from_lengths([2, 1]), 1).tolist()
        [1, 2]
    """
    layout = _layout(x, sets)
    ks = np.asarray(k)
    if ks.shape not in ((), (len(layout),)) or (ks.size and not np.issubdtype(ks.dtype, np.integer)):
        raise ShapeError(f"k must be one integer, or a list of {len(layout)}, one for each set; got {k!r}")
    if (ks < 0).any():
        raise DataError(f"k must be at least 0; got {ks.min()}")
    counts = np.minimum(ks, layout.host_lengths).astype(np.int64)
    picked = Layout.from_lengths(counts, layout.device)
    starts = np.repeat(layout.host_offsets[:-1] - picked.host_offsets[:-1], counts)
    return segment_order(x, layout)[layout.to_device(starts + np.arange(picked.total))]


def segment_matmul(weights: Tensor, x: Tensor, sets: Sets | Layout) -> Tensor:
    """Return weighted sums over each set for `m` weightings at once, `(m, b, h)`.

    Args:
        weights: The weightings, `(m, total)`; booleans are masks.
        x: One row for each item, `(total, h)`. The result has its type; if it holds integers, that of the weights, or
            int64 if the weights are integers too.
        sets: The boundaries of the sets.

    Examples:
        >>> masks = torch.tensor([[True, False, True]])
        >>> segment_matmul(masks, torch.tensor([[1.0], [2.0], [3.0]]), Layout.from_lengths([2, 1])).tolist()
        [[[1.0], [3.0]]]
    """
    layout = _layout(x, sets)
    if not x.is_floating_point():
        dtype = torch.promote_types(weights.dtype, x.dtype)
        x = x.to(torch.int64 if _is_integral(dtype) else dtype)
    m, (count, longest) = len(weights), (len(layout), layout.longest)
    # Padding gives one batched product, which is faster unless the sizes differ a lot. GPUs have none for integers.
    if count * longest <= 2 * layout.total + 4096 and x.dtype != torch.int64:
        padded_x, _ = Sets(x, layout).padded()
        padded_w, _ = Sets(weights.T, layout).padded()
        padded_w = padded_w.to(x.dtype)
        # A sum over many items needs the full precision of its input.
        is_cast = torch.is_autocast_enabled(x.device.type)
        with torch.autocast(x.device.type, enabled=False) if is_cast else nullcontext():
            return torch.bmm(padded_w.mT, padded_x).transpose(0, 1)
    if not m:
        return x.new_zeros(0, count, x.shape[1])
    return torch.stack([segment_sum(w[:, None].to(x.dtype) * x, layout) for w in weights])


def _sum(x: Tensor, layout: Layout) -> Tensor:
    """Return the sum over the items of each set in the type of the accumulator."""
    dtype = _sum_dtype(x.dtype)
    if layout.uniform:
        return x.reshape(len(layout), layout.longest, *x.shape[1:]).sum(1, dtype=dtype)
    return x.new_zeros(len(layout), *x.shape[1:], dtype=dtype).index_add(0, layout.ids, _cast(x, dtype))


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a type that can hold a long sum: 256 + 1 is 256 in bfloat16, and 255 + 1 is 0 in uint8."""
    if dtype in _WIDE:
        return dtype
    return torch.int64 if _is_integral(dtype) else torch.promote_types(dtype, torch.float32)


def _is_integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _restore_dtype(result: Tensor, x: Tensor) -> Tensor:
    """Return the result in the type of `x`, unless that is an integer type."""
    return result if _is_integral(x.dtype) else _cast(result, x.dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    # `to` costs time on small batches even if the type is the same.
    return x if x.dtype == dtype else x.to(dtype)


def _layout(x: Tensor, sets: Sets | Layout) -> Layout:
    layout = sets.layout if isinstance(sets, Sets) else sets
    if x.shape[:1] != (layout.total,):
        raise ShapeError(
            f"a tensor with one row for each of {layout.total} items was expected, not shape {tuple(x.shape)}"
        )
    return layout

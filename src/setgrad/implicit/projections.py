"""Differentiable projections on the simplex, a box and a budget, with exact gradients.

The last axis holds the items of a sample, every other axis is a batch axis. Items outside the mask become 0 and are
ignored. A sample with NaN or infinity among its items becomes NaN and does not affect the others. Half precision is
computed in float32 (`entropic_budget` always in float64); the result has the dtype of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._autograd import is_transformed
from setgrad.errors import OptionError, ShapeError
from setgrad.implicit._solve import root
from setgrad.implicit.solvers import Bisection

# At this distance from its threshold a sigmoid is 0 or 1 in double precision.
_FAR = 2000.0


def softmax(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the point z of the simplex that maximises x'z + entropy(z).

    Args:
        x: Scores, `(*batch, n)`.
        mask: Boolean, True for the items that count; broadcasts with x.

    Returns:
        Numbers of at least 0 that sum to 1 for each sample, of the shape of x.

    Raises:
        ShapeError: If x has no items or is not real, or the mask does not fit.

    Examples:
        >>> import torch
        >>> softmax(torch.zeros(4)).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    items = _prepare(x, mask)
    return items.finish(_masked_softmax(items.x, items.mask))


def sparsemax(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the point of the simplex nearest to x; many of its entries are exactly 0.

    It is piecewise linear in x. At a kink, where an entry is about to leave 0, the entry counts as 0.

    Args:
        x: Scores, `(*batch, n)`.
        mask: Boolean, True for the items that count; broadcasts with x.

    Returns:
        Numbers of at least 0 that sum to 1 for each sample, of the shape of x.

    Raises:
        ShapeError: If x has no items or is not real, or the mask does not fit.

    Examples:
        >>> import torch
        >>> sparsemax(torch.tensor([2.0, 1.5, 0.0])).tolist()
        [0.75, 0.25, 0.0]
    """
    items = _prepare(x, mask)
    x, mask = items.x, items.mask
    # A shift does not change the result; the support is within 1 of the largest entry, and near 0 it keeps its digits.
    top = x.detach().masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    x = x - torch.where(mask.any(-1, keepdim=True), top, 0.0)
    # An entry is in the support if it exceeds the threshold of itself and all larger entries.
    ordered = x.detach().masked_fill(~mask, -torch.inf).sort(-1, descending=True).values
    sums = torch.where(ordered.isfinite(), ordered, 0.0).cumsum(-1)
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    size = (1 + ranks * ordered > sums).sum(-1, keepdim=True).clamp(min=1)
    threshold = (sums.gather(-1, size - 1) - 1) / size
    support = mask & (x.detach() > threshold)
    z = _shift_to_sum(x, support, torch.ones_like(threshold)).clamp(min=0.0)
    return items.finish(torch.where(support, z, 0.0))


def project_box(x: Tensor, low: float | Tensor, high: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the point nearest to x with low <= z <= high.

    Args:
        x: Items, `(*batch, n)`.
        low: Lower bounds, a number or a tensor that broadcasts with x; gets a gradient where the bound is active.
        high: Upper bounds, likewise.
        mask: Boolean, True for the items that count; broadcasts with x.

    Returns:
        The projection, of the shape of x.

    Raises:
        OptionError: If a lower bound exceeds its upper bound.
        ShapeError: If x has no items or is not real, or the mask does not fit.

    Examples:
        >>> import torch
        >>> project_box(torch.tensor([-1.0, 0.5, 3.0]), 0.0, 1.0).tolist()
        [0.0, 0.5, 1.0]
    """
    items = _prepare(x, mask)
    x = items.x
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high))
    if not is_transformed(low, high) and bool((low > high).any()):
        raise OptionError("the box is empty: an entry of low exceeds the entry of high")
    is_inside = (x >= low) & (x <= high)
    return items.finish(torch.where(is_inside, x, torch.where(x < low, low, high)))


def project_budget(x: Tensor, k: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the point nearest to x with 0 <= z <= 1 and sum(z) = k.

    It is z = clip(x - t, 0, 1), with t from sorting the points where an entry meets a bound. It is piecewise linear in
    x and k; at a kink, an entry on a bound counts as fixed there.

    Args:
        x: Items, `(*batch, n)`.
        k: The budget, a number or one for each sample, `(*batch,)`.
        mask: Boolean, True for the items that count; broadcasts with x.

    Returns:
        Numbers from 0 to 1 that sum to k for each sample, of the shape of x.

    Raises:
        OptionError: If a budget is negative or exceeds the number of items.
        ShapeError: If x has no items or is not real, or the mask or k does not fit.

    Examples:
        >>> import torch
        >>> project_budget(torch.tensor([2.0, 0.5, 0.25, -1.0]), 1.5).tolist()
        [1.0, 0.375, 0.125, 0.0]
    """
    items = _prepare(x, mask)
    x, mask = items.x, items.mask
    k = _check_budget(k, x, mask)
    # In double precision, because the sum over a long set is not exact in single precision. The threshold lies within 1
    # below the ceil(k)-th largest item: relative to that item it keeps its digits, and items further away are 0 or 1.
    heights = x.detach().double()
    heights = (heights - _nth_largest(heights, k, mask)).clamp(-2.0, 2.0)
    threshold = _clip_threshold(heights, k.detach().double(), mask)
    heights = heights - threshold
    # Rounding must not free an entry that is on its bound.
    slack = 4 * x.shape[-1] * torch.finfo(torch.float64).eps * (1 + threshold.abs())
    is_one = mask & (heights >= 1 - slack)
    is_free = mask & (heights > slack) & ~is_one
    # The heights with the derivative of x: differences of large numbers would lose digits in single precision.
    heights = heights.to(x.dtype) + (x - x.detach())
    z = _shift_to_sum(heights, is_free, k - is_one.sum(-1, keepdim=True)).clamp(0.0, 1.0)
    return items.finish(torch.where(is_one, 1.0, torch.where(is_free, z, 0.0)))


def entropic_budget(x: Tensor, k: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return z = sigmoid(x + v) with sum(z) = k, which maximises x'z + the entropies of its entries.

    The scalar v comes from bisection, its derivatives of every order from the implicit function theorem. At k = 0 and
    k = n the value and the first derivative are those of the limit.

    Args:
        x: Scores, `(*batch, n)`.
        k: The budget, a number or one for each sample, `(*batch,)`.
        mask: Boolean, True for the items that count; broadcasts with x.

    Returns:
        Numbers from 0 to 1 that sum to k for each sample, of the shape of x.

    Raises:
        OptionError: If a budget is negative or exceeds the number of items.
        ShapeError: If x has no items or is not real, or the mask or k does not fit.

    Examples:
        >>> import torch
        >>> entropic_budget(torch.zeros(4), 1.0).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    # In double precision: v is as large as the items, and the sum depends on their small differences from it.
    items = _prepare(x, mask, dtype=torch.float64)
    x, mask = items.x, items.mask
    k = _check_budget(k, x, mask)
    count = mask.sum(-1, keepdim=True).to(x.dtype)
    # These samples have a closed form; an easy equation takes their place.
    is_edge = (k <= 0) | (k >= count) | items.nonfinite
    # With k above n / 2, solve for 1 - z, because small sums keep their digits in logarithms.
    flip = k > count / 2
    scores, total = torch.where(flip, -x, x), torch.where(flip, count - k, k)
    counted = mask | is_edge
    n_counted = counted.sum(-1, keepdim=True).to(x.dtype)
    goal = torch.where(is_edge, n_counted / 2, total)
    log_goal = goal.log()
    # Relative to the item at the threshold; items further away than this are 0 or 1.
    inner = torch.where(is_edge, 0.0, scores)
    inner = (inner - _nth_largest(inner.detach(), goal, counted)).clamp(-_FAR, _FAR)
    top = inner.detach().masked_fill(~counted, -torch.inf).amax(-1, keepdim=True)
    span = (top - inner.detach().masked_fill(~counted, torch.inf).amin(-1, keepdim=True)).clamp(min=0.0)
    inner = inner - top
    # With all items at the top v would be `even`, with all items at the bottom `even + span`: v lies between them.
    even = torch.logit(log_goal.detach().exp() / n_counted)
    start, width = even - 1, span + 2
    # Passed as arguments, because `torch.func` rejects captured tensors. The last one scales the residual to the
    # accuracy that numbers of this size have.
    args = (inner, log_goal, start, width, counted.to(x.dtype), 1 / (width + even.abs()))
    y0, tol = torch.full_like(even, 0.5), 8 * torch.finfo(x.dtype).eps
    # Masked: where every item is 0 or 1, v has no effect, and its undefined derivative counts as 0.
    solution = root(_log_sum_excess, y0, *args, solver=Bisection(0.0, 1.0), tol=tol, max_steps=200, on_failure="mask")
    v = start + width * (solution.value if is_transformed(x, k, mask) else solution.unwrap())
    z = torch.sigmoid(torch.where(flip, -1.0, 1.0) * (inner + v))
    limit = total * _masked_softmax(scores, mask)
    return items.finish(torch.where(is_edge, torch.where(flip, 1 - limit, limit), z))


def _log_sum_excess(y: Tensor, x: Tensor, log_goal: Tensor, *constants: Tensor) -> Tensor:
    """Return log(sum of sigmoids) - log_goal, scaled; y in [0, 1] is the place of v in its bracket."""
    start, width, counted, scale = constants
    logs = torch.nn.functional.logsigmoid(x + start + width * y).masked_fill(counted == 0, -torch.inf)
    return (logs.logsumexp(-1, keepdim=True) - log_goal) * scale


@final
@dataclass(frozen=True, eq=False)
class _Items:
    """Items with 0 in place of ignored ones, their mask, and which samples are not finite, `(*batch, 1)`."""

    x: Tensor
    mask: Tensor
    nonfinite: Tensor
    dtype: torch.dtype

    def finish(self, z: Tensor) -> Tensor:
        """Set ignored items to 0 and nonfinite samples to NaN, in the dtype of the input."""
        return torch.where(self.nonfinite, torch.nan, torch.where(self.mask, z, 0.0)).to(self.dtype)


def _prepare(x: Tensor, mask: Tensor | None, *, dtype: torch.dtype = torch.float32) -> _Items:
    """Check x and the mask, and compute in `dtype` or the dtype of x, whichever is more precise."""
    if x.dim() == 0 or not x.shape[-1] or not x.is_floating_point():
        raise ShapeError(f"x needs at least one item, real, on its last axis; it has shape {tuple(x.shape)}, {x.dtype}")
    if mask is None:
        mask = torch.ones_like(x, dtype=torch.bool)
    elif mask.dtype != torch.bool:
        raise ShapeError(f"the mask must be bool, True for the items that count, not {mask.dtype}")
    input_dtype = x.dtype
    try:
        x, mask = torch.broadcast_tensors(x, mask)
    except RuntimeError as error:
        raise ShapeError(f"x {tuple(x.shape)} and its mask {tuple(mask.shape)} do not fit together") from error
    nonfinite = (mask & ~x.isfinite()).any(-1, keepdim=True)
    x = x.to(torch.promote_types(x.dtype, dtype))
    return _Items(torch.where(mask & ~nonfinite, x, 0.0), mask, nonfinite, input_dtype)


def _masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    # A sample without items must not be a row of minus infinities, whose derivative is NaN.
    return x.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -torch.inf).softmax(-1)


def _shift_to_sum(x: Tensor, among: Tensor, total: Tensor) -> Tensor:
    """Return x minus the number that makes its entries `among` sum to `total`."""
    count = among.sum(-1, keepdim=True).clamp(min=1)
    return x - (torch.where(among, x, 0.0).sum(-1, keepdim=True) - total) / count


def _check_budget(k: float | Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """Return the budget of each sample, `(*batch, 1)`, or raise if it is out of range."""
    k_is_transformed = isinstance(k, Tensor) and is_transformed(k)
    k = torch.as_tensor(k, dtype=x.dtype, device=x.device)
    try:
        k = k.expand(x.shape[:-1])[..., None]
    except RuntimeError as error:
        raise ShapeError(
            f"k must be a number or one number for each sample, {tuple(x.shape[:-1])}, not {tuple(k.shape)}"
        ) from error
    if not k_is_transformed:
        # Under a transform the mask cannot be read, but the number of places bounds the number of items.
        count = torch.full_like(k, x.shape[-1]) if is_transformed(mask, x) else mask.sum(-1, keepdim=True)
        out_of_range = ~((k >= 0) & (k <= count))
        if bool(out_of_range.any()):
            first = int(out_of_range.flatten().nonzero()[0, 0])
            raise OptionError(
                f"k must lie between 0 and the number of items; in sample {first} it is {float(k.flatten()[first]):g} "
                f"of {int(count.flatten()[first])}"
            )
    return k


def _nth_largest(x: Tensor, n: Tensor, mask: Tensor) -> Tensor:
    """Return the ceil(n)-th largest of the items in the mask, `(*batch, 1)`; 0 if there are none."""
    last = mask.sum(-1, keepdim=True) - 1
    rank = (n.detach().ceil().long() - 1).minimum(last).clamp(min=0)
    ordered = x.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    return torch.where(last < 0, 0.0, ordered.gather(-1, rank))


def _clip_threshold(x: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Return the t at which clip(x - t, 0, 1) sums to k, `(*batch, 1)`."""
    # As t falls, the slope of the sum grows by 1 where an entry leaves 0 and drops by 1 where an entry reaches 1.
    lowest = x.masked_fill(~mask, torch.inf).amin(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max / 4)
    tops = torch.where(mask, x, lowest)
    change = mask.to(x.dtype)
    kinks, order = torch.cat([tops, tops - 1], -1).sort(dim=-1, descending=True, stable=True)
    slopes = torch.cat([change, -change], -1).gather(-1, order).cumsum(-1)
    increases = slopes[..., :-1] * (kinks[..., :-1] - kinks[..., 1:])
    sums = torch.cat([torch.zeros_like(k), increases.cumsum(-1)], -1)
    place = ((sums <= k).sum(-1, keepdim=True) - 1).clamp(min=0)
    kink, slope, sum_ = (t.gather(-1, place) for t in (kinks, slopes, sums))
    return kink - torch.where(slope > 0.5, (k - sum_) / slope.clamp(min=1.0), 0.0)

"""Projections on the simplex, the box and the budget, with exact gradients.

The last axis holds the items of one sample, every other axis is a sample. Items outside the mask become 0 and take no
part; a sample with NaN or infinity among its items becomes NaN and leaves the others alone. Half precision is computed
in float32 and comes back as it came.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad._autograd import is_transformed
from setgrad.errors import OptionError, ShapeError
from setgrad.implicit._solve import root
from setgrad.implicit.solvers import Bisection

# Beyond such a distance a sigmoid is 0 or 1 in double precision, wherever the sum comes to its target.
_FAR = 2000.0


def softmax(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The point of the simplex that is nearest in entropy: the z that maximises x'z + entropy(z).

    Example:
        >>> import torch
        >>> softmax(torch.zeros(4)).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    kind = x.dtype
    x, mask, bad = _prepare(x, mask)
    # A sample without items must not be a row of minus infinities, whose derivative is NaN.
    seen = mask | ~mask.any(-1, keepdim=True)
    return _finish(x.masked_fill(~seen, -torch.inf).softmax(-1), mask, bad, kind)


def sparsemax(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The point of the simplex that is nearest to x; many of its entries are 0.

    Linear in x between kinks, where an entry is about to leave 0; there it counts as 0.

    Example:
        >>> import torch
        >>> sparsemax(torch.tensor([2.0, 1.5, 0.0])).tolist()
        [0.75, 0.25, 0.0]
    """
    kind = x.dtype
    x, mask, bad = _prepare(x, mask)
    # A shift changes nothing; what stays is within 1 of the largest, and near 0 it keeps its digits.
    top = x.detach().masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    x = x - torch.where(mask.any(-1, keepdim=True), top, 0.0)
    # Largest first; entries stay as long as they exceed the threshold that they and those before them would have.
    order = x.detach().masked_fill(~mask, -torch.inf).sort(-1, descending=True).values
    sums = torch.where(order.isfinite(), order, 0.0).cumsum(-1)
    place = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    size = (1 + place * order > sums).sum(-1, keepdim=True).clamp(min=1)
    threshold = (sums.gather(-1, size - 1) - 1) / size
    support = mask & (x.detach() > threshold)
    return _finish(_share(x, support, torch.ones_like(threshold)).clamp(min=0.0), support, bad, kind)


def project_box(x: Tensor, low: float | Tensor, high: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The point nearest to x with low <= z <= high; the bounds may be tensors and get gradients where they hold.

    Example:
        >>> import torch
        >>> project_box(torch.tensor([-1.0, 0.5, 3.0]), 0.0, 1.0).tolist()
        [0.0, 0.5, 1.0]
    """
    kind = x.dtype
    x, mask, bad = _prepare(x, mask)
    low, high = (torch.as_tensor(end, dtype=x.dtype, device=x.device) for end in (low, high))
    if not is_transformed(low, high) and bool((low > high).any()):
        raise OptionError("the box is empty: an entry of low exceeds that of high")
    inside = (x >= low) & (x <= high)
    return _finish(torch.where(inside, x, torch.where(x < low, low, high)), mask, bad, kind)


def project_budget(x: Tensor, k: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The point nearest to x with 0 <= z <= 1 and sum(z) = k; `k` may be a tensor with one budget for each sample.

    z = clip(x - t, 0, 1), with t found by sorting the points where an entry meets a bound. Linear in x and k between
    kinks; an entry at a bound counts as staying there.

    Example:
        >>> import torch
        >>> project_budget(torch.tensor([2.0, 0.5, 0.25, -1.0]), 1.5).tolist()
        [1.0, 0.375, 0.125, 0.0]
    """
    kind = x.dtype
    x, mask, bad = _prepare(x, mask)
    k = _budget(k, x, mask)
    # In double precision, because a long set in single precision would lose track of its sum. The ceil(k)-th largest
    # item is above the level by 1 at most: seen from there it has digits, and what is farther away is surely in or out.
    where = x.detach().double()
    where = (where - _nth_largest(where, k, mask)).clamp(-2.0, 2.0)
    level = _level(where, k.detach().double(), mask)
    height = where - level
    # Rounding must not free an entry that sits on its bound.
    slack = 4 * x.shape[-1] * torch.finfo(torch.float64).eps * (1 + level.abs())
    full = mask & (height >= 1 - slack)
    free = mask & (height > slack) & ~full
    # The heights with the derivative of x: large numbers less one another would lose their digits in single precision.
    risen = height.to(x.dtype) + (x - x.detach())
    z = _share(risen, free, k - full.sum(-1, keepdim=True)).clamp(0.0, 1.0)
    return _finish(torch.where(full, 1.0, torch.where(free, z, 0.0)), mask, bad, kind)


def entropic_budget(x: Tensor, k: float | Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Z = sigmoid(x + v) with sum(z) = k: the z that maximises x'z + the entropies of its entries, within the budget.

    The one unknown v comes from bisection, its derivative, at every order, from the implicit function theorem. At
    k = 0 and k = n the value and the first derivative are those of the limit.

    Example:
        >>> import torch
        >>> entropic_budget(torch.zeros(4), 1.0).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    kind = x.dtype
    # In double precision: v is as large as the items, and the sum must come out right in their differences from it.
    x, mask, bad = _prepare(x.double(), mask)
    k = _budget(k, x, mask)
    count = mask.sum(-1, keepdim=True).to(x.dtype)
    edge = (k <= 0) | (k >= count) | bad
    # The fuller half is the emptier one seen from the other side; small sums keep their digits in logarithms.
    flip = k > count / 2
    side, rest = torch.where(flip, -x, x), torch.where(flip, count - k, k)
    seen = mask | edge
    total = seen.sum(-1, keepdim=True).to(x.dtype)
    inner = torch.where(edge, 0.0, side)
    goal = torch.where(edge, total / 2, rest)
    target = goal.log()
    # Seen from the item where the sum comes to its target; what is farther away is surely in or out.
    inner = (inner - _nth_largest(inner.detach(), goal, seen)).clamp(-_FAR, _FAR)
    top = inner.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    span = (top - inner.detach().masked_fill(~seen, torch.inf).amin(-1, keepdim=True)).clamp(min=0.0)
    inner = inner - top
    even = torch.logit(target.detach().exp() / total)
    # With all items at the top v would be `even`, with all at the bottom `even + span`: the unknown is between.
    start, width = even - 1, span + 2
    # Arguments, not captured, because `torch.func` can follow only those; numbers this large are only so exact.
    args = (inner, target, start, width, seen.to(x.dtype), 1 / (width + even.abs()))
    unknown = torch.full_like(even, 0.5)
    tol = 8 * torch.finfo(x.dtype).eps
    # Where every item is surely in or out, v may move without effect: its own derivative, undefined, counts as 0.
    found = root(_excess, unknown, *args, solver=Bisection(0.0, 1.0), tol=tol, max_steps=200, on_failure="mask")
    v = start + width * (found.value if is_transformed(x, k, mask) else found.unwrap())
    z = torch.sigmoid(torch.where(flip, -1.0, 1.0) * (inner + v))
    weight = side.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -torch.inf).softmax(-1)
    limit = rest * weight
    return _finish(torch.where(edge, torch.where(flip, 1 - limit, limit), z), mask, bad, kind)


def _excess(unknown: Tensor, items: Tensor, target: Tensor, *constants: Tensor) -> Tensor:
    """How far the logarithm of the sum exceeds its target."""
    start, width, seen, scale = constants
    logs = torch.nn.functional.logsigmoid(items + start + width * unknown).masked_fill(seen == 0, -torch.inf)
    return (logs.logsumexp(-1, keepdim=True) - target) * scale


def _prepare(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Items with 0 in place of what does not count, the mask, and which samples are spoilt, `(*batch, 1)`."""
    if x.dim() == 0 or not x.shape[-1] or not x.is_floating_point():
        raise ShapeError(f"x needs at least one item, real, on its last axis; it has shape {tuple(x.shape)}, {x.dtype}")
    if mask is None:
        mask = torch.ones_like(x, dtype=torch.bool)
    elif mask.dtype != torch.bool:
        raise ShapeError(f"the mask must be bool, True for the items that count, not {mask.dtype}")
    try:
        x, mask = torch.broadcast_tensors(x, mask)
    except RuntimeError as error:
        raise ShapeError(f"x {tuple(x.shape)} and its mask {tuple(mask.shape)} do not fit together") from error
    bad = (mask & ~x.isfinite()).any(-1, keepdim=True)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(mask & ~bad, x, 0.0), mask, bad


def _finish(z: Tensor, mask: Tensor, bad: Tensor, kind: torch.dtype) -> Tensor:
    return torch.where(bad, torch.nan, torch.where(mask, z, 0.0)).to(kind)


def _share(x: Tensor, among: Tensor, total: Tensor) -> Tensor:
    """X less the one number that makes its entries `among` sum to `total`."""
    count = among.sum(-1, keepdim=True).clamp(min=1)
    return x - (torch.where(among, x, 0.0).sum(-1, keepdim=True) - total) / count


def _budget(k: float | Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """The budget of each sample, `(*batch, 1)`."""
    hidden = isinstance(k, Tensor) and is_transformed(k)
    k = torch.as_tensor(k, dtype=x.dtype, device=x.device)
    try:
        k = k.expand(x.shape[:-1])[..., None]
    except RuntimeError as error:
        raise ShapeError(
            f"k must be a number or one number for each sample, {tuple(x.shape[:-1])}, not {tuple(k.shape)}"
        ) from error
    if not hidden:
        # Where the items cannot be looked at, there are at least no more than places.
        count = torch.full_like(k, x.shape[-1]) if is_transformed(mask, x) else mask.sum(-1, keepdim=True)
        wrong = ~((k >= 0) & (k <= count))
        if bool(wrong.any()):
            first = int(wrong.flatten().nonzero()[0, 0])
            raise OptionError(
                f"k must lie between 0 and the number of items; in sample {first} it is {float(k.flatten()[first]):g} "
                f"of {int(count.flatten()[first])}"
            )
    return k


def _nth_largest(x: Tensor, n: Tensor, mask: Tensor) -> Tensor:
    """The ceil(n)-th largest of the items that count, `(*batch, 1)`; 0 where none does."""
    last = mask.sum(-1, keepdim=True) - 1
    place = (n.detach().ceil().long() - 1).minimum(last).clamp(min=0)
    ordered = x.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    return torch.where(last < 0, 0.0, ordered.gather(-1, place))


def _level(x: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """The t at which clip(x - t, 0, 1) sums to k, `(*batch, 1)`."""
    # As t falls, the slope of the sum grows by 1 where an entry leaves 0 and drops by 1 where an entry is full.
    lowest = x.masked_fill(~mask, torch.inf).amin(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max / 4)
    tops = torch.where(mask, x, lowest)
    change = mask.to(x.dtype)
    points, order = torch.cat([tops, tops - 1], -1).sort(dim=-1, descending=True, stable=True)
    slope = torch.cat([change, -change], -1).gather(-1, order).cumsum(-1)
    gained = slope[..., :-1] * (points[..., :-1] - points[..., 1:])
    sums = torch.cat([torch.zeros_like(k), gained.cumsum(-1)], -1)
    place = ((sums <= k).sum(-1, keepdim=True) - 1).clamp(min=0)
    start, steep, so_far = (t.gather(-1, place) for t in (points, slope, sums))
    return start - torch.where(steep > 0.5, (k - so_far) / steep.clamp(min=1.0), 0.0)

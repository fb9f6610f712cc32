"""Features of items relative to their sets, for padded sets: as `columns._relative`, without groups of changing sizes.

An exported program has no sets of different sizes, so ranks are counted by comparing every item with every other one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.columns._relative import FARTHEST, LARGEST, RANK_SPREAD, RelativeFeatures


def relative_features(relative: RelativeFeatures, items: Tensor, mask: Tensor) -> Tensor:
    """Return the features of items `(b, n, width)` of padded sets, `(b, n, out_dim)`, in double precision.

    Args:
        relative: What the features are.
        items: The raw numbers of the items, in double precision.
        mask: Which items are there, `(b, n)`.
    """
    counts = mask.sum(1).clamp(min=1).double()
    features = [counts.log()[:, None, None].expand(-1, items.shape[1], 1)]
    together = mask[:, None, :] & mask[:, :, None]
    if relative.quantities:
        quantities = items[..., relative.quantities]
        features += _compare(quantities, together)
        for group in relative.groups:
            kinds = items[..., group]
            features += _compare(quantities, together & (kinds[:, :, None] == kinds[:, None, :]))
    best = []
    for start, width, offset in relative.codes:
        codes = items[..., start : start + width].long()
        excess = _excess(codes, relative.rates.double(), offset, mask)
        largest = excess.topk(min(LARGEST, width), 2).values
        features += [largest, *_beside_largest(largest[..., :1], mask)]
        best.append(largest[..., 0])
    if len(best) > 1:
        own = torch.stack(best, 2).amax(2, keepdim=True)
        features += [own, *_beside_largest(own, mask)]
    return torch.cat(features, 2)


def _beside_largest(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far each value `(b, n, 1)` is from the largest one of its set, and that one."""
    largest = values.masked_fill(~mask[..., None], -torch.inf).amax(1, keepdim=True).expand_as(values)
    return values - largest, largest


def _compare(values: Tensor, together: Tensor) -> list[Tensor]:
    """Return ranks and distances from the mean within groups, `(b, n, d)` each.

    Args:
        values: The values `(b, n, d)`.
        together: Whether two items are in one group, `(b, n, n)`.
    """
    weights = together.to(values.dtype)
    sizes = weights.sum(2, keepdim=True).clamp(min=1)
    means = weights @ values / sizes
    places, squares = [], []
    # One feature at a time, because all pairs of items of all features take much memory.
    for number in range(values.shape[2]):
        own, other = values[..., number, None], values[:, None, :, number]
        smaller, equal = ((together & compared).to(values.dtype).sum(2) for compared in (other < own, other == own))
        # Equal values share the middle of their ranks.
        places.append(smaller + (equal - 1) / 2)
        squares.append((weights * (other - means[..., number, None]).square()).sum(2))
    others = sizes - 1
    shares = torch.where(others > 0, torch.stack(places, 2) / others.clamp(min=1), 0.5)
    deviation = (torch.stack(squares, 2) / sizes).sqrt()
    is_equal = deviation <= 1e-12 * values.abs()
    distances = torch.where(is_equal, 0.0, (values - means) / deviation.masked_fill(is_equal, 1.0))
    return [(shares - 0.5) / RANK_SPREAD, distances.clamp(-FARTHEST, FARTHEST)]


def _excess(codes: Tensor, rates: Tensor, offset: int, mask: Tensor) -> Tensor:
    """Return how much more often each code occurs among the others than expected, in standard deviations."""
    places = codes + offset
    seen = mask[..., None].expand_as(codes).double().flatten(1)
    zeros = torch.zeros(codes.shape[0], len(rates), dtype=torch.double, device=codes.device)
    counts = zeros.scatter_add(1, places.flatten(1), seen)
    others = counts.gather(1, places.flatten(1)).view_as(codes) - 1
    own = rates[places]
    expected = (mask.sum(1).double()[:, None, None] - 1) * own
    excess = (others - expected) / (expected * (1 - own) + 1).sqrt()
    return excess.masked_fill(codes == 0, 0)

"""The scale of each feature: mean and standard deviation, or quantiles where a few values would flatten the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import DataError

# Quantiles are used if the standard deviation is so many times what they say. Then 9 of 10 values, of those that are
# not the median, lie within two fifths of a standard deviation: for a network they are nearly equal. On tasks without
# such values (digits, Moons, Gaussian, two Amazon categories) it is at most 1.5 times that.
_FLATTENED = 4.0
# The quantile of the distance from the median, and what it is for a normal distribution with standard deviation 1.
_SHARE, _NORMAL = 0.9, 1.645
# A flattened feature has an excess of values far away: its kurtosis is about 10 or more. A normal one has 3.
_KURTOSIS = 8.0
# Smaller differences, as a share of the values, are rounding.
_ROUNDING = 1e-13
# Squares of smaller numbers are not exact, or 0.
_SMALL_SQUARE = 1e-140
# From so many spreads on, a compressed feature grows as a logarithm.
_LINEAR = 4.0
# Features whose values are sorted at a time, and features that a warning names.
_SORTED, _NAMED = 64, 5
# Items whose quantiles stand for those of all.
_ROWS = 2**20


@final
@dataclass(frozen=True, eq=False)
class FeatureScale:
    """How features are scaled, each tensor with the shape of an item, in float64.

    Attributes:
        centre: What is subtracted: the mean or the median.
        spread: What is divided by; infinity for features that hold no information.
        compressed: Whether a feature is scaled by quantiles, and what is far away is compressed.
    """

    centre: Tensor
    spread: Tensor
    compressed: Tensor


def fit_scale(
    some: Tensor, moments: tuple[Tensor, Tensor, Tensor], codes: Tensor, name_of: Callable[[int], str]
) -> FeatureScale:
    """Return the scale of the features of items, and warn of features that do not fit their standard deviation.

    Args:
        some: Items that stand for all, or all of them.
        moments: Mean, variance and largest size of each feature over all items, in float64.
        codes: Which numbers are codes and stay as they are, with the shape of an item.
        name_of: Returns the name of a feature for messages, by its flat index.

    Raises:
        DataError: If the values of a feature are too large.
    """
    # More rows tell no more about quantiles.
    values = some[:: max(1, len(some) // _ROWS)].double()
    mean, variance, largest = moments
    deviation, is_small = variance.sqrt(), largest < _SMALL_SQUARE
    if bool(is_small.any()):
        # Powers of two change no digit.
        unit = torch.where(is_small, torch.exp2(largest.clamp(min=5e-324).log2().floor()), 1.0)
        deviation = torch.where(is_small, (values / unit).std(0, correction=0) * unit, deviation)
    if not bool(deviation.isfinite().all()):
        number = int((~deviation.isfinite()).flatten().nonzero()[0])
        raise DataError(
            f"the values of {name_of(number)} are so large that their standard deviation is not finite; rescale the "
            "feature, or take its logarithm"
        )
    # A constant feature, up to rounding, holds no information: it becomes 0 instead of amplified noise.
    constant = deviation <= _ROUNDING * largest.clamp(min=1e-300)
    rounded = constant & (values != values[0]).any(0) & ~codes
    if bool(rounded.any()):
        _warn(
            rounded,
            name_of,
            "the values differ by no more than rounding, so they count as equal; subtract a number close to all of "
            "them before they are stored, or divide them by a unit of their size",
        )
    centre = mean.clone()
    compressed = torch.zeros_like(constant)
    heavy = (((values - centre) / deviation.masked_fill(constant, torch.inf)) ** 4).mean(0) >= _KURTOSIS
    indices = (heavy & ~constant & ~codes).flatten().nonzero().flatten()
    median, spread = _quantiles(values.flatten(1), indices)
    is_flat = deviation.flatten()[indices] > _FLATTENED * spread
    if bool(is_flat.any()):
        flat = indices[is_flat]
        compressed.view(-1)[flat] = True
        centre.view(-1)[flat], deviation.view(-1)[flat] = median[is_flat], spread[is_flat]
        _warn(
            compressed,
            name_of,
            "a few values are so far away that the standard deviation would make the others equal; the scale is that "
            "of the others, and what is far away is compressed. If those values are wrong, correct them",
        )
    return FeatureScale(
        centre.masked_fill(codes, 0), deviation.masked_fill(constant, torch.inf).masked_fill(codes, 1), compressed
    )


def compress(scaled: Tensor) -> Tensor:
    """Return the same numbers up to 4, and beyond it numbers that grow as a logarithm."""
    size = scaled.abs()
    return torch.where(size <= _LINEAR, scaled, scaled.sign() * (_LINEAR + (size - _LINEAR).clamp(min=0).log1p()))


def name_features(names: Sequence[str] | None) -> Callable[[int], str]:
    """Return what names a feature in messages, from the columns of a table or, without them, by its number."""
    if names is None:
        return lambda number: f"feature {number} (counted from 0)"
    return lambda number: f"column {names[number]!r}"


def _quantiles(values: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the medians of some columns, and the spread that quantiles of the distance from them give."""
    found = [(values.new_empty(0), values.new_empty(0))]
    for part in columns.split(_SORTED):
        some = values[:, part]
        median = some.median(0).values
        distance = (some - median).abs().sort(0).values
        # Many items may have the median, as those without a price; what varies is the rest.
        equal = (distance == 0).sum(0)
        place = equal + (_SHARE * (len(distance) - 1 - equal)).long()
        found.append((median, distance.gather(0, place.clamp(max=len(distance) - 1)[None])[0] / _NORMAL))
    medians, spreads = zip(*found, strict=True)
    return torch.cat(medians), torch.cat(spreads)


def _warn(which: Tensor, name_of: Callable[[int], str], text: str) -> None:
    numbers = which.flatten().nonzero().flatten().tolist()
    # Numbers of one column have one name.
    names = list(dict.fromkeys(map(name_of, numbers)))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    warnings.warn(f"{', '.join(names[:_NAMED])}{more}: {text}", RuntimeWarning, stacklevel=6)

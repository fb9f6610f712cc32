"""Limits of numbers and memory: scales that keep sums finite, and parts of a batch that fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor


def sum_scale(terms: int) -> float:
    """Return a factor that keeps sums of this many finite terms finite; a power of 2, so that no digit is lost."""
    return 2.0 ** -math.ceil(math.log2(terms))


def scale_for_sum(theta: Tensor, terms: int) -> Tensor:
    """Return theta, scaled so that sums of this many terms are finite."""
    return theta * sum_scale(terms)


def batch_slices(count: int, numbers: int, limit: int) -> Iterator[slice]:
    """Yield slices of a batch whose working memory, `numbers` numbers for each instance, stays within the limit."""
    size = max(1, limit // max(1, numbers))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))

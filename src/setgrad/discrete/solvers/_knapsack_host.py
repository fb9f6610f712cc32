"""The table of the knapsack problem in NumPy: on the CPU, where small steps cost a third of what they cost in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fill(theta: NDArray[Any], room: NDArray[np.int64], weights: list[int], most: int) -> NDArray[np.int64]:
    """Ones at the items to take, (count, n): theta (count, n), room (count,) up to `most`, one list of weights for all.

    The same steps in the same order as the table in torch, so that both choose the same items.
    """
    n, count = theta.shape[1], len(theta)
    worth = np.where(theta > 0, theta, theta.dtype.type(-np.inf)).T.copy()
    best, spare = np.zeros((2, most + 1, count), theta.dtype)
    take = np.zeros((n, most + 1, count), bool)
    for item in reversed(range(n)):
        shift = weights[item]
        if shift > most:
            continue
        taken, left = np.add(best[: most + 1 - shift], worth[item], out=spare[shift:]), best[shift:]
        np.greater_equal(taken, left, out=take[item, shift:])
        np.maximum(left, taken, out=left)
    z = np.empty((n, count), np.int64)
    # Where each instance stands in the rows of decisions, which are read as one.
    here = room * count + np.arange(count)
    for item, decided in enumerate(take.reshape(n, -1)):
        z[item] = decided[here]
        here -= z[item] * (weights[item] * count)
    return z.T

"""The multilinear extension by loops over all subsets, the reference for every estimator."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from setgrad.functions import (
    BoundSetFunction,
    ExtensionEstimator,
    FromCallable,
    SetFunction,
    multilinear_gradient,
    multilinear_hessian_vector,
    multilinear_value,
)
from setgrad.sets import Sets


class Truth(NamedTuple):
    """Value `(b,)`, gradient `(total,)` and Hessian times the vector `(total,)`."""

    value: Tensor
    gradient: Tensor
    product: Tensor


def enumerate_subsets(function: SetFunction, sets: Sets, psi: Tensor, vector: Tensor) -> Truth:
    """Return the exact results for every set."""
    value: list[float] = []
    gradient: list[float] = []
    product: list[float] = []
    for number, items in enumerate(sets.to_list()):
        in_set = sets.layout.ids == number
        p, v, n = psi[in_set].tolist(), vector[in_set].tolist(), len(items)
        subsets = list(itertools.product([0, 1], repeat=n))
        alone = Sets.from_lengths(items, [n])
        table = function.value(alone, torch.tensor(subsets, dtype=torch.bool).reshape(len(subsets), n))[:, 0].tolist()
        total, slope, bend = 0.0, [0.0] * n, [0.0] * n
        for bits, f in zip(subsets, table, strict=True):
            chance = [p[i] if bits[i] else 1 - p[i] for i in range(n)]
            sign = [1 if bit else -1 for bit in bits]
            total += f * math.prod(chance)
            for i in range(n):
                slope[i] += f * sign[i] * math.prod(chance[:i] + chance[i + 1 :])
                for j in range(i):
                    rest = math.prod(chance[:j] + chance[j + 1 : i] + chance[i + 1 :])
                    bend[i] += f * sign[i] * sign[j] * rest * v[j]
                    bend[j] += f * sign[i] * sign[j] * rest * v[i]
        value.append(total)
        gradient += slope
        product += bend
    return Truth(*(torch.tensor(x, dtype=torch.float64) for x in (value, gradient, product)))


def estimate(function: SetFunction, sets: Sets, psi: Tensor, vector: Tensor, estimator: ExtensionEstimator) -> Truth:
    """Return the results of an estimator."""
    return Truth(
        multilinear_value(function, sets, psi, estimator=estimator),
        multilinear_gradient(function, sets, psi, estimator=estimator),
        multilinear_hessian_vector(function, sets, psi, vector, estimator=estimator),
    )


def estimate_bound(estimator: ExtensionEstimator, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Truth:
    """Return the results without a check of psi, so that finite differences may leave the unit cube."""
    value, gradient = estimator.value(bound, psi), estimator.gradient(bound, psi)
    return Truth(value, gradient, estimator.hessian_vector(bound, psi, vector))


def wavy() -> FromCallable:
    """Return a function without structure: not submodular, not monotone, with interactions of all orders."""
    weights = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0]], dtype=torch.float64)
    return FromCallable(lambda items, masks: torch.sin(masks.to(items.dtype) @ items @ weights).sum(1))


def probabilities(sets: Sets, seed: int = 7) -> Tensor:
    """Return different probabilities, including exactly 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    psi = torch.rand(sets.layout.total, generator=generator, dtype=torch.float64)
    psi[2::7], psi[5::7] = 0.0, 1.0
    return psi


def direction(sets: Sets, seed: int = 8) -> Tensor:
    """Return a random vector with one entry for each item."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sets.layout.total, generator=generator, dtype=torch.float64)

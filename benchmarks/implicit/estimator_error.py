"""Error of the sampled multilinear extension against enumeration, on sets of up to 10 items.

Claims checked: Exact agrees with a sum over all subsets to rounding. The error of Bernoulli falls with the square root
of the number of samples, because it is unbiased; the error of Gaussian falls to its bias, which is reported. Entries
are relative errors in percent (norm of the difference over norm of the truth, root mean square over repeated draws) of
the gradient, and of the Hessian times a vector. psi is spread over [0, 1], with entries at 0 and at 1.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.tables import table
from setgrad.functions import (
    Bernoulli,
    BoundSetFunction,
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
    FacilityLocation,
    FreshNoise,
    Gaussian,
    LogDeterminant,
    SetFunction,
)
from setgrad.sets import Sets

SIZES = (10, 7, 1, 0, 10)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no options beyond the common ones."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one table for each function."""
    counts, repeats = ((5, 20), 4) if options.quick else ((5, 50, 500), 20)
    sizes = (4, 3, 0) if options.quick else SIZES
    results: dict[str, Any] = {}
    for name, function in make_functions().items():
        sets, psi, vector = make_problem(sizes)
        bound = function.bind(sets)
        truth = enumerate_all(bound, psi, vector)
        rows = []
        for label, estimator, draws in estimators(counts, repeats):
            errors = [measure(estimator, bound, psi, vector, truth) for _ in range(draws)]
            squares = torch.tensor(errors, dtype=torch.float64).square()
            means = (100 * squares.mean(0).sqrt()).tolist()
            results[f"{name}, {label}"] = means
            rows.append([label, *(f"{mean:.2g}" for mean in means)])
        print(f"\n## {name}: relative error in percent\n")
        print(table(["estimator", "gradient", "Hessian x vector"], rows))
    return {"errors": results}


def make_functions() -> dict[str, SetFunction]:
    """Return one neural and two classical functions, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        deep = DeepSetFunction(2, "mlp", dim=32, hidden=(64, 64)).double()
        deep.requires_grad_(False)
    return {"deep set": deep, "facility location": FacilityLocation(), "log-determinant": LogDeterminant()}


def make_problem(sizes: tuple[int, ...]) -> tuple[Sets, Tensor, Tensor]:
    """Return sets in the unit square, probabilities that reach 0 and 1, and a direction."""
    generator = torch.Generator().manual_seed(1)
    items = torch.rand(sum(sizes), 2, generator=generator, dtype=torch.float64)
    psi = torch.linspace(0, 1, sum(sizes), dtype=torch.float64)
    return Sets.from_lengths(items, sizes), psi, torch.randn(sum(sizes), generator=generator, dtype=torch.float64)


def estimators(counts: tuple[int, ...], repeats: int) -> list[tuple[str, ExtensionEstimator, int]]:
    """Return estimators by name, with the number of draws to average over."""
    sampled = [
        (f"{kind.__name__}({count})", kind(count, FreshNoise(count)), repeats)
        for kind, count in product((Bernoulli, Gaussian), counts)
    ]
    return [("Exact()", Exact(), 1), *sampled]


def enumerate_all(bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient and the Hessian times a vector by their definitions."""
    layout = bound.sets.layout
    gradient, product_ = torch.zeros_like(psi), torch.zeros_like(psi)
    for number, n in enumerate(layout.host_lengths.tolist()):
        items = range(layout.host_offsets[number], layout.host_offsets[number] + n)
        bits = torch.tensor(list(product((False, True), repeat=n)), dtype=torch.bool).reshape(2**n, n)
        masks = torch.zeros(len(bits), layout.total, dtype=torch.bool)
        masks[:, list(items)] = bits
        values = bound.value(masks)[:, number]
        p = psi[list(items)]
        for i in range(n):
            gradient[items[i]] = _expectation(values, bits, p, {i})
            for j in range(n):
                if j != i:
                    product_[items[i]] += _expectation(values, bits, p, {i, j}) * vector[items[j]]
    return gradient, product_


def _expectation(values: Tensor, bits: Tensor, p: Tensor, forced: set[int]) -> Tensor:
    """Return the expected alternating sum over the forced items, with the others drawn independently."""
    factors = torch.where(bits, p, 1 - p)
    for i in forced:
        factors[:, i] = torch.where(bits[:, i], 1.0, -1.0)
    return (values * factors.prod(1)).sum()


def measure(
    estimator: ExtensionEstimator, bound: BoundSetFunction, psi: Tensor, vector: Tensor, truth: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Return the relative errors of gradient and Hessian product for one draw."""
    with torch.no_grad():
        estimates = estimator.gradient(bound, psi), estimator.hessian_vector(bound, psi, vector)
    gradient, product_ = (float((a - b).norm() / b.norm()) for a, b in zip(estimates, truth, strict=True))
    return gradient, product_

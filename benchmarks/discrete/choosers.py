"""Ways to train a latent choice that `explain` and `relations` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

import torch
from torch import Tensor, nn

from benchmarks.lib.records import Record
from setgrad.discrete import AIMLE, IMLE, CombinatorialSolver, Identity, Noise, PublishedRule, StdProjection

# From theta to points with a gradient, (S, *theta.shape).
Layer = Callable[[Tensor], Tensor]
# From theta and a function from points to losses (S, B), to losses (B,) with a gradient for both.
Chooser = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]
SHARED = ("imle f", "imle c", "aimle f", "aimle c", "aimle f paper", "aimle c paper", "identity", "identity std")


def solver_layers(solver: CombinatorialSolver, noise: Noise, samples: int, lam: float | None) -> dict[str, Layer]:
    """Return the layers `SHARED` around a solver: "f" and "c" are forward and central differences.

    "paper" is Algorithm 1 of arXiv:2209.04862 with its options: one changed entry, steps of 0.001, alpha from 0.
    """
    return {
        "imle f": IMLE(solver, noise=noise, samples=samples, lam=lam or 1.0),
        "imle c": IMLE(solver, noise=noise, samples=samples, lam=lam or 1.0, central=True),
        "aimle f": AIMLE(solver, noise=noise, samples=samples, central=False),
        "aimle c": AIMLE(solver, noise=noise, samples=samples),
        "aimle f paper": AIMLE(solver, noise=noise, samples=samples, central=False, mode=PublishedRule()),
        "aimle c paper": AIMLE(solver, noise=noise, samples=samples, mode=PublishedRule()),
        "identity": Identity(solver, noise=noise, samples=samples),
        "identity std": Identity(solver, projection=StdProjection(), noise=noise, samples=samples),
    }


def choose_by(layer: Layer, device: torch.device) -> Chooser:
    """Return a chooser whose loss is the mean over the points of the layer, which is moved to the device."""
    if isinstance(layer, nn.Module):
        layer.to(device)
    return lambda theta, loss: loss(layer(theta)).mean(0)


def best_lambda(records: Sequence[Record], best: Callable[[Iterable[float]], float] = min) -> list[Record]:
    """Return the records of the lambda with the best mean of "validation"; all records where there is no lambda."""
    groups: dict[float | None, list[Record]] = {}
    for record in records:
        groups.setdefault(record["lam"], []).append(record)
    means = {lam: mean(record["validation"] for record in group) for lam, group in groups.items()}
    return next((groups[lam] for lam, value in means.items() if value == best(means.values())), [])

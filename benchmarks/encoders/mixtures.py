"""Points from random mixtures of Gaussians in the plane, and how well a mixture fits them.

The published text draws deviations between 0.3 and 0.6, the published code between 0.1 and 0.6. Only the second agrees
with the published results: with the first, even the true mixtures have a larger negative log-likelihood than 1.84.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

COMPONENTS = 4
# Weight, two means and two deviations for each component.
NUMBERS = 5
DEVIATIONS = {"code": (0.1, 0.6), "text": (0.3, 0.6)}
# The smallest variance, as in the published code: otherwise the likelihood of sets of few points is unbounded.
_LEAST = 0.01


@final
@dataclass(frozen=True)
class Mixture:
    """One mixture for each set: log-weights `(b, k)`, means and deviations `(b, k, 2)`."""

    log_weights: Tensor
    means: Tensor
    deviations: Tensor

    @staticmethod
    def from_numbers(raw: Tensor) -> Mixture:
        """Return the mixtures that outputs `(b, k, 5)` of a network describe."""
        variances = _LEAST + torch.nn.functional.softplus(raw[..., 3:])
        return Mixture(torch.log_softmax(raw[..., 0], -1), raw[..., 1:3], variances.sqrt())

    def log_joint(self, points: Tensor) -> Tensor:
        """Return the joint log-density of points `(b, n, 2)` and components, `(b, n, k)`."""
        scaled = (points[:, :, None] - self.means[:, None]) / self.deviations[:, None]
        normal = self.deviations.log().sum(-1) + math.log(2 * math.pi)
        return (self.log_weights - normal)[:, None] - scaled.square().sum(-1) / 2

    def nll(self, points: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of the points of each set, `(b,)`."""
        return -torch.logsumexp(self.log_joint(points), -1).mean(1)


@final
@dataclass(frozen=True)
class Draw:
    """Points `(b, n, 2)`, the component of each `(b, n)`, and the true mixtures."""

    points: Tensor
    labels: Tensor
    truth: Mixture


def draw(sets: int, points: int, generator: torch.Generator, deviations: tuple[float, float] = (0.1, 0.6)) -> Draw:
    """Draw mixtures and points from them, on the device of the generator."""
    device, (low, high) = generator.device, deviations
    # Exponentials divided by their sum are uniform on the simplex: the Dirichlet distribution with all ones.
    weights = torch.empty(sets, COMPONENTS, device=device).exponential_(generator=generator)
    weights = weights / weights.sum(1, keepdim=True)
    means = 8 * torch.rand(sets, COMPONENTS, 2, generator=generator, device=device) - 4
    spread = low + (high - low) * torch.rand(sets, COMPONENTS, 2, generator=generator, device=device)
    labels = torch.multinomial(weights, points, replacement=True, generator=generator)
    rows = labels[..., None].expand(-1, -1, 2)
    noise = torch.randn(sets, points, 2, generator=generator, device=device)
    values = means.gather(1, rows) + spread.gather(1, rows) * noise
    return Draw(values, labels, Mixture(weights.log(), means, spread))


def em(points: Tensor, start: Mixture, steps: int) -> Mixture:
    """Return the mixtures after steps of expectation-maximisation."""
    mixture = start
    for _ in range(steps):
        belongs = torch.softmax(mixture.log_joint(points), -1)
        # A component without points does not move.
        weight = belongs.sum(1) + 1e-6
        means = (belongs.mT @ points + 1e-6 * mixture.means) / weight[..., None]
        second = (belongs.mT @ points.square() + 1e-6 * mixture.means.square()) / weight[..., None]
        variances = (second - means.square()).clamp(min=_LEAST / 4)
        mixture = Mixture((weight / weight.sum(1, keepdim=True)).log(), means, variances.sqrt())
    return mixture


def em_from_scratch(points: Tensor, generator: torch.Generator, *, starts: int, steps: int) -> Tensor:
    """Return the negative log-likelihood of EM from random points of the set, the best of several starts, `(b,)`."""
    best = points.new_full((len(points),), torch.inf)
    for _ in range(starts):
        chosen = torch.rand(points.shape[:2], generator=generator, device=points.device).topk(COMPONENTS).indices
        means = points.gather(1, chosen[..., None].expand(-1, -1, 2))
        even = means.new_full(means.shape[:2], -math.log(COMPONENTS))
        best = torch.minimum(best, em(points, Mixture(even, means, torch.ones_like(means)), steps).nll(points))
    return best

"""Generated pairs of images with keypoints to match: noisy features, rotated positions, clutter."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.discrete.decisions import Criterion, Examples

# Kinds of keypoints, and features of each: informative ones, and stronger ones that only differ between images.
KINDS = 40
TELLING = 8
NUISANCE = 16
FEATURES = TELLING + NUISANCE
POINTS = 10
CLUTTER = 5


def pairs(count: int, generator: torch.Generator, *, noise: float = 0.4, nuisance: float = 1.5) -> Examples:
    """Return pairs of images: POINTS keypoints in the first, the same and CLUTTER others, shuffled, in the second.

    Inputs are (count, POINTS + POINTS + CLUTTER, FEATURES + 2): features, then positions. The kinds and the mixing of
    informative features and nuisance are fixed. An object is a choice of kinds, each at a position that is typical of
    its kind; each image shows it rotated and moved at random.
    """
    world = torch.Generator().manual_seed(0)
    kinds = torch.randn(KINDS, TELLING, generator=world)
    home = torch.randn(KINDS, 2, generator=world)
    mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=world))[0]

    chosen = torch.rand(count, KINDS, generator=generator).argsort(1)[:, : POINTS + CLUTTER]
    second = torch.rand(count, POINTS + CLUTTER, generator=generator).argsort(1)
    order = torch.cat([torch.arange(POINTS).expand(count, -1), second], 1)
    shown = chosen.gather(1, order)

    telling = kinds[shown] + noise * torch.randn(*shown.shape, TELLING, generator=generator)
    useless = nuisance * torch.randn(*shown.shape, NUISANCE, generator=generator)
    features = torch.cat([telling, useless], -1) @ mixing
    first = torch.arange(shown.shape[1]) < POINTS
    angle = 2 * math.pi * torch.rand(count, 2, generator=generator)[:, (~first).long()]
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
    shift = torch.randn(count, 2, 2, generator=generator)[:, (~first).long()]
    places = home[shown] + 0.3 * torch.randn(*shown.shape, 2, generator=generator)
    places = (turn @ places[..., None])[..., 0] + shift
    answers = (order[:, :POINTS, None] == second[:, None]).float()
    return Examples(torch.cat([features, places], -1), answers, answers)


class Matcher(nn.Module):
    """Scores all pairs of points, with an embedding of each point that includes messages from its image.

    Rotations and shifts do not change the distance of two points, so messages depend on distances, not on positions.
    """

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(FEATURES, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.message = nn.Sequential(nn.Linear(dim + 1, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores, (count, POINTS, POINTS + CLUTTER)."""
        left, right = (self._points(part) for part in inputs.split((POINTS, POINTS + CLUTTER), dim=1))
        return left @ right.mT / math.sqrt(left.shape[-1])

    def _points(self, points: Tensor) -> Tensor:
        own, places = self.embed(points[..., :FEATURES]), points[..., FEATURES:]
        apart = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
        others = own[:, None].expand(-1, own.shape[1], -1, -1)
        return self.out(own + self.message(torch.cat([others, apart[..., None]], -1)).mean(2))


def nearest(inputs: Tensor) -> Tensor:
    """Return scores without training: minus the distance of features."""
    left, right = inputs[..., :FEATURES].split((POINTS, POINTS + CLUTTER), dim=1)
    return -torch.cdist(left, right)


class CrossEntropy(Criterion):
    """Cross-entropy of each row: a point of the first image chooses a point of the second. No solver is called."""

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return minus the log-probability of the right choices."""
        return -(theta.log_softmax(-1) * batch.answers).flatten(1).sum(-1)


class Sinkhorn(Criterion):
    """Cross-entropy of a matrix whose rows add up to 1 and whose columns add up to at most 1.

    A column that no row takes goes to a row of leftovers, so that the sums can be right.
    """

    def __init__(self, rounds: int = 20) -> None:
        super().__init__()
        self.rounds = rounds

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return minus the logarithm of the right entries."""
        rows, columns = theta.shape[-2:]
        plan = torch.cat([theta, theta.new_zeros(len(theta), 1, columns)], 1)
        sums = torch.tensor([1.0] * rows + [float(columns - rows)], device=theta.device).log()[:, None]
        for _ in range(self.rounds):
            plan = plan - plan.logsumexp(-2, keepdim=True)
            plan = plan - plan.logsumexp(-1, keepdim=True) + sums
        return -(plan[:, :rows] * batch.answers).flatten(1).sum(-1)

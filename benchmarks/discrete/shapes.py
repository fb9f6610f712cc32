"""Deformed shapes whose points look alike in pairs, and networks that score points and pairs of points."""

from __future__ import annotations

import itertools
import math
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.discrete.decisions import Criterion, Examples
from setgrad.discrete import GraphMatching

# A shape has three looks, each at two points; the other image also shows outliers, which have one of these looks.
LOOKS, COPIES, OUTLIERS = 3, 2, 1
POINTS = LOOKS * COPIES
OTHERS = POINTS + OUTLIERS
TELLING, NUISANCE = 8, 16
FEATURES = TELLING + NUISANCE
# Looks in the world, from which every shape draws its own.
WORLD = 30
EDGES = tuple(itertools.combinations(range(POINTS), 2))
OTHER_EDGES = tuple(itertools.permutations(range(OTHERS), 2))


def make_solver(**options: Any) -> GraphMatching:
    """Return the solver, which compares all matchings."""
    return GraphMatching(POINTS, OTHERS, EDGES, OTHER_EDGES, exact_up_to=math.perm(OTHERS, POINTS), **options)


def shape_pairs(count: int, generator: torch.Generator, *, deformation: float = 0.25, noise: float = 0.4) -> Examples:
    """Return pairs of images of a shape: POINTS points, and the same points with OUTLIERS others, shuffled.

    Inputs are (count, POINTS + OTHERS, FEATURES + 2): features, then positions. Points of a shape lie anywhere, so only
    the distances between points tell two of the same look apart. The second image is turned, stretched along one axis,
    and each of its points is moved, by normal numbers of this deviation. Answers are points of `GraphMatching`.
    """
    world = torch.Generator().manual_seed(0)
    looks = torch.randn(WORLD, TELLING, generator=world)
    mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=world))[0]

    own = torch.rand(count, WORLD, generator=generator).argsort(1)[:, :LOOKS].repeat(1, COPIES)
    strange = own.gather(1, torch.randint(POINTS, (count, OUTLIERS), generator=generator))
    places = torch.randn(count, OTHERS, 2, generator=generator)
    order = torch.rand(count, OTHERS, generator=generator).argsort(1)

    turn = 2 * math.pi * torch.rand(count, generator=generator)
    rotation = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).unflatten(-1, (2, 2))
    stretch = torch.diag_embed(1 + deformation * torch.randn(count, 2, generator=generator))
    moved = places + deformation * torch.randn(count, OTHERS, 2, generator=generator)
    second = (rotation[:, None] @ stretch[:, None] @ moved[..., None])[..., 0]

    shown = torch.cat([own, torch.cat([own, strange], 1).gather(1, order)], 1)
    telling = looks[shown] + noise * torch.randn(*shown.shape, TELLING, generator=generator)
    features = torch.cat([telling, torch.randn(*shown.shape, NUISANCE, generator=generator)], -1) @ mixing
    where = torch.cat([places[:, :POINTS], second.gather(1, order[..., None].expand(-1, -1, 2))], 1)

    nodes = (torch.arange(POINTS)[:, None] == order[:, None]).float()
    answers = make_solver().pack(nodes, pairs_of(nodes))
    return Examples(torch.cat([features, where], -1), answers, answers)


def pairs_of(nodes: Tensor) -> Tensor:
    """Return the pairs of edges (count, EDGES, OTHER_EDGES) that a matching (count, POINTS, OTHERS) implies."""
    (a, b), (p, q) = (torch.tensor(edges, device=nodes.device).T for edges in (EDGES, OTHER_EDGES))
    return nodes[:, a][:, :, p] * nodes[:, b][:, :, q]


@final
class ShapeMatcher(nn.Module):
    """Scores pairs of points, and with `pairs` also pairs of edges.

    With `messages` the embedding of a point includes messages from all other points of its image, by distance.
    """

    centres: Tensor

    def __init__(self, *, pairs: bool, messages: bool, dim: int = 32) -> None:
        super().__init__()
        self.pairs, self.messages = pairs, messages
        self.register_buffer("centres", torch.linspace(0, 4, 16), persistent=False)
        wide = 2 * dim
        self.embed = nn.Sequential(nn.Linear(FEATURES, wide), nn.ReLU(), nn.Linear(wide, dim))
        self.edge = nn.Sequential(nn.Linear(2 * dim + 16, wide), nn.ReLU(), nn.Linear(wide, dim))
        self.out = nn.Sequential(nn.Linear(2 * dim, wide), nn.ReLU(), nn.Linear(wide, dim))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores (count, POINTS, OTHERS), or theta of `GraphMatching`."""
        left, right = inputs.split((POINTS, OTHERS), dim=1)
        (one, one_edges), (other, other_edges) = self._embedded(left), self._embedded(right)
        scale = math.sqrt(one.shape[-1])
        nodes = one @ other.mT / scale
        if not self.pairs:
            return nodes
        (a, b), (p, q) = (torch.tensor(edges, device=inputs.device).T for edges in (EDGES, OTHER_EDGES))
        edges = one_edges[:, a, b] @ other_edges[:, p, q].mT / scale
        return torch.cat([nodes.flatten(1), edges.flatten(1)], 1)

    def _embedded(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings of points (count, n, dim) and of ordered pairs (count, n, n, dim)."""
        own, places = self.embed(points[..., :FEATURES]), points[..., FEATURES:]
        n = own.shape[1]
        apart = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
        near = (-8 * (apart[..., None] - self.centres).square()).exp()
        ends = [own[:, :, None].expand(-1, -1, n, -1), own[:, None].expand(-1, n, -1, -1)]
        pairs = self.edge(torch.cat([*ends, near], -1))
        heard = pairs.mean(2) if self.messages else torch.zeros_like(own)
        return self.out(torch.cat([own, heard], -1)), pairs


@final
class Likelihood(Criterion):
    """The exact negative log-likelihood of the right matching among all of them. No solver is called."""

    points: Tensor

    def __init__(self) -> None:
        super().__init__()
        matchings = torch.tensor(list(itertools.permutations(range(OTHERS), POINTS)))
        nodes = nn.functional.one_hot(matchings, OTHERS).float()
        self.register_buffer("points", make_solver().pack(nodes, pairs_of(nodes)).T.contiguous(), persistent=False)

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return the log-sum over all matchings minus the score of the right one."""
        return torch.logsumexp(theta @ self.points, -1) - (theta * batch.answers).sum(-1)

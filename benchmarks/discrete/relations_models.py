"""Networks of neural relational inference, and the ways to train a latent spanning tree."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from benchmarks.discrete.choosers import SHARED, Chooser, Layer, choose_by, solver_layers
from setgrad import discrete

# Log-weights of edges stay within this range: a certain tree has no gradient. The published code has a range too.
RANGE = 10.0
METHODS = (*SHARED, "perturbed", "sst", "sst hard", "marginals", "simple", "rloo")


def make_chooser(method: str, particles: int, samples: int, lam: float | None, device: torch.device) -> Chooser:
    """Return a way to train. An edge has two entries in theta and z, so a tree has 2 (n - 1) draws of the noise."""
    if method == "rloo":
        return discrete.ScoreFunction(discrete.RandomSpanningTree, samples=samples)
    solver, gamma = discrete.SpanningTree(), discrete.SumOfGamma(2 * (particles - 1))
    perturbed = discrete.Perturbed(solver, noise=discrete.Gumbel(), samples=samples)
    marginals = discrete.RelaxedSpanningTree(noise=None)

    def exact(theta: Tensor) -> Tensor:
        distribution = discrete.RandomSpanningTree(theta)
        means = distribution.marginals
        return distribution.sample(samples) + (means - means.detach())

    layers: dict[str, Layer] = {
        **solver_layers(solver, gamma, samples, lam),
        "perturbed": lambda theta: perturbed(theta)[None],
        "sst": discrete.RelaxedSpanningTree(samples=samples),
        "sst hard": discrete.RelaxedSpanningTree(hard=True, samples=samples),
        "marginals": lambda theta: marginals(theta)[None],
        "simple": exact,
    }
    return choose_by(layers[method], device)


@final
class Encoder(nn.Module):
    """Maps positions (B, n, times, 2) to theta (B, n, n), half the log-weight of each edge.

    As published: nodes, pairs, nodes, pairs, with the first features of the pairs; then symmetrised. Pairs also get
    their distances, which the published networks have to learn.
    """

    def __init__(self, times: int, dim: int) -> None:
        super().__init__()
        self.node, self.pair = _mlp(2 * times, dim), _mlp(2 * dim + times, dim)
        self.again, self.last = _mlp(dim, dim), _mlp(3 * dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, places: Tensor) -> Tensor:
        """Return theta of all pairs."""
        apart = torch.linalg.vector_norm(places[:, :, None] - places[:, None], dim=-1)
        first = self.pair(torch.cat([_pairs(self.node(places.flatten(2))), apart], -1))
        second = _pairs(self.again(first.mean(2)))
        logits = self.out(self.last(torch.cat([second, first], -1)))[..., 0]
        weights = RANGE * torch.tanh((logits + logits.mT) / (2 * RANGE))
        return weights / 2


@final
class Decoder(nn.Module):
    """Maps positions and a tree to the next positions, by messages of all pairs and along the edges of the tree."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.every, self.along = _mlp(5, dim), _mlp(5, dim)
        self.move = nn.Sequential(nn.Linear(2 + 2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.out = nn.Linear(dim, 2)

    def forward(self, place: Tensor, tree: Tensor) -> Tensor:
        """Return positions (S, B, starts, n, 2) one step after (S or 1, B, starts, n, 2), for trees (S, B, n, n)."""
        n = place.shape[-2]
        wide = (*place.shape[:-1], n, 2)
        one, other = place[..., None, :].expand(wide), place[..., None, :, :].expand(wide)
        pair = torch.cat([one, other, torch.linalg.vector_norm(one - other, dim=-1, keepdim=True)], -1)
        apart = 1 - torch.eye(n, dtype=place.dtype, device=place.device)
        every = (self.every(pair) * apart[..., None]).sum(-2)
        along = self.along(pair)
        # In the first step all samples share the positions, so messages are not copied for each of them.
        if len(along) == 1:
            along = torch.einsum("sbij,btijh->sbtih", tree, along[0])
        else:
            along = torch.einsum("sbij,sbtijh->sbtih", tree, along)
        place = place.expand(*along.shape[:-1], 2)
        messages = torch.cat([place, every.expand_as(along), along], -1)
        return place + self.out(self.move(messages))

    def unroll(self, places: Tensor, tree: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Return predictions and truth, of one shape; every `horizon` steps start from the true positions.

        The last start has fewer steps if the horizon does not divide their number.
        """
        truth = places.transpose(1, 2)
        place, predictions = truth[None, :, :-1:horizon], []
        for _ in range(horizon):
            place = self(place, tree)
            predictions.append(place)
        predicted = torch.stack(predictions, 3).flatten(2, 3)[:, :, : truth.shape[1] - 1]
        return predicted, truth[:, 1:].expand_as(predicted)


def _pairs(nodes: Tensor) -> Tensor:
    """Return all pairs (B, n, n, 2d) of vectors (B, n, d)."""
    n = nodes.shape[1]
    return torch.cat([nodes[:, :, None].expand(-1, -1, n, -1), nodes[:, None].expand(-1, n, -1, -1)], -1)


def _mlp(wide: int, dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())

"""Networks that choose k items and predict from these alone, and the ways to train the choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.discrete.choosers import SHARED, Chooser, Layer, choose_by, solver_layers
from benchmarks.discrete.explain_data import Texts
from setgrad import discrete

# How far below the mean a missing item scores: noise hardly ever lifts it, and norms stay moderate.
_ABSENT = 5.0
METHODS = (*SHARED, "ste", "l2x", "softsub", "softsub hard", "relaxed", "relaxed hard", "simple", "sfess", "rloo")


def make_chooser(method: str, k: int, samples: int, lam: float | None, device: torch.device) -> Chooser:
    """Return a way to train; all have the same number of samples, and noise as published."""
    if method == "sfess":
        return discrete.SFESS(k, samples=samples)
    if method == "rloo":
        return discrete.ScoreFunction(lambda theta: discrete.KSubset(theta, k), samples=samples)
    solver, gumbel = discrete.TopK(k), discrete.Gumbel()
    # As published: the largest of k soft samples of one item each, at a low temperature.
    one = discrete.GumbelSoftmax(temperature=0.1, samples=k * samples)
    layers: dict[str, Layer] = {
        **solver_layers(solver, discrete.SumOfGamma(k), samples, lam),
        "ste": discrete.Identity(solver, noise=gumbel, samples=samples),
        "l2x": lambda theta: one(theta).unflatten(0, (k, samples)).amax(0),
        "softsub": discrete.SoftSub(k, samples=samples),
        "softsub hard": discrete.SoftSub(k, samples=samples, hard=True),
        "relaxed": discrete.RelaxedTopK(k, noise=gumbel, samples=samples),
        "relaxed hard": discrete.RelaxedTopK(k, noise=gumbel, samples=samples, hard=True),
        "simple": discrete.SIMPLE(k, samples=samples),
    }
    return choose_by(layers[method], device)


@final
class Explainer(nn.Module):
    """Two separate networks: one scores items, the other reads the chosen ones.

    An item is the mean of its words. The first network sees the items beside each one, and the mean of all.
    """

    def __init__(self, vocabulary: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.choosing, self.reading = nn.Embedding(vocabulary, dim), nn.Embedding(vocabulary, dim)
        for embedding in (self.choosing, self.reading):
            nn.init.normal_(embedding.weight, std=0.3)
        self.drop = nn.Dropout(dropout)
        self.beside = nn.Conv1d(dim, dim, 3, padding=1)
        self.mix = nn.Linear(dim, dim)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(dim, 1))
        self.predict = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, 1))

    def theta(self, texts: Texts) -> Tensor:
        """Return scores of items, (B, items)."""
        items, mask = self._items(self.choosing, texts), texts.there
        whole = items.sum(1) / texts.count[:, None]
        hidden = self.beside(items.mT).mT + self.mix(whole)[:, None]
        scores = self.score(hidden)[..., 0]
        mean = (scores * mask).sum(1) / texts.count
        return torch.where(mask, scores, mean.detach()[:, None] - _ABSENT)

    def read(self, texts: Texts) -> Callable[[Tensor], Tensor]:
        """Return a function from weights of items (..., B, items), which sum to k, to predictions (..., B)."""
        items = self._items(self.reading, texts)

        def of_chosen(z: Tensor) -> Tensor:
            pooled = torch.einsum("...bi,bid->...bd", z, items) / z.detach().sum(-1, keepdim=True).clamp(min=1)
            return self.predict(pooled)[..., 0]

        return of_chosen

    def _items(self, embedding: nn.Embedding, texts: Texts) -> Tensor:
        """Return the means of the words of each item, 0 for an item without words."""
        size, max_items = len(texts), texts.items
        vectors = self.drop(embedding(texts.words))
        # An extra row collects padding.
        row = (texts.owner + (max_items + 1) * torch.arange(size, device=texts.owner.device)[:, None]).flatten()
        empty = vectors.new_zeros(size * (max_items + 1), vectors.shape[-1])
        sums = empty.index_add(0, row, vectors.flatten(0, 1))
        number = empty[:, 0].index_add(0, row, vectors.new_ones(len(row)))
        return (sums / number.clamp(min=1)[:, None]).unflatten(0, (size, max_items + 1))[:, :-1]

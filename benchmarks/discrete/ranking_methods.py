"""Losses of a batch of embeddings: through the ranking solver, and the usual ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, relu

from setgrad import discrete

# From similarities (replicas, queries, others) and which others are relevant to losses (replicas, queries).
Loss = Callable[[Tensor, Tensor], Tensor]
# Items that the recall loss counts.
RECALL = 8
LAMBDAS = (0.2, 2.0, 20.0, 200.0)
WIDTHS = (0.01, 0.05, 0.1, 0.3)
# Blackbox with a margin: a lambda that was good in a few short runs on Olivetti, so that each method has one option.
FIXED_LAMBDA = 2.0


def _rank_loss(name: str) -> Loss:
    if name == "recall":
        return lambda ranks, relevant: discrete.recall_loss(ranks, relevant, k=RECALL)
    return discrete.loglog_rank_loss


@final
@dataclass(frozen=True)
class Ranked:
    """A loss of ranks, with the gradient of an estimator.

    Projection and margin come before the solver, for Blackbox too. An informed margin is added to similarities, which
    should be large for relevant items; the answer of the solver is a rank, which should be small.
    """

    estimator: discrete.GradientEstimator
    loss: Loss
    project: bool
    margin: discrete.Margin | None

    def __call__(self, similarities: Tensor, relevant: Tensor) -> Tensor:
        """Return the loss after projection, margin and ranking."""
        theta = discrete.StdProjection()(similarities) if self.project else similarities
        if self.margin is not None:
            theta = self.margin(theta, target=relevant)
        return self.loss(self.estimator(theta), relevant)


def _ranked(way: str, loss: str, project: bool, margin: str) -> Callable[[float], Loss]:
    def make(option: float) -> Loss:
        lam = FIXED_LAMBDA if margin else option
        estimator = (
            discrete.Blackbox(discrete.Ranking(), lam=lam)
            if way == "blackbox"
            else discrete.Identity(discrete.Ranking())
        )
        chosen = {"": None, "noise": discrete.NoiseMargin(option), "informed": discrete.InformedMargin(option)}[margin]
        return Ranked(estimator, _rank_loss(loss), project, chosen)

    return make


def soft_ranks(temperature: float) -> Loss:
    """Return the loglog loss with sigmoids of differences instead of comparisons, as in SmoothAP, without a solver."""

    def loss(similarities: Tensor, relevant: Tensor) -> Tensor:
        ahead = ((similarities[..., None, :] - similarities[..., :, None]) / temperature).sigmoid()
        in_front = (ahead * ~relevant[..., None, :]).sum(-1)
        each = in_front.log1p().log1p()
        return (each * relevant).sum(-1) / relevant.sum(-1).clamp(min=1)

    return loss


def triplet(margin: float) -> Loss:
    """Return the triplet loss of the farthest relevant item and the nearest irrelevant one of the batch, by cosine."""

    def loss(similarities: Tensor, relevant: Tensor) -> Tensor:
        farthest = similarities.masked_fill(~relevant, torch.inf).amin(-1)
        nearest = similarities.masked_fill(relevant, -torch.inf).amax(-1)
        return relu(nearest - farthest + margin)

    return loss


def contrastive(margin: float) -> Loss:
    """Return the mean squared distance of relevant pairs plus the mean squared gap of the others to the margin."""

    def loss(similarities: Tensor, relevant: Tensor) -> Tensor:
        square = (2 - 2 * similarities).clamp(min=1e-8)
        pushed = relu(margin - square.sqrt()).square()
        pull = (square * relevant).sum(-1) / relevant.sum(-1).clamp(min=1)
        push = (pushed * ~relevant).sum(-1) / (~relevant).sum(-1).clamp(min=1)
        return pull + push

    return loss


def cross_entropy(temperature: float) -> Loss:
    """Return the softmax loss of similarities over the batch, with all relevant items as targets."""

    def loss(similarities: Tensor, relevant: Tensor) -> Tensor:
        logs = (similarities / temperature).log_softmax(-1)
        return -(logs * relevant).sum(-1) / relevant.sum(-1).clamp(min=1)

    return loss


def pairs(temperature: float) -> Loss:
    """Return the cross-entropy of pairs of equal or different class, both kinds with the same weight."""

    def loss(similarities: Tensor, relevant: Tensor) -> Tensor:
        relevant = relevant.expand_as(similarities)
        each = binary_cross_entropy_with_logits(
            (similarities - 0.5) / temperature, relevant.to(similarities.dtype), reduction="none"
        )
        same = (each * relevant).sum(-1) / relevant.sum(-1).clamp(min=1)
        return same + (each * ~relevant).sum(-1) / (~relevant).sum(-1).clamp(min=1)

    return loss


@final
@dataclass(frozen=True)
class Model:
    """A method: a constructor of its loss, and values of its one option."""

    make: Callable[[float], Loss]
    option_values: tuple[float, ...]


def _solver_models() -> dict[str, Model]:
    models = {}
    for loss in ("loglog", "recall"):
        for way in ("blackbox", "identity"):
            for project in (False, True):
                for margin in ("", "noise", "informed"):
                    option_values = WIDTHS if margin else LAMBDAS if way == "blackbox" else (0.0,)
                    name = " ".join(filter(None, [way, "std" * project, margin and f"{margin} margin", loss]))
                    # There is no published recall loss with noise; it is only compared with loglog.
                    if loss == "loglog" or margin != "noise":
                        models[name] = Model(_ranked(way, loss, project, margin), option_values)
    return models


# Trained by a loss of similarities.
MODELS = {
    **_solver_models(),
    "soft ranks loglog": Model(soft_ranks, (0.01, 0.03, 0.1, 0.3)),
    "triplet": Model(triplet, (0.1, 0.2, 0.4, 0.8)),
    "contrastive": Model(contrastive, (0.5, 0.8, 1.1, 1.4)),
    "pairs": Model(pairs, (0.05, 0.1, 0.2, 0.5)),
    "softmax of the batch": Model(cross_entropy, (0.05, 0.1, 0.2, 0.5)),
}
# Trained as a classifier of the training classes: temperatures of cosines to one vector for each class.
CLASSIFIER = "classifier"
TEMPERATURES = (0.05, 0.1, 0.2, 0.5)
# Not trained by steps; numbers of components for the second and third.
PLAIN = {"pixels": (0.0,), "pca": (8.0, 16.0, 32.0, 64.0), "lda": (4.0, 9.0, 16.0, 19.0), "random network": (0.0,)}


def option_values_of(name: str) -> tuple[float, ...]:
    """Return the values to try."""
    if name in MODELS:
        return MODELS[name].option_values
    return TEMPERATURES if name == CLASSIFIER else PLAIN[name]


ALL = (*MODELS, CLASSIFIER, *PLAIN)

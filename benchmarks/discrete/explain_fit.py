"""One trial of learning to explain: train a choice of k items and a reader of it, or a rival that needs no gradient."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.discrete.explain_data import Corpus, Texts, plant, read_reviews
from benchmarks.discrete.explain_models import METHODS, Explainer, make_chooser
from benchmarks.lib.records import Record, RunContext
from setgrad.discrete import TopK
from setgrad.selector import resolve_device

# Networks that read a fixed choice.
FIXED = ("whole text", "random", "first", "last")
LINEAR = ("linear whole text", "linear strongest", "linear in favour")


@final
@dataclass(frozen=True)
class Trial:
    """One training run and its test. `lam` is for IMLE alone."""

    part: str
    k: int
    method: str
    seed: int
    lam: float | None = None
    samples: int = 4
    steps: int = 600
    batch: int = 64
    dim: int = 64
    rate: float = 5e-3
    dropout: float = 0.0
    decay: float = 0.0
    texts: int | None = None

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        step = "" if self.lam is None else f" {self.lam:g}"
        return f"{self.part} {self.k}, {self.method}{step}, seed {self.seed}"


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train, and test the weights with the best validation loss. All scores are percentages."""
    if trial.part == "planted":
        corpus = plant(trial.k, trial.seed) if trial.texts is None else plant(trial.k, trial.seed, [trial.texts] * 3)
    else:
        corpus = read_reviews(context.data_dir, trial.part, trial.texts)
    if trial.method in LINEAR:
        result = fit_linear(trial, corpus)
    else:
        result = fit_network(trial, corpus, resolve_device(context.device))
    return {**result, "summary": f"{result['score']:.1f}, precision {result['precision']:.1f}"}


def fit_network(trial: Trial, corpus: Corpus, device: torch.device) -> Record:
    """Train a network with an estimator or with fixed choices, and return its scores."""
    train, validation, test = (part.to(device) for part in (corpus.train, corpus.validation, corpus.test))
    network = Explainer(corpus.vocabulary, trial.dim, trial.dropout).to(device)
    chooser = make_chooser(trial.method, trial.k, trial.samples, trial.lam, device) if trial.method in METHODS else None
    optimizer = torch.optim.AdamW(network.parameters(), lr=trial.rate, weight_decay=trial.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trial.steps)
    rng = np.random.default_rng(trial.seed)
    order = np.zeros(0, int)
    best, best_weights, number = np.inf, copy.deepcopy(network.state_dict()), 0
    for step in range(1, trial.steps + 1):
        if len(order) < trial.batch:
            order = np.concatenate([order, rng.permutation(len(train))])
        rows, order = order[: trial.batch], order[trial.batch :]
        batch = train[torch.from_numpy(rows).to(device)]
        network.train()
        read = network.read(batch)

        def losses(z: Tensor, read=read, batch=batch) -> Tensor:  # type: ignore[no-untyped-def]
            return each_loss(read(z), batch.target, regression=corpus.regression)

        if chooser is None:
            loss = losses(fixed_choice(trial.method, batch, trial.k)).mean()
        else:
            loss = chooser(network.theta(batch), losses).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % max(1, trial.steps // 10) == 0:
            predicted, _ = predict(network, validation, trial)
            reached = each_loss(predicted, validation.target, regression=corpus.regression).mean().item()
            if reached < best:
                best, best_weights, number = reached, copy.deepcopy(network.state_dict()), step
    network.load_state_dict(best_weights)
    predicted, chosen = predict(network, test, trial)
    return {**scores(predicted, chosen, test, regression=corpus.regression), "validation": best, "best_step": number}


def each_loss(predicted: Tensor, target: Tensor, *, regression: bool) -> Tensor:
    """Return the squared error, or the cross-entropy."""
    target = target.expand_as(predicted)
    if regression:
        return (predicted - target).square()
    return nn.functional.binary_cross_entropy_with_logits(predicted, target, reduction="none")


def fixed_choice(method: str, texts: Texts, k: int) -> Tensor:
    """Return weights of items, (B, items), by a rule."""
    mask = texts.there
    if method == "whole text":
        return mask.float()
    if method == "random":
        rank = torch.rand(mask.shape, device=mask.device)
    else:
        place = torch.arange(texts.items, device=mask.device, dtype=torch.float32).expand(mask.shape)
        rank = place if method == "last" else -place
    return TopK(k)(torch.where(mask, rank, -1e9))


@torch.no_grad()
def predict(network: Explainer, texts: Texts, trial: Trial) -> tuple[Tensor, Tensor]:
    """Return predictions and chosen items: the k largest scores, without noise."""
    network.eval()
    predicted, chosen = [], []
    for rows in torch.arange(len(texts), device=texts.target.device).split(250):
        part = texts[rows]
        if trial.method in METHODS:
            z = TopK(trial.k)(network.theta(part).masked_fill(~part.there, -1e9))
        else:
            z = fixed_choice(trial.method, part, trial.k)
        z = z * part.there
        predicted.append(network.read(part)(z))
        chosen.append(z > 0)
    return torch.cat(predicted), torch.cat(chosen)


def scores(predicted: Tensor, chosen: Tensor, texts: Texts, *, regression: bool) -> Record:
    """Return the score of the prediction, and precision and recall, averaged over texts with relevant items."""
    if regression:
        score = (predicted - texts.target).square().mean()
    else:
        score = ((predicted > 0) == (texts.target > 0.5)).float().mean()
    hits = (chosen & texts.relevant).sum(1)
    marked = texts.relevant.any(1)
    precision = (hits / chosen.sum(1).clamp(min=1))[marked].mean()
    recall = (hits / texts.relevant.sum(1).clamp(min=1))[marked].mean()
    return {
        name: 100 * value.item() for name, value in {"score": score, "precision": precision, "recall": recall}.items()
    }


# ---- methods without a network


def fit_linear(trial: Trial, corpus: Corpus) -> Record:
    """Return the scores of logistic or ridge regression of words, and of the items that weigh most in it."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression, Ridge

    weigh = TfidfTransformer(sublinear_tf=not corpus.regression, use_idf=not corpus.regression)
    if corpus.regression:
        weigh.set_params(norm=None)
    train = weigh.fit_transform(_counts(corpus.train, corpus.vocabulary))
    validation = weigh.transform(_counts(corpus.validation, corpus.vocabulary))
    best: tuple[float, Any] = (np.inf, None)
    for strength in (0.1, 1.0, 10.0, 100.0):
        model = Ridge(alpha=strength) if corpus.regression else LogisticRegression(C=strength, solver="liblinear")
        model.fit(train, corpus.train.target.numpy())
        losses = each_loss(_linear(model, validation), corpus.validation.target, regression=corpus.regression)
        if losses.mean() < best[0]:
            best = (losses.mean().item(), model)
    model = best[1]
    test = corpus.test
    whole = _linear(model, weigh.transform(_counts(test, corpus.vocabulary)))
    if trial.method == "linear whole text":
        return {**scores(whole, test.there, test, regression=corpus.regression), "validation": best[0], "best_step": 0}
    coefficients = torch.from_numpy(np.ravel(model.coef_)).float()
    if not corpus.regression:
        coefficients = coefficients * torch.from_numpy(weigh.idf_).float()
    weights = torch.zeros(len(test), test.items + 1).scatter_add_(1, test.owner, coefficients[test.words])[:, :-1]
    rank = weights.abs() if trial.method == "linear strongest" else weights * whole.sign()[:, None]
    chosen = (TopK(trial.k)(torch.where(test.there, rank, -1e9)) > 0) & test.there
    predicted = _linear(model, weigh.transform(_counts(test, corpus.vocabulary, chosen)))
    return {**scores(predicted, chosen, test, regression=corpus.regression), "validation": best[0], "best_step": 0}


def _linear(model: object, x: object) -> Tensor:
    predict = getattr(model, "decision_function", None) or model.predict  # type: ignore[attr-defined]
    return torch.from_numpy(np.asarray(predict(x))).float()


def _counts(texts: Texts, vocabulary: int, chosen: Tensor | None = None) -> object:
    """Return how often each word occurs in each text, or in its chosen items, as a sparse matrix."""
    from scipy.sparse import csr_matrix

    mask = texts.owner < texts.items
    if chosen is not None:
        mask &= nn.functional.pad(chosen, (0, 1)).gather(1, texts.owner)
    rows, places = mask.nonzero(as_tuple=True)
    ones = np.ones(len(rows))
    return csr_matrix((ones, (rows.numpy(), texts.words[rows, places].numpy())), (len(texts), vocabulary))

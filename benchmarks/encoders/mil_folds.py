"""Cross-validation on the classical sets of bags, for networks and for plain statistics of bags."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import nn

from benchmarks.encoders.mil_models import ACTIVATED, POOLS, Classifier, loss, probability
from benchmarks.lib.records import Record, RunContext
from setgrad.datasets import Bags, bag_folds, mil
from setgrad.sets import Sets, segment_max, segment_mean

FOLDS = 10


@final
@dataclass(frozen=True)
class Training:
    """Options of training, the same for all networks and all data, set beforehand."""

    steps: int = 300
    batch: int = 16
    rate: float = 1e-3
    decay: float = 1e-2
    dim: int = 64
    dropout: float = 0.25


def cross_validate(data: str, model: str, seed: int, context: RunContext, *, steps: int, folds: int) -> Record:
    """Return the scores of all bags, each by a model fitted without its fold. Every seed has other folds."""
    bags = mil(data, data_dir=context.data_dir)
    predicted = np.full(len(bags), math.nan)
    # Always ten folds, so that a quick run of a few of them tests the same.
    parts = bag_folds(bags, FOLDS, random_state=seed)[:folds]
    for train, test in parts:
        scaled = standardised(bags, train)
        predicted[test] = predict_fold(model, scaled, bags.labels, train, test, seed, steps)
    tested = ~np.isnan(predicted)
    truth = bags.labels.numpy()
    right = (predicted > 0.5) == truth
    accuracy, area = 100 * float(right[tested].mean()), 100 * auroc(predicted[tested], truth[tested])
    return {
        "accuracy": accuracy,
        "auroc": area,
        "fold_accuracies": [round(100 * float(right[test].mean()), 2) for _, test in parts],
        "probabilities": [None if math.isnan(p) else round(p, 4) for p in predicted.tolist()],
        "summary": f"accuracy {accuracy:.1f}, AUROC {area:.1f}",
    }


def standardised(bags: Bags, train: np.ndarray) -> Sets:
    """Return all bags, with features of mean 0 and deviation 1 over the instances of the training bags."""
    instances = bags.sets.take(train).values.double()
    deviation = instances.std(0, correction=0)
    scale = torch.where(deviation > 0, deviation, 1.0)
    return bags.sets.with_values(((bags.sets.values - instances.mean(0)) / scale).float())


def predict_fold(
    model: str, bags: Sets, labels: torch.Tensor, train: np.ndarray, test: np.ndarray, seed: int, steps: int
) -> np.ndarray:
    """Return the probabilities of the test bags."""
    if model in PLAIN:
        rows = statistics(bags)
        return PLAIN[model](rows[train], labels.numpy()[train], rows[test], seed)
    options = Training(steps=steps)
    pools = {**POOLS, **ACTIVATED}[model](options.dim)
    classifier = Classifier(instance_features(bags.values.shape[1], options), pools)
    fit_classifier(classifier, bags, labels.float(), train, options)
    with torch.no_grad():
        return probability(classifier(bags.take(test))).numpy()


def instance_features(features: int, options: Training) -> nn.Module:
    """Return two layers for each instance."""
    dim, drop = options.dim, options.dropout
    return nn.Sequential(
        nn.Linear(features, 2 * dim), nn.ReLU(), nn.Dropout(drop), nn.Linear(2 * dim, dim), nn.ReLU(), nn.Dropout(drop)
    )


def fit_classifier(
    classifier: nn.Module, bags: Sets, labels: torch.Tensor, train: np.ndarray, options: Training
) -> None:
    """Train for a fixed number of steps: there is no early stopping, and no test bag is used."""
    optimizer = torch.optim.AdamW(classifier.parameters(), options.rate, weight_decay=options.decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    classifier.train()
    order = torch.cat([torch.randperm(len(train)) for _ in range(-(-options.steps * options.batch // len(train)))])
    for rows in order[: options.steps * options.batch].split(options.batch):
        numbers = train[rows.numpy()]
        optimizer.zero_grad()
        loss(classifier(bags.take(numbers)), labels[numbers]).backward()
        optimizer.step()
        schedule.step()
    classifier.eval()


def statistics(bags: Sets) -> np.ndarray:
    """Return mean, minimum and maximum of every feature in a bag, and the logarithm of its size."""
    x = bags.values
    size = bags.lengths.log()[:, None].to(x.dtype)
    return torch.cat([segment_mean(x, bags), -segment_max(-x, bags), segment_max(x, bags), size], 1).numpy()


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative, with ties counted half.

    Examples:
        >>> auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
        0.875
    """
    above, below = scores[truth], scores[~truth]
    if not len(above) or not len(below):
        return math.nan
    gap = above[:, None] - below[None]
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


def _logistic(rows: np.ndarray, labels: np.ndarray, test_rows: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression(max_iter=2000)
    return _searched(estimator, {"C": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}, rows, labels, seed).predict_proba(test_rows)[:, 1]


def _svm(rows: np.ndarray, labels: np.ndarray, test_rows: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.svm import SVC

    scale = 1 / rows.shape[1]
    grid = {"C": [0.3, 1, 3, 10, 100], "gamma": [scale / 10, scale / 3, scale, 3 * scale]}
    margin = _searched(SVC(), grid, rows, labels, seed)
    # The sign of the margin decides, so a probability of one half is a margin of 0.
    return 1 / (1 + np.exp(-margin.decision_function(test_rows)))


def _forest(rows: np.ndarray, labels: np.ndarray, test_rows: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(500, random_state=seed).fit(rows, labels).predict_proba(test_rows)[:, 1]


def _searched(estimator: Any, grid: dict[str, list[float]], rows: np.ndarray, labels: np.ndarray, seed: int) -> Any:
    """Return a classifier with the point of the grid that has the best accuracy in five folds of the training bags."""
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    name = type(estimator).__name__.lower()
    pipeline = make_pipeline(StandardScaler(), estimator)
    points = {f"{name}__{option}": values for option, values in grid.items()}
    return GridSearchCV(pipeline, points, cv=StratifiedKFold(5, shuffle=True, random_state=seed)).fit(rows, labels)


# Classifiers of one row for each bag: training rows and labels, test rows, seed.
PLAIN: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]] = {
    "statistics-logistic": _logistic,
    "statistics-svm": _svm,
    "statistics-trees": _forest,
}

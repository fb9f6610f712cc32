"""Gradient-boosted trees (LightGBM) on what a table of items can say about its set, as classifier and as ranker.

An item has its features, each of them again as a z-score and as the share of items of the set below it, its distance
from the mean of the set, and the size of the set. The validation sets end the training, as they do for a selector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.datasets import Task
from setgrad.errors import MissingDependencyError
from setgrad.sets import Choices, Sets, segment_mean

# Sets whose features are computed at once, in double precision.
_CHUNK = 256
_ROUNDS, _PATIENCE = 2000, 50
# The share of features for each tree was chosen by validation scores of digits; 0.8 is worse by one point there. Random
# shares of rows and features make the seed count.
_OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 31,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "feature_fraction": 0.3,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
# LightGBM advises to rank a few places more than those that count.
_PLACES_MORE = 3


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Examples for trees: features `(rows, columns)`, labels, and how many rows each set has."""

    features: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray


@final
@dataclass(frozen=True)
class Boosting:
    """Gradient boosting as a baseline: called with a task and a seed, it fits a model that scores items.

    Attributes:
        ranker: Whether to learn the order of the items of a set (lambdarank) instead of the probability of an item.
        threads: Number of threads; None for those of torch.
    """

    ranker: bool = False
    threads: int | None = None

    def __call__(self, task: Task, seed: int) -> Callable[[Choices], Tensor]:
        """Return the scores of a fitted model: logits of the classifier, or scores of the ranker."""
        predict = self.fit(_rows(task.train), _rows(task.validation), seed)
        return lambda choices: predict(group_features(choices.sets))

    def fit(self, train: Rows, validation: Rows, seed: int) -> Callable[[np.ndarray], Tensor]:
        """Return the scores of new rows by the best round on the validation rows, by the last one if there are none.

        Raises:
            MissingDependencyError: If LightGBM is not installed.
        """
        try:
            import lightgbm
        except ImportError:
            raise MissingDependencyError("boosting needs LightGBM: pip install 'setgrad[bench]'") from None

        def prepare(rows: Rows, reference: Any = None) -> Any:
            groups = rows.lengths[rows.lengths > 0] if self.ranker else None
            return lightgbm.Dataset(rows.features, rows.labels.astype(np.int32), group=groups, reference=reference)

        known = prepare(train)
        stop: dict[str, Any] = {}
        if len(validation.labels):
            stopping = lightgbm.early_stopping(_PATIENCE, verbose=False)
            stop = {"valid_sets": [prepare(validation, known)], "callbacks": [stopping]}
        model = lightgbm.train(self._options(train, seed), known, _ROUNDS, **stop)
        return lambda features: torch.from_numpy(model.predict(features, raw_score=True))

    def _options(self, train: Rows, seed: int) -> dict[str, Any]:
        options = {**_OPTIONS, "seed": seed, "num_threads": self.threads or torch.get_num_threads()}
        if not self.ranker:
            return {**options, "objective": "binary"}
        labels = np.split(train.labels, np.cumsum(train.lengths)[:-1])
        places = max(1, max(int(part.sum()) for part in labels))
        return {
            **options,
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [places],
            "lambdarank_truncation_level": places + _PLACES_MORE,
        }


def _rows(choices: Choices) -> Rows:
    lengths = choices.sets.layout.host_lengths
    return Rows(group_features(choices.sets), choices.subsets.values.numpy(), lengths)


def group_features(sets: Sets) -> np.ndarray:
    """Return features, z-scores, shares of items below, distance from the mean and size of the set, one row an item."""
    return np.concatenate([_features(sets[i : i + _CHUNK]) for i in range(0, max(1, len(sets)), _CHUNK)])


def _features(sets: Sets) -> np.ndarray:
    values, ids = sets.values.flatten(1).double(), sets.layout.ids
    centred = values - segment_mean(values, sets)[ids]
    deviations = segment_mean(centred.square(), sets).sqrt()[ids]
    z_scores = torch.where(deviations > 0, centred / deviations, 0.0)
    distances, sizes = centred.norm(dim=1)[:, None], sets.lengths[ids, None]
    columns = [values, z_scores, _shares_below(sets.with_values(values)), distances, sizes]
    return torch.cat([column.float() for column in columns], 1).numpy()


def _shares_below(sets: Sets) -> Tensor:
    """Return the share of the other items of the set that are below in each feature; equal ones count half."""
    padded, mask = sets.padded()
    # Infinity is above every item, so padding never counts.
    ordered = torch.where(mask[..., None], padded, torch.inf).mT.sort().values.contiguous()
    columns = padded.mT.contiguous()
    below = torch.searchsorted(ordered, columns).double()
    up_to = torch.searchsorted(ordered, columns, right=True).double()
    others = (mask.sum(1).double() - 1).clamp(min=1)
    return ((below + up_to - 1) / 2 / others[:, None, None]).mT[mask]

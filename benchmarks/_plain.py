"""Baselines that learn no weights: how popular an item was, how far it is from the others, and chance.

Their sizes come from the same rules, fitted on the same validation sets, as those of a selector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from setgrad.datasets import Task
from setgrad.selector import jaccard, pick_top
from setgrad.selector.sizes import calibrate
from setgrad.sets import Choices, segment_mean, subset_sizes


def popularity(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by how often it was chosen in training; ties are broken at random."""
    if task.train.item_ids is None:
        raise ValueError(f"the items of {task.name} have no ids, so none can be popular")
    ids = np.asarray(task.train.item_ids)
    names, counts = np.unique(ids[task.train.subsets.values.numpy()], return_counts=True)
    times = dict(zip(names.tolist(), counts.tolist(), strict=True))
    tie_break = chance(task, seed)

    def score(choices: Choices) -> Tensor:
        found = [times.get(item, 0) for item in np.asarray(choices.item_ids).tolist()]
        # The logarithm, because the size rules read scores as logits.
        return torch.tensor(found, dtype=torch.float64).add(1).log() + 1e-6 * tie_break(choices)

    return score


def outlier(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by its distance from the mean of its set, as it comes."""

    def score(choices: Choices) -> Tensor:
        items = choices.sets.with_values(choices.sets.values.flatten(1).double())
        means = segment_mean(items.values, items)
        distances = (items.values - means[items.layout.ids]).norm(dim=1)
        # In units of the usual distance, because the size rules read scores as logits.
        return distances / distances.mean().clamp(min=1e-300)

    return score


def chance(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score items at random."""
    generator = torch.Generator().manual_seed(seed)
    return lambda choices: torch.rand(choices.sets.layout.total, generator=generator, dtype=torch.float64)


BASELINES: dict[str, Callable[[Task, int], Callable[[Choices], Tensor]]] = {
    "popularity": popularity,
    "outlier": outlier,
    "chance": chance,
}


# The families that a baseline makes sense for, if not for all: items of Amazon come again in other sets, those of most
# tasks do not; and only anomalies are told by being unlike the others.
_FAMILIES = {"popularity": ("amazon",), "outlier": ("anomaly", "celeba")}


def applies(name: str, task: str) -> bool:
    """Whether a baseline makes sense for a task."""
    return name not in _FAMILIES or task.partition(":")[0] in _FAMILIES[name]


def score_baseline(name: str, task: Task, seed: int) -> dict[str, float]:
    """Both scores on the test split, and that on validation with the true size, in percent."""
    rank = BASELINES[name](task, seed)
    rule, _ = calibrate(held := rank(task.validation), task.validation.subsets)
    logits = rank(task.test)
    return {
        "true_size": _percent(logits, task.test, subset_sizes(task.test.subsets)),
        "own_size": _percent(logits, task.test, rule.sizes(logits, task.test.sets)),
        "validation": _percent(held, task.validation, subset_sizes(task.validation.subsets)),
    }


def _percent(logits: Tensor, choices: Choices, sizes: np.ndarray | Tensor) -> float:
    return 100 * float(jaccard(pick_top(logits, choices.sets, sizes), choices.subsets).mean())

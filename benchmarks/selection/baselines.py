"""Baselines that learn no weights: how popular an item was, how far it is from the others or how near, and chance.

Their sizes come from the same rules, fitted on the same validation sets, as those of a selector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from setgrad.datasets import Task
from setgrad.selector import jaccard, pick_top
from setgrad.selector.sizes import calibrate
from setgrad.sets import Choices, Sets, segment_mean, subset_sizes


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


def alike(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by its mean cosine with the others of its set."""

    def score(choices: Choices) -> Tensor:
        units = _units(choices.sets)
        others = segment_mean(units, choices.sets)[choices.sets.layout.ids]
        return (units * others).sum(1)

    return score


def most_alike(scores: Tensor, sets: Sets, sizes: np.ndarray | Tensor) -> Sets:
    """Of all subsets of the given size, the one with the largest sum of cosines: where several are right, one of them.

    What items score by themselves makes no difference.
    """
    layout = sets.layout
    if layout.longest > _ENUMERATED:
        raise ValueError(f"all subsets of {layout.longest} items are too many; {_ENUMERATED} are the most")
    units, there = sets.with_values(_units(sets)).padded()
    # The bits of a number are a subset of every set; those beyond its last item count for nothing.
    bits = (torch.arange(2**layout.longest)[:, None] >> torch.arange(layout.longest)) & 1
    cosines = torch.einsum("mi,bij,mj->mb", bits.double(), units @ units.mT, bits.double())
    fits = bits @ there.long().T == torch.as_tensor(sizes)
    best = torch.where(fits, cosines, -torch.inf).argmax(0)
    return sets.with_values(bits[best[layout.ids], layout.positions] == 1)


def _units(sets: Sets) -> Tensor:
    return normalize(sets.values.flatten(1).double(), dim=1)


def chance(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score items at random."""
    generator = torch.Generator().manual_seed(seed)
    return lambda choices: torch.rand(choices.sets.layout.total, generator=generator, dtype=torch.float64)


BASELINES: dict[str, Callable[[Task, int], Callable[[Choices], Tensor]]] = {
    "popularity": popularity,
    "outlier": outlier,
    "alike": alike,
    "chance": chance,
}
# How subsets are made of scores and sizes, where it is not by taking the items that score best.
_PICKS: dict[str, Callable[[Tensor, Sets, np.ndarray | Tensor], Sets]] = {"alike": most_alike}
# Items of the largest set of which all subsets are looked at.
_ENUMERATED = 12


# The families that a baseline makes sense for, if not for all: items of Amazon come again in other sets, those of most
# tasks do not; only anomalies are told by being unlike the others, and bundles by being like each other.
_FAMILIES = {"popularity": ("amazon",), "outlier": ("anomaly", "celeba"), "alike": ("bundles",)}


def applies(name: str, task: str) -> bool:
    """Whether a baseline makes sense for a task."""
    return name not in _FAMILIES or task.partition(":")[0] in _FAMILIES[name]


def score_baseline(name: str, task: Task, seed: int) -> dict[str, float]:
    """Both scores on the test split, and that on validation with the true size, in percent."""
    rank, pick = BASELINES[name](task, seed), _PICKS.get(name, pick_top)
    rule, _ = calibrate(held := rank(task.validation), task.validation.subsets)
    logits = rank(task.test)

    def percent(scores: Tensor, choices: Choices, sizes: np.ndarray | Tensor) -> float:
        return 100 * float(jaccard(pick(scores, choices.sets, sizes), choices.subsets).mean())

    return {
        "true_size": percent(logits, task.test, subset_sizes(task.test.subsets)),
        "own_size": percent(logits, task.test, rule.sizes(logits, task.test.sets)),
        "validation": percent(held, task.validation, subset_sizes(task.validation.subsets)),
    }

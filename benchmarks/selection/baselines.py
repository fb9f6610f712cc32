"""Baselines without a neural network: popularity, distance from the set, likeness, gradient boosting and chance.

Their sizes come from the same rules, fitted on the same validation sets, as those of a selector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.selection.boosting import Boosting
from benchmarks.selection.tasks import PIXELS
from setgrad.datasets import Task
from setgrad.selector import jaccard, pick_top
from setgrad.selector.sizes import calibrate
from setgrad.sets import Choices, Sets, segment_mean, subset_sizes


def popularity(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by how often it was chosen in training; ties are broken at random."""
    if task.train.item_ids is None:
        raise ValueError(f"popularity needs ids of items, and the items of {task.name} have none")
    ids = np.asarray(task.train.item_ids)
    names, counts = np.unique(ids[task.train.subsets.values.numpy()], return_counts=True)
    count_of = dict(zip(names.tolist(), counts.tolist(), strict=True))
    tie_break = chance(task, seed)

    def score(choices: Choices) -> Tensor:
        item_counts = [count_of.get(item, 0) for item in np.asarray(choices.item_ids).tolist()]
        # The logarithm, because the size rules read scores as logits.
        return torch.tensor(item_counts, dtype=torch.float64).add(1).log() + 1e-6 * tie_break(choices)

    return score


def outlier(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by its distance from the mean of its set."""

    def score(choices: Choices) -> Tensor:
        items = choices.sets.with_values(choices.sets.values.flatten(1).double())
        means = segment_mean(items.values, items)
        distances = (items.values - means[items.layout.ids]).norm(dim=1)
        # In units of the mean distance, because the size rules read scores as logits.
        return distances / distances.mean().clamp(min=1e-300)

    return score


def alike(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score an item by its mean cosine with the items of its set."""

    def score(choices: Choices) -> Tensor:
        units = units_of(choices.sets)
        others = segment_mean(units, choices.sets)[choices.sets.layout.ids]
        return (units * others).sum(1)

    return score


def most_alike(scores: Tensor, sets: Sets, sizes: np.ndarray | Tensor, given: Sets | None = None) -> Sets:
    """Return, of all subsets of the right size that contain the given items, the one with the largest sum of cosines.

    The scores are not used.
    """
    if sets.layout.longest > ENUMERATED:
        raise ValueError(
            f"sets of {sets.layout.longest} items have too many subsets; at most {ENUMERATED} items are possible"
        )
    units, wanted = sets.with_values(units_of(sets)), torch.as_tensor(sizes)
    known = sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool)) if given is None else given
    # A few sets at a time, because each has up to 2^15 subsets.
    parts = [slice(start, start + _SETS_AT_ONCE) for start in range(0, len(sets), _SETS_AT_ONCE)]
    chosen = [_most_alike(units[part], wanted[part], known[part]) for part in parts]
    return sets.with_values(torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.bool))


def _most_alike(units: Sets, sizes: Tensor, given: Sets) -> Tensor:
    layout = units.layout
    vectors, mask = units.padded()
    # The bits of a number are a subset of every set; bits beyond its last item do not count.
    bits = (torch.arange(2**layout.longest)[:, None] >> torch.arange(layout.longest)) & 1
    cosines = torch.einsum("mi,bij,mj->mb", bits.double(), vectors @ vectors.mT, bits.double())
    required = given.padded()[0].long()
    fits = (bits @ mask.long().T == sizes) & (bits @ required.T == required.sum(1))
    best = torch.where(fits, cosines, -torch.inf).argmax(0)
    return bits[best[layout.ids], layout.positions] == 1


def units_of(sets: Sets) -> Tensor:
    """Return the items scaled to length 1."""
    return normalize(sets.values.flatten(1).double(), dim=1)


def chance(task: Task, seed: int) -> Callable[[Choices], Tensor]:
    """Score items at random."""
    generator = torch.Generator().manual_seed(seed)
    return lambda choices: torch.rand(choices.sets.layout.total, generator=generator, dtype=torch.float64)


BASELINES: dict[str, Callable[[Task, int], Callable[[Choices], Tensor]]] = {
    "popularity": popularity,
    "outlier": outlier,
    "alike": alike,
    "lightgbm": Boosting(),
    "lightgbm-ranker": Boosting(ranker=True),
    "chance": chance,
}
# How a baseline picks a subset by scores and sizes, if not by taking the items with the best scores.
_PICKS: dict[str, Callable[[Tensor, Sets, np.ndarray | Tensor], Sets]] = {"alike": most_alike}
# Items of the largest set whose subsets are enumerated.
ENUMERATED = 15
# Sets whose subsets are enumerated together.
_SETS_AT_ONCE = 16


# The families of tasks that a baseline is for, if not for all. Only items of Amazon are in several sets, only anomalies
# are unlike the other items, and only items of bundles and clusters are alike.
_FAMILIES = {
    "popularity": ("amazon",),
    "outlier": ("anomaly", "celeba"),
    "alike": ("bundles", "clusters"),
}
# Gradient boosting, which needs plain vectors.
TREES = ("lightgbm", "lightgbm-ranker")
_VECTORS = ("amazon", "bundles", "clusters", "digits", "gaussian", "moons")


def applies(name: str, task: str) -> bool:
    """Return whether a baseline can be used for a task."""
    family = task.partition(":")[0]
    if name in TREES:
        return family in _VECTORS or task.endswith(PIXELS)
    return name not in _FAMILIES or family in _FAMILIES[name]


def score_baseline(name: str, task: Task, seed: int) -> dict[str, float]:
    """Return both scores on the test split, and the validation score with the true size, in percent."""
    rank, pick = BASELINES[name](task, seed), _PICKS.get(name, pick_top)
    rule, _ = calibrate(validation := rank(task.validation), task.validation.subsets)
    logits = rank(task.test)

    def percent(scores: Tensor, choices: Choices, sizes: np.ndarray | Tensor) -> float:
        return 100 * float(jaccard(pick(scores, choices.sets, sizes), choices.subsets).mean())

    return {
        "true_size": percent(logits, task.test, subset_sizes(task.test.subsets)),
        "own_size": percent(logits, task.test, rule.sizes(logits, task.test.sets)),
        "validation": percent(validation, task.validation, subset_sizes(task.validation.subsets)),
    }

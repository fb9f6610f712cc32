"""Plain ways to complete subsets of which some items are given. The given items count in the size.

A rival is fitted by a task and a seed. It gets sets, the size of each subset and the given items.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from benchmarks.selection.baselines import BASELINES, applies, most_alike, popularity, units_of
from benchmarks.selection.boosting import Boosting, Rows, group_features
from setgrad.datasets import Task
from setgrad.selector import pick_top
from setgrad.sets import Choices, Sets, segment_rank, segment_sum

# Scores of the items of sets, of which some are given.
Score = Callable[[Choices, Sets], Tensor]
# Subsets of these sizes that contain the given items.
Complete = Callable[[Choices, Tensor, Sets], Sets]

# Partial subsets that are drawn from each training and validation set for trees.
_DRAWS = 4


def complete(scores: Tensor, sets: Sets, sizes: Tensor, given: Sets) -> Sets:
    """Return the given items and those with the best scores, as many as asked."""
    return pick_top(torch.where(given.values, torch.inf, scores), sets, sizes)


def reveal_order(subsets: Sets, generator: torch.Generator) -> Tensor:
    """Return a random place of each item of a subset among its items, from 0; items outside get later places."""
    keys = torch.rand(subsets.layout.total, generator=generator, dtype=torch.float64)
    return segment_rank(torch.where(subsets.values, keys, -1.0), subsets)


def co_occurrence(task: Task, seed: int) -> Score:
    """Score an item by how often it was chosen together with the given ones in training.

    For a pair that is the number of subsets with both, divided by the root of the numbers with each: the cosine of the
    columns of a table of subsets and items. Over the given items the mean counts. An item that was never chosen with
    any of them comes after the others, by popularity.
    """
    if task.train.item_ids is None:
        raise ValueError(f"co-occurrence needs ids of items, and the items of {task.name} have none")
    chosen = task.train.subsets.values.numpy()
    names, columns = np.unique(np.asarray(task.train.item_ids)[chosen], return_inverse=True)
    rows = task.train.sets.layout.ids.numpy()[chosen]
    counts = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(task.train), len(names)))
    pairs = (counts.T @ counts).tocsr()
    scale = 1 / np.sqrt(pairs.diagonal())
    cosines = pairs.multiply(scale[:, None]).multiply(scale[None, :]).tocsr()
    number_of = {name: number for number, name in enumerate(names.tolist())}
    popular = popularity(task, seed)

    def score(choices: Choices, given: Sets) -> Tensor:
        numbers = np.array([number_of.get(item, -1) for item in np.asarray(choices.item_ids).tolist()], dtype=np.int64)
        fallback = popular(choices)
        together = np.zeros(len(numbers))
        offsets = choices.sets.layout.host_offsets
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            known = np.flatnonzero(numbers[start:end] >= 0) + start
            shown = known[given.values.numpy()[known]]
            if len(shown):
                of_pairs = cosines[numbers[shown]][:, numbers[known]].sum(0)
                together[known] = of_pairs / int(given.values[start:end].sum())
        found = torch.from_numpy(together)
        # Popularity is a positive number; scaled, it is below every item that was seen with a given one.
        return torch.where(found > 0, 1 + found, fallback / (1 + fallback.max()) if len(fallback) else fallback)

    return score


def nearest(task: Task, seed: int) -> Score:
    """Score an item by its mean cosine with the given items; with all items of its set where none is given."""

    def score(choices: Choices, given: Sets) -> Tensor:
        units, ids = units_of(choices.sets), choices.sets.layout.ids
        shown = given.values.double()
        some = segment_sum(shown, choices.sets)[ids] > 0
        weights = torch.where(some, shown, 1.0)
        means = segment_sum(weights[:, None] * units, choices.sets) / segment_sum(weights, choices.sets)[:, None]
        return (units * means[ids]).sum(1)

    return score


def ignoring(name: str) -> Callable[[Task, int], Score]:
    """Return a baseline that scores items without a look at the given ones."""

    def fit(task: Task, seed: int) -> Score:
        score = BASELINES[name](task, seed)
        return lambda choices, given: score(choices)

    return fit


def informed_trees(task: Task, seed: int) -> Score:
    """Score an item by trees that also know how near it is to the given items.

    They learn from random parts of the training subsets: the given items are known, the others of the set are rows.
    """
    generator = torch.Generator().manual_seed(seed)
    train, validation = (_partial_rows(part, generator) for part in (task.train, task.validation))
    predict = Boosting().fit(train, validation, seed)
    return lambda choices, given: predict(_informed_features(choices.sets, given))


def _partial_rows(choices: Choices, generator: torch.Generator) -> Rows:
    sizes = segment_sum(choices.subsets.values.long(), choices.sets)
    parts = []
    for _ in range(_DRAWS):
        # From none to all but one, each number as likely.
        shown = (torch.rand(len(sizes), generator=generator, dtype=torch.float64) * sizes).long()
        order = reveal_order(choices.subsets, generator)
        given = choices.subsets.with_values(choices.subsets.values & (order < shown[choices.sets.layout.ids]))
        rest = ~given.values
        lengths = segment_sum(rest.long(), choices.sets).numpy()
        features = _informed_features(choices.sets, given)[rest.numpy()]
        parts.append((features, choices.subsets.values[rest].numpy(), lengths))
    features, labels, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Rows(features, labels, lengths)


def _informed_features(sets: Sets, given: Sets) -> np.ndarray:
    """Return the features of a set, then mean cosine and distances to the given items and their number.

    The distances are those from their mean and from the nearest of them. All are NaN where no item is given, which
    trees read as missing.
    """
    ids, shown = sets.layout.ids, given.values.double()
    values, units = sets.values.flatten(1).double(), units_of(sets)
    count = segment_sum(shown, sets)[:, None]
    mean_unit, mean_item = (segment_sum(shown[:, None] * x, sets) / count for x in (units, values))
    padded, mask = sets.with_values(values).padded()
    hidden = ~given.padded()[0]
    distances = torch.cdist(padded, padded).masked_fill(hidden[:, None, :], torch.inf).amin(2)[mask]
    columns = [
        (units * mean_unit[ids]).sum(1),
        (values - mean_item[ids]).norm(dim=1),
        torch.where(distances.isinf(), torch.nan, distances),
        count[ids, 0],
    ]
    return np.concatenate([group_features(sets), torch.stack(columns, 1).float().numpy()], 1)


def by_scores(fit: Callable[[Task, int], Score]) -> Callable[[Task, int], Complete]:
    """Return the rival that takes the given items and those with the best scores."""

    def fitted(task: Task, seed: int) -> Complete:
        score = fit(task, seed)
        return lambda choices, sizes, given: complete(score(choices, given), choices.sets, sizes, given)

    return fitted


def alike(task: Task, seed: int) -> Complete:
    """Return the most alike subset that contains the given items."""
    return lambda choices, sizes, given: most_alike(torch.empty(0), choices.sets, sizes, given)


RIVALS: dict[str, Callable[[Task, int], Complete]] = {
    "co-occurrence": by_scores(co_occurrence),
    "nearest": by_scores(nearest),
    "alike": alike,
    "lightgbm": by_scores(ignoring("lightgbm")),
    "lightgbm-given": by_scores(informed_trees),
    "chance": by_scores(ignoring("chance")),
}
# Rivals that are for some families only, because items have ids, and where sets are small.
_FAMILIES: dict[str, tuple[str, ...]] = {"co-occurrence": ("amazon", "bundles"), "alike": ("bundles", "clusters")}


def is_rival_for(name: str, task: str) -> bool:
    """Return whether a rival can be used for a task."""
    if name in _FAMILIES:
        return task.partition(":")[0] in _FAMILIES[name]
    return applies("lightgbm" if name == "lightgbm-given" else name, task)

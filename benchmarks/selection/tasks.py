"""The tasks of the tables: names, splits, expected work, and a cache for each worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from benchmarks.selection.published import AMAZON_PAIRS
from setgrad import datasets
from setgrad.datasets import Task
from setgrad.errors import unknown_name
from setgrad.sets import Choices, Sets

SPLITS = ("folds", "published")
# The protocol of the grid: the published test split, and folds of the rest.
HELD_OUT = "held-out"
FOLDS = 5
# Families that can be cut into folds of sets. The splits of the others also keep images, people or customers separate,
# which folds would not: they are drawn again for each seed or, where the split was published, fitted with many seeds.
FOLDED = ("gaussian", "moons", "amazon", "compounds")
DRAWN = ("digits", "clusters", "anomaly", "bundles")

# The suffix of tasks whose images are plain vectors of pixels.
PIXELS = ":pixels"
_IMAGE_FAMILIES = ("anomaly", "celeba")

# Sets for training on the published split, and the work of one set relative to 30 vectors: only to start long fits
# first.
_WORK = {
    "gaussian": (1000, 2.0),
    "moons": (1000, 2.0),
    "digits": (1000, 0.7),
    "clusters": (1000, 0.4),
    "anomaly": (6000, 2.0),
    "celeba": (10000, 5.0),
    "bundles": (730, 0.4),
    "compounds": (1000, 40.0),
    "bindingdb": (1000, 40.0),
}
_QUICK_SETS = 24


def expand(wanted: Sequence[str], categories: Sequence[str], protocols: Sequence[str]) -> list[str]:
    """Return full task names: a family stands for its tasks, for Amazon those of these categories and protocols.

    Examples:
        >>> expand(["compounds", "amazon:toys"], ["toys"], ["random"])
        ['compounds:davis:diverse', 'compounds:kiba:diverse', 'amazon:toys:random']
        >>> expand(["anomaly:mnist", "celeba:pixels"], [], [])
        ['anomaly:mnist', 'celeba:pixels']
    """
    named = datasets.task_names()
    known = [*named, *(name + PIXELS for name in named if name.partition(":")[0] in _IMAGE_FAMILIES)]
    names: list[str] = []
    for name in wanted:
        members = [name] if name in known else [k for k in known if k.startswith(f"{name}:")]
        if not members:
            raise unknown_name("task", name, datasets.LOADERS)
        if name not in known:
            # Without a protocol, compounds have the one of the published text.
            members = [k for k in members if not k.startswith("compounds:") or k.endswith(":diverse")]
            members = [k for k in members if not k.startswith("amazon:") or _is_selected(k, categories, protocols)]
        names += [k for k in members if k not in names]
    return names


def _is_selected(name: str, categories: Sequence[str], protocols: Sequence[str]) -> bool:
    _, category, protocol = name.split(":")
    return category in categories and protocol in protocols


def splits_of(task: str, wanted: str) -> str:
    """Return how a task is split: as wanted, where that is sound."""
    head = task.partition(":")[0]
    return wanted if head in FOLDED else "drawn" if head in DRAWN else "published"


def work_of(task: str) -> float:
    """Return a measure of the work of one pass over the training sets."""
    head, _, rest = task.partition(":")
    if head == "amazon":
        return AMAZON_PAIRS[rest.partition(":")[0]] / 3
    sets, each = _WORK[head]
    return sets * each


def load_split(name: str, *, splits: str, number: int, data_dir: str | None, quick: bool) -> Task:
    """Return the task of one fit: a fold, splits drawn with that seed, or the published split.

    There are five folds; number 5 is the first fold again, for a fit with other weights. "held-out" are folds that keep
    the published test split.
    """
    if splits in ("folds", HELD_OUT):
        return _fold(name, number % FOLDS, splits == HELD_OUT, data_dir, quick)
    return _load(name, number if splits == "drawn" else 0, data_dir, quick)


# All folds of a task, because a grid goes through them again and again.
@lru_cache(maxsize=FOLDS)
def _fold(name: str, number: int, keep_test: bool, data_dir: str | None, quick: bool) -> Task:
    return datasets.fold(_load(name, 0, data_dir, quick), number, FOLDS, keep_test=keep_test)


# Two, because tasks of pixels are built from tasks of images.
@lru_cache(maxsize=2)
def _load(name: str, seed: int, data_dir: str | None, quick: bool) -> Task:
    if name.endswith(PIXELS):
        task = _load(name.removesuffix(PIXELS), seed, data_dir, quick)
        return _with_parts(task, lambda part: Choices(_flat(part.sets), part.subsets, item_ids=part.item_ids))
    if quick and not name.startswith("compounds:"):
        few = _QUICK_SETS
        return datasets.load_task(name, random_state=seed, data_dir=data_dir, n_train=few, n_validation=few, n_test=few)
    task = datasets.load_task(name, random_state=seed, data_dir=data_dir)
    if not quick:
        return task
    # Cached compound tasks have the usual number of sets; other numbers would be built again.
    return _with_parts(task, lambda part: Choices(part.sets[:_QUICK_SETS], part.subsets[:_QUICK_SETS]))


def _with_parts(task: Task, change: Callable[[Choices], Choices]) -> Task:
    train, validation, test = (change(part) for part in (task.train, task.validation, task.test))
    return replace(task, train=train, validation=validation, test=test)


def _flat(sets: Sets) -> Sets:
    return sets.with_values(sets.values.flatten(1))

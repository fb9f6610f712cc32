"""Models that differ in how they are trained, for the benchmarks of completion and of the learned F."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import final

from benchmarks.lib.records import RunContext
from benchmarks.lib.trials import parse_names
from benchmarks.selection.fitted import fit_or_load
from benchmarks.selection.models import Options, cost_of, describe, options_of
from benchmarks.selection.tasks import expand, load_split, splits_of, work_of
from setgrad import SubsetSelector
from setgrad.datasets import AMAZON_CATEGORIES, Task

# The model of the tables, and what is changed. Eight members as on a GPU, or one as on a CPU.
VARIANTS: dict[str, tuple[str, Options]] = {
    "conditional": ("conditional", {}),
    "unrolled": ("unrolled", {}),
    "conditional-single": ("conditional-single", {}),
    "unrolled-single": ("unrolled-single", {}),
    "implicit": ("unrolled-single", {"method": "implicit"}),
    # The term for pairs compares items before any training. Each way of training with and without it tells what the
    # training adds.
    "conditional-no-pairs": ("conditional", {"pairs": False}),
    "conditional-single-no-pairs": ("conditional-single", {"pairs": False}),
    "unrolled-pairs": ("unrolled", {"pairs": True}),
}


def variant_options(name: str, task: str, *, quick: bool) -> Options:
    """Return all options of a variant on a task.

    Examples:
        >>> variant_options("implicit", "moons", quick=False)
        {'members': 1, 'method': 'implicit'}
    """
    model, changes = VARIANTS[name]
    return options_of(model, task, quick=quick, tuned=changes)


@final
@dataclass(frozen=True)
class Trial:
    """One fit. The seed is also the fold, or draws the split."""

    task: str
    model: str
    seed: int
    splits: str
    options: str
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task}, {self.model}, {'fold' if self.splits == 'folds' else 'seed'} {self.seed}"

    def load(self, context: RunContext) -> Task:
        """Return the data."""
        number, data_dir = self.seed, context.data_dir
        return load_split(self.task, splits=self.splits, number=number, data_dir=data_dir, quick=self.quick)

    def fit(self, task: Task, context: RunContext) -> SubsetSelector:
        """Return the variant, fitted to the data."""
        options = variant_options(self.model, self.task, quick=self.quick)
        return fit_or_load(task, options, f"{self.task}-{self.splits}", seed=self.seed, context=context)


def make_trial(task: str, model: str, seed: int, *, quick: bool) -> Trial:
    """Return the trial of a variant, or of a rival, on one fold or split."""
    options = describe(variant_options(model, task, quick=quick)) if model in VARIANTS else f"rival {model}"
    return Trial(task, model, seed, splits_of(task, "folds"), options, quick)


def plan_trials(
    options: argparse.Namespace,
    *,
    tasks: str,
    protocol: str,
    rivals: Collection[str] = (),
    applies: Callable[[str, str], bool] = lambda model, task: True,
) -> list[Trial]:
    """Return the trials of the options `tasks`, `models` and `seeds`, the longest first.

    Args:
        options: The options of the command line.
        tasks: Names of the tasks if the options have none.
        protocol: The protocol of Amazon.
        rivals: Names of models that are not variants.
        applies: Whether a model is for a task.
    """
    names = [name.strip() for name in (options.tasks or tasks).split(",") if name.strip()]
    trials = [
        make_trial(task, model, seed, quick=options.quick)
        for task in expand(names, AMAZON_CATEGORIES, [protocol])
        for model in parse_names(options.models, (*VARIANTS, *rivals), "model")
        for seed in range(min(options.seeds, 2) if options.quick else options.seeds)
        if applies(model, task)
    ]
    return sorted(trials, key=lambda trial: -work_of(trial.task) * _cost(trial.model))


def _cost(model: str) -> float:
    return cost_of(VARIANTS[model][0] if model in VARIANTS else model)

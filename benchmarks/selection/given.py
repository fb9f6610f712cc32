"""Completion: test scores by the number of items that are given, for our models and plain rivals.

Claims checked: training on partial subsets ("conditional") makes one model answer both questions: nothing is given, and
some items are. With one given item it is above mean field ("unrolled") on bundles and clusters by more than two
standard errors, and at or above the best plain rival. On clusters 1/3 is the limit without a given item, and nearly 100
is reached with one.

F may have a term for pairs of items, a cosine, which finds items like the given ones before any training.
"conditional-no-pairs" is without it, "unrolled-pairs" is mean field with it: a claim about the training must hold
without the term too.

From 0 to half of the items of each S* are given, drawn at random: the same for all methods, and those of a smaller
number are among those of a larger one. A column has the sets whose S* has at least twice as many items, so columns
differ in their sets and only methods may be compared. All return the true number of items, the given ones included.
"jaccard" is that of the whole subset. "found" is the share of the items of S* that were not given and are found.

Rivals: "co-occurrence" of items in training subsets (cosine; by popularity where items were never chosen together);
"nearest", the mean cosine of features with the given items; "alike", the most alike subset that contains the given
items, where sets have at most 15 items; "lightgbm", trees that are not told what is given; "lightgbm-given", trees that
are trained on partial subsets, with the distances to the given items among the features; and "chance".

Amazon has random other products and five folds; bundles and clusters are drawn again for each seed. Differences are
paired by fold or split. --quick is clusters alone.

Results: Test scores in percent, mean ± standard deviation over folds or splits, by the number of given items. "jaccard"
is that of the whole subset with the true size; "found" is the share of the items that were not given and are found.
Columns have different sets, so compare methods, not columns. "se" is the standard error of the paired difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.pages import Report
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import compare, summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, run_and_show
from benchmarks.selection.given_rivals import RIVALS, Complete, is_rival_for, reveal_order
from benchmarks.selection.scores import Values, averages, best_preset, values_of
from benchmarks.selection.tasks import FOLDS
from benchmarks.selection.variants import VARIANTS, Trial, plan_trials
from setgrad.datasets import Task
from setgrad.selector import jaccard
from setgrad.sets import Choices, subset_sizes

MODELS = ("unrolled", "conditional", "unrolled-pairs", "conditional-no-pairs", "implicit")
TASKS = "bundles,clusters,amazon"
SCORES = {
    "jaccard": "Jaccard of the whole subset, true size",
    "found": "share of the items not given that are found",
}
# Models that are compared with the best of others, and the name of these: with eight members, and with one.
_LEADS: tuple[tuple[str, str, Collection[str]], ...] = (
    ("conditional", "unrolled", ("unrolled",)),
    ("conditional", "best rival", RIVALS),
    ("conditional-single", "unrolled-single", ("unrolled-single",)),
    ("conditional-single", "best rival", RIVALS),
)
# Numbers of given items, as far as a test split has this many sets with at least twice as many chosen items.
NUMBERS = (0, 1, 2, 3, 4, 6, 8, 10)
_FEWEST_SETS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    models = (*MODELS, *RIVALS)
    parser.add_argument("--models", default=",".join(models), help=f"default: {', '.join(models)}")
    parser.add_argument("--tasks", help=f"names of tasks or families of vectors (default: {TASKS})")
    add_trial_options(parser, seeds=FOLDS, unit="fit", models=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    trials = plan_trials(
        options,
        tasks="clusters" if options.quick else TASKS,
        protocol="random",
        rivals=RIVALS,
        applies=lambda model, task: model not in RIVALS or is_rival_for(model, task),
    )
    return run_and_show(options, trials, attempt, REPORT)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test with every number of given items. Scores are percentages by that number."""
    task = trial.load(context)
    complete = RIVALS[trial.model](task, trial.seed) if trial.model in RIVALS else _fit(task, trial, context)
    scores = score_completion(complete, task.test, seed=trial.seed)
    shown = ", ".join(f"{value:.1f}" for value in list(scores["jaccard"].values())[:3])
    return {**scores, "summary": f"Jaccard with 0, 1, 2 given {shown}"}


def score_completion(complete: Complete, test: Choices, *, seed: int) -> dict[str, dict[str, float]]:
    """Return both scores in percent and the number of sets, by the number of given items as text."""
    order = reveal_order(test.subsets, torch.Generator().manual_seed(seed))
    sizes = torch.as_tensor(subset_sizes(test.subsets))
    scores: dict[str, dict[str, float]] = {"jaccard": {}, "found": {}, "sets": {}}
    for number in NUMBERS:
        rows = torch.nonzero((sizes >= 2 * number) & (sizes > 0))[:, 0]
        if number and len(rows) < _FEWEST_SETS:
            break
        part = take(test, rows)
        places = test.subsets.with_values(order).take(rows.numpy())
        given = part.subsets.with_values(part.subsets.values & (places.values < number))
        chosen = complete(part, sizes[rows], given)
        hidden = part.subsets.with_values(part.subsets.values & ~given.values)
        both = part.subsets.with_values(hidden.values & chosen.values)
        found = torch.as_tensor(subset_sizes(both)) / torch.as_tensor(subset_sizes(hidden))
        scores["jaccard"][str(number)] = 100 * float(jaccard(chosen, part.subsets).mean())
        scores["found"][str(number)] = 100 * float(found.double().mean())
        scores["sets"][str(number)] = len(rows)
    return scores


def take(choices: Choices, rows: torch.Tensor) -> Choices:
    """Return some of the sets, with the ids of their items."""
    indices = rows.numpy()
    items = choices.sets.with_values(torch.arange(choices.sets.layout.total)).take(indices).values
    ids = None if choices.item_ids is None else [choices.item_ids[item] for item in items.tolist()]
    return Choices(choices.sets.take(indices), choices.subsets.take(indices), item_ids=ids)


def show(records: Sequence[Record]) -> str:
    """Return a table for each score and task, with a row for each model, and the leads of ours with each number."""
    parts = []
    for score, meaning in SCORES.items():
        values = by_number(records, score)
        parts.append(f"## {meaning[0].upper()}{meaning[1:]}")
        fitted = {record["model"] for record in records}
        parts += [lead_table(values, *lead) for lead in _LEADS if lead[0] in fitted]
        parts += [f"### {task}\n\n{task_table(values, task)}" for task in tasks_of(values)]
    return "\n\n".join(parts)


def by_number(records: Sequence[Record], score: str) -> dict[int, Values]:
    """Return the values of a score by number of given items, then task, model and fold; with averages over Amazon."""
    values: dict[int, Values] = {}
    for number in NUMBERS:
        found = values_of([{**record, "value": record[score].get(str(number))} for record in records], "value")
        if found:
            values[number] = {**dict(sorted(found.items())), **averages(found)}
    return values


def tasks_of(values: dict[int, Values]) -> list[str]:
    """Return the tasks in the order of the page."""
    return list(values[0]) if values else []


def task_table(values: dict[int, Values], task: str) -> str:
    """Return the scores of one task, by model and number of given items."""
    numbers = [number for number in values if task in values[number]]
    models = [model for model in (*VARIANTS, *RIVALS) if model in values[0][task]]
    rows = []
    for model in models:
        fits = [values[number][task].get(model, {}) for number in numbers]
        rows.append([model, *(str(summarise(list(fit.values()))) if fit else "-" for fit in fits)])
    return table(["given", *map(str, numbers)], rows)


def lead_table(values: dict[int, Values], model: str, name: str, others: Collection[str]) -> str:
    """Return how far a model is above the best of the others, by task and number of given items."""
    numbers = list(values)
    rows = []
    for task in tasks_of(values):
        cells = []
        for number in numbers:
            row = values[number].get(task, {})
            ours = row.get(model, {})
            best = best_preset({m: fits for m, fits in row.items() if fits.keys() & ours.keys()}, among=others)
            by = "" if len(others) == 1 else f" ({best})"
            cells.append("-" if best is None else f"{compare(ours, row[best], paired=True)}{by}")
        rows.append([task, *cells])
    return table([f"{model} - {name}; given", *map(str, numbers)], rows)


def draw_figure(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw the Jaccard score by number of given items, a panel for each task; Amazon as means of categories."""
    values = by_number(records, "jaccard")
    every = tasks_of(values)
    means = [task for task in every if task.startswith("mean of ")]
    tasks = [task for task in every if not (means and task.startswith("amazon:"))]
    columns = min(3, max(1, len(tasks)))
    lines = -(-len(tasks) // columns)
    figure = new_figure(4.2 * columns, 3.4 * max(1, lines))
    for panel, task in enumerate(tasks):
        axes = figure.add_subplot(lines, columns, panel + 1)
        axes.set_xticks([number for number in values if task in values[number]])
        for place, model in enumerate((*VARIANTS, *RIVALS)):
            points = [
                (n, summarise(list(fits.values()))) for n in values if (fits := values[n].get(task, {}).get(model))
            ]
            if not points:
                continue
            axes.errorbar(
                [number for number, _ in points],
                [summary.mean for _, summary in points],
                [0.0 if summary.count < 2 else summary.error for _, summary in points],
                fmt="o-" if model in VARIANTS else "s--",
                label=model,
                # The same colour in all panels. There are ten; the line tells models of ours from rivals.
                color=f"C{place % 10}",
            )
        axes.set_title(task)
        axes.set_xlabel("items given")
        axes.set_ylabel("test Jaccard (%)")
        axes.legend(fontsize=7)
    return save_figure(figure, page.with_suffix(".png"))


def _fit(task: Task, trial: Trial, context: RunContext) -> Complete:
    selector = trial.fit(task, context)
    return lambda choices, sizes, given: selector.predict(choices.sets, size=sizes.tolist(), given=given)


REPORT = Report.of_module(
    __doc__, "Completion: some items are given", show, "given --data-dir DATA --device cuda --jobs 15", draw_figure
)

"""What matters in the default selector: the default without one thing at a time, on four Amazon categories.

All have one member, as the default has on a CPU, except "four members" and "eight members"; eight is the default on a
GPU.

Claims checked: every part of the default earns its place: no variant that lacks or changes one thing has a higher test
score by more than two standard errors, on average over the categories. And how much each part is worth.

Each variant is the default with one option changed (column "instead"):
- in F: "no context" (a perceptron on each item, which also has no modular term), "one layer" of attention, "smaller
  rho", "no skip" (F without the linear score of each item), "relation" and "no relation" (F with and without the
  bilinear score of each item and the mean of its set, which the default has in small categories), "direct" (no set
  function: a logit for each item, after the same attention), "related direct" (that and the bilinear score);
- in training: "negatives" (cross-entropy over S* and as many other items), "no averaging" of weights, "no decay",
  "raw features", "one sample" (in training; prediction draws 20 as the default does), "patience 6", "rate 1e-4";
- in inference: "one-step of 5" (five mean-field steps, only the last one differentiated, which is all that Bernoulli
  samples allow; a single step would be the default itself), "gaussian" (masks instead of Bernoulli samples),
  "implicit" (converged and differentiated by the implicit function theorem; that needs Gaussian masks, and logits
  scaled by l2);
- "transfer": weights and scale of the features come from a default that was fitted on the same fold of the largest
  other category (feeding; diaper for feeding itself), which shares no products with it.

Folds are those of `table2` (protocol "farthest"): fold k is the same for all variants, and k is the seed. Cells are
test Jaccard with the true size, in percent: mean ± standard deviation over folds; then the mean difference from the
default, by fold, with its standard error in brackets. "mean" averages the differences over the categories. The variants
are not tuned: another learning rate might help one of them. With fifteen variants and more, one at two standard errors
is no surprise, and with two folds an error is hardly known: no verdict is printed then.

Results: Test Jaccard with the true size in percent, mean ± standard deviation over folds of Amazon categories;
differences from the default are paired by fold, with standard errors in brackets. All have one member unless the name
says otherwise. The variants are not tuned.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record
from benchmarks.lib.summary import Summary, mean_cell, paired_differences, summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.ablation_fit import (
    CONTENDERS,
    DEFAULT,
    TRANSFER,
    Trial,
    attempt,
    changes_of,
    make_trial,
    task_of,
)
from benchmarks.selection.scores import values_of
from benchmarks.selection.tasks import FOLDS, work_of
from setgrad.datasets import AMAZON_CATEGORIES
from setgrad.errors import OptionError

CATEGORIES = ("toys", "media", "safety", "furniture")
# Differences beyond this many standard errors are listed, if each error has at least this many folds: with two folds,
# 2 standard errors are reached by chance in three cases of ten.
_BEYOND, _FEWEST = 2.0, 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--categories", help=f"of Amazon (default: {', '.join(CATEGORIES)})")
    parser.add_argument("--models", default=",".join(CONTENDERS), help=f"default: all: {', '.join(CONTENDERS)}")
    add_trial_options(parser, seeds=FOLDS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    folders = {"amazon_baby_registry": "the Amazon registries"}
    return run_and_show(options, plan(options), attempt, REPORT, folders=folders)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials, the longest first; trials that start from the same weights follow each other."""
    if options.seeds > FOLDS:
        raise OptionError(f"there are {FOLDS} folds, not {options.seeds}; use at most --seeds {FOLDS}")
    usual = CATEGORIES[-1:] if options.quick else CATEGORIES
    categories = parse_names(options.categories or ",".join(usual), AMAZON_CATEGORIES, "category")
    trials = [
        make_trial(category, model, seed, quick=options.quick)
        for category in categories
        for model in parse_names(options.models, CONTENDERS, "model")
        for seed in range(min(options.seeds, 2) if options.quick else options.seeds)
    ]
    return sorted(
        trials, key=lambda trial: (-work_of(trial.start or trial.task), not trial.start, trial.start, trial.seed)
    )


def differences(row: Mapping[str, Mapping[int, float]], model: str) -> Summary | None:
    """Return how far a model is above the default in one category, by fold; None if no fold has both."""
    gaps = paired_differences(row.get(model, {}), row.get(DEFAULT, {}))
    return summarise(gaps) if gaps else None


def mean_difference(values: Mapping[str, Mapping[str, Mapping[int, float]]], model: str) -> tuple[float, float] | None:
    """Return the mean over categories of the difference from the default, and its standard error (NaN if unknown).

    Examples:
        >>> row = {"default": {0: 5.0, 1: 6.0}, "direct": {0: 4.0, 1: 3.0}}
        >>> mean_difference({"toys": row, "media": row}, "direct")
        (-2.0, 0.7071067811865476)
    """
    gaps = [gap for row in values.values() if (gap := differences(row, model)) is not None]
    if not gaps:
        return None
    # Folds of different categories have nothing in common, so their errors are independent.
    error = math.sqrt(sum(gap.error**2 for gap in gaps)) / len(gaps)
    return statistics.fmean(gap.mean for gap in gaps), error


def show(records: Sequence[Record]) -> str:
    """Return the table, with the default first and then the largest losses, and the verdict on the claim."""
    values = values_of(records, "true_size")
    tasks = [task for task in map(task_of, AMAZON_CATEGORIES) if task in values]
    present = [model for model in CONTENDERS if any(model in values[task] for task in tasks)]
    means = {model: mean_difference(values, model) for model in present}
    rows = []
    for model in sorted(present, key=lambda model: _rank(model, means[model])):
        cells = [cell for task in tasks for cell in _cells(values[task], model)]
        total = means[model] if model != DEFAULT else None
        rows.append([model, changes_of(model), *cells, _signed(*total) if total is not None else "-"])
    heads = [head for task in tasks for head in (task.split(":")[1], "difference")]
    text = table(["", "instead", *heads, "mean"], rows)
    starts = sorted({f"{record['task']} from {record['start']}" for record in records if record["start"]})
    notes = [f"{TRANSFER}: {', '.join(starts)}"] if starts else []
    steady = {model: gap for model, gap in means.items() if _folds(values, model) >= _FEWEST}
    return "\n".join([text, "", *(f"- {line}" for line in [*notes, *verdicts(steady)])]).rstrip()


def verdicts(means: Mapping[str, tuple[float, float] | None]) -> list[str]:
    """Return sentences that list the models beyond noise; none where no error is known."""
    known = {m: gap for m, gap in means.items() if m != DEFAULT and gap is not None and not math.isnan(gap[1])}
    if not known:
        return []
    worse = sorted((m for m, (points, error) in known.items() if points < -_BEYOND * error), key=lambda m: known[m])
    better = [m for m, (points, error) in known.items() if points > _BEYOND * error]
    return [
        f"{word} than the default by more than {_BEYOND:g} standard errors: {', '.join(names) or 'none'}"
        for word, names in (("worse", worse), ("better", better))
    ]


def _rank(model: str, gap: tuple[float, float] | None) -> tuple[bool, bool, float]:
    return model != DEFAULT, gap is None, 0.0 if gap is None else gap[0]


def _folds(values: Mapping[str, Mapping[str, Mapping[int, float]]], model: str) -> int:
    """Return the fewest folds that a difference of this model has."""
    return min((gap.count for row in values.values() if (gap := differences(row, model)) is not None), default=0)


def _cells(row: Mapping[str, Mapping[int, float]], model: str) -> tuple[str, str]:
    gap = differences(row, model) if model != DEFAULT else None
    return mean_cell(list(row.get(model, {}).values()), ".1f"), "-" if gap is None else _signed(gap.mean, gap.error)


def _signed(points: float, error: float) -> str:
    return f"{points:+.1f}" + ("" if math.isnan(error) else f" ({error:.1f})")


REPORT = Report.of_module(
    __doc__, "What matters in the default", show, "ablation --data-dir DATA --device cuda --jobs 15"
)

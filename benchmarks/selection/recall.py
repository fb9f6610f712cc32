"""The promise of `predict(recall=...)`: the recall on new sets, over many random splits.

Claims checked: the mean recall is at least what was asked for, and not above it by more than 2 / (n + 1) on average,
where n is the number of calibration sets and no two logits are equal.

A selector is fitted once for each task and fold. Its test sets, which it has not seen, are split 200 times into two
random halves: one calibrates (`calibrate_recall`), and the recall of `predict(recall=...)` is measured on the other.

Results: Over random splits of the test sets into calibration and evaluation sets: the mean recall ± its standard
deviation over the splits, in percent, the share of the items of a set that are chosen, and how many calibration sets
there were. The promise is about the mean; a single split may be below.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, run_and_show
from benchmarks.selection.variants import Trial, plan_trials
from setgrad import SubsetSelector
from setgrad.sets import Choices, segment_sum

MODELS = ("unrolled-single", "conditional-single")
TASKS = "digits,amazon:toys,amazon:safety"
NOMINAL = (0.8, 0.9, 0.95)
SPLITS = 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--tasks", help=f"names of tasks or families (default: {TASKS})")
    add_trial_options(parser, seeds=1, unit="fit", models=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    trials = plan_trials(options, tasks="moons" if options.quick else TASKS, protocol="farthest")
    return run_and_show(options, trials, attempt, REPORT)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit, and measure the recall over random splits of the test sets."""
    task = trial.load(context)
    selector = trial.fit(task, context)
    # A few sets can promise little.
    nominals, splits = (NOMINAL[:1], 10) if trial.quick else (NOMINAL, SPLITS)
    found = measure_recall(selector, task.test, nominals=nominals, splits=splits, seed=trial.seed)
    summary = ", ".join(f"{nominal}: {mean:.1f}" for nominal, (mean, _) in found["recall"].items())
    return {**found, "summary": summary}


def measure_recall(
    selector: SubsetSelector, choices: Choices, *, nominals: Sequence[float], splits: int, seed: int
) -> dict[str, Any]:
    """Return mean and deviation of the recall and of the share of chosen items for each nominal recall, in percent."""
    scores = selector.decision_function(choices.sets)
    generator = np.random.default_rng(seed)
    recalls: dict[float, list[float]] = {nominal: [] for nominal in nominals}
    shares: dict[float, list[float]] = {nominal: [] for nominal in nominals}
    half = len(choices) // 2
    for _ in range(splits):
        order = generator.permutation(len(choices))
        first, second = order[:half], order[half:]
        parts = [(choices.sets.take(part), choices.subsets.take(part), scores.take(part)) for part in (first, second)]
        (sets, subsets, known), (new_sets, truth, new_scores) = parts
        selector.calibrate_recall(sets, subsets, scores=known)
        for nominal in nominals:
            picks = selector.predict(new_sets, recall=nominal, scores=new_scores)
            sizes = segment_sum(truth.values.double(), truth)
            hits = segment_sum((picks.values & truth.values).double(), truth)
            # Nothing to recall is recalled.
            recall = (hits / sizes.clamp(min=1)).where(sizes > 0, 1.0)
            recalls[nominal].append(100 * float(recall.mean()))
            shares[nominal].append(100 * float(picks.values.double().mean()))
    return {
        "calibration_sets": half,
        "recall": {str(n): (float(np.mean(v)), float(np.std(v))) for n, v in recalls.items()},
        "share": {str(n): float(np.mean(v)) for n, v in shares.items()},
    }


def show(records: Sequence[Record]) -> str:
    """Return the table of recalls."""
    rows: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        rows.setdefault((record["task"], record["model"]), []).append(record)
    cells = []
    for (task, model), found in sorted(rows.items()):
        row = [task, model, str(found[0]["calibration_sets"])]
        for nominal in map(str, NOMINAL):
            recalls = [record["recall"][nominal] for record in found if nominal in record["recall"]]
            if not recalls:
                row.append("-")
                continue
            mean, deviation = (statistics.fmean(numbers) for numbers in zip(*recalls, strict=True))
            share = statistics.fmean(record["share"][nominal] for record in found)
            row.append(f"{mean:.1f} ± {deviation:.1f} ({share:.0f} % of the items)")
        cells.append(row)
    return table(["task", "model", "calibration sets", *(f"recall={nominal:g}" for nominal in NOMINAL)], cells)


REPORT = Report.of_module(
    __doc__, "Recall that was promised, and found", show, "recall --data-dir DATA --device cuda --jobs 4"
)

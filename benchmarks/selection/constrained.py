"""Training through a budget: Fenchel-Young, Identity, IMLE and AIMLE, and training that does not know the budget.

Claims checked: a selector that is trained under the constraint of the examples chooses better under that constraint
than one that is not; and where a loss of the choice itself (Hamming, Jaccard, regret) helps over Fenchel-Young.

Two tasks. "baskets": 30 Amazon products (media), of which a customer registered some; every product has a random price
of 1 to 9 coins, which is a feature too, and S* has as many registered products as 12 coins buy, the cheapest of them.
Five folds of the sets. "energy": 48 half-hours of a day, with weights and values; S* is the most valuable subset within
a budget of 60. The last 237 days are the test, and each seed holds out another fifth of the 552 days before for
validation.

All selectors have the same options, batches and seeds; only the loss differs: `none` is the cross-entropy of every
item, `fenchel-young` is fit(constraint=...), and the others name gradient= and choice_loss=. `none` chooses items above
probability 1/2 within the budget; `none, threshold` takes the threshold with the best validation score instead. The
best epoch is that with the best validation Jaccard, for regret too. Cells: test Jaccard in percent, or regret (worth
that was lost, in percent of the worth of S*), mean ± standard deviation over splits; then the difference from
fenchel-young, paired by split, with its standard error in brackets. Nothing was tuned on these tasks; samples of the
noise: 5.

Results: Mean ± standard deviation over five splits; differences from fenchel-young are paired by split, with standard
errors in brackets. Regret is in percent of the worth of S*; it can exceed 100 on baskets, where a product that is not
registered is worth -1. Cross-entropy that ignores the budget, with a threshold tuned on validation sets, has the
Jaccard score of Fenchel-Young on baskets and a higher one on energy, so the claim fails for that score. But it loses
far more worth on baskets; on energy the difference is within two standard errors. The regret as loss loses least: with
Identity on baskets, with IMLE, AIMLE or Identity on energy. The Jaccard loss raises the Jaccard score on energy with
IMLE and AIMLE, and lowers it on baskets with all three. The Hamming loss helps nowhere. AIMLE is nowhere clearly better
than IMLE with the same loss, and with the Hamming and the Jaccard loss worse on baskets. Training is short (20 epochs
of a small network), nothing was tuned on these tasks, and of 44 differences two or three at two standard errors are no
surprise.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import mean_cell, paired_differences, summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.constrained_tasks import TASKS, BudgetTask, Part
from benchmarks.selection.models import describe
from setgrad import SubsetSelector
from setgrad.selector import Regret, jaccard
from setgrad.sets import Sets

NONE, TUNED, BASE = "none", "none, threshold", "fenchel-young"
ESTIMATORS, LOSSES = ("identity", "imle", "aimle"), ("hamming", "jaccard", "regret")
METHODS = (NONE, TUNED, BASE, *(f"{name}, {loss}" for loss in LOSSES for name in ESTIMATORS))
SCORES = {"jaccard": "Jaccard", "regret": "regret"}
# Small, so that the whole table takes a quarter of an hour on one core.
_OPTIONS: dict[str, Any] = {
    "dim": 32,
    "layers": 1,
    "hidden": (64,),
    "members": 1,
    "max_epochs": 20,
    "learning_rate": 2e-3,
}
_QUICK: dict[str, Any] = {"dim": 16, "hidden": (16,), "max_epochs": 2}
_THRESHOLDS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)


@final
@dataclass(frozen=True)
class Trial:
    """One fit on one split. `options` has all options of the selector, so records of other options do not count."""

    task: str
    method: str
    seed: int
    options: str
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task}, {self.method}, split {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"default: {', '.join(TASKS)}")
    parser.add_argument("--gradients", help="none, fenchel-young, identity, imle, aimle (default: all)")
    add_trial_options(parser, seeds=5)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    folders = {"amazon_baby_registry": "the Amazon registries", "knapsack_energy": "the prices of energy"}
    wanted = parse_names(options.tasks, TASKS, "task")
    needed = dict(item for task, item in zip(TASKS, folders.items(), strict=True) if task in wanted)
    return run_and_show(options, plan(options), attempt, REPORT, folders=needed)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials, one split after the other."""
    kinds = (NONE, BASE, *ESTIMATORS)
    wanted = parse_names(options.gradients or ",".join(kinds), kinds, "gradient")
    settings = describe(_selector_options(options.quick))
    return [
        Trial(task, method, seed, settings, options.quick)
        for seed in range(min(options.seeds, 2) if options.quick else options.seeds)
        for task in parse_names(options.tasks, TASKS, "task")
        for method in METHODS
        if method.partition(",")[0] in wanted
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test. Scores are percentages."""
    task = TASKS[trial.task](trial.seed, context.data_dir, trial.quick)
    options = {**_selector_options(trial.quick), "random_state": trial.seed, "device": context.device, "verbose": 0}
    selector = SubsetSelector(**options)
    train, held = task.train, task.validation
    if trial.method in (NONE, TUNED):
        selector.fit(*train.choices, validation=tuple(held.choices))
    else:
        gradient, _, loss = trial.method.partition(", ")
        selector.fit(
            *train.choices,
            validation=(*held.choices, held.budget),
            constraint=train.budget,
            gradient=gradient,
            choice_loss=Regret(train.worth) if loss == "regret" else loss or None,
        )
    threshold = best_threshold(selector, held) if trial.method == TUNED else 0.5
    scores = measure(selector.predict(task.test.choices.sets, constraint=task.test.budget, threshold=threshold), task)
    return {
        **scores,
        "threshold": threshold,
        "best_epoch": selector.best_epoch_,
        "epochs": len(selector.history_),
        "summary": f"Jaccard {scores['jaccard']:.2f}, regret {scores['regret']:.2f}",
    }


def best_threshold(selector: SubsetSelector, held: Part) -> float:
    """Return the threshold with the best validation score; of equals the largest."""
    sets, subsets = held.choices
    scores = selector.decision_function(sets)
    found = {
        threshold: float(
            jaccard(selector.predict(sets, constraint=held.budget, threshold=threshold, scores=scores), subsets).mean()
        )
        for threshold in _THRESHOLDS
    }
    return max(_THRESHOLDS, key=lambda threshold: (found[threshold], threshold))


def measure(picks: Sets, task: BudgetTask) -> dict[str, float]:
    """Return the mean Jaccard score of the test sets, and the worth that was lost of all of them together."""
    truth, worth = task.test.choices.subsets, task.test.worth.values.double()
    best, got = (float(worth[mask.values].sum()) for mask in (truth, picks))
    return {"jaccard": 100 * float(jaccard(picks, truth).mean()), "regret": 100 * (best - got) / best}


def show(records: Sequence[Record]) -> str:
    """Return a table for each score: a row for each method, and the task and its difference as columns."""
    return "\n\n".join(_show_score(records, key, name) for key, name in SCORES.items())


def _show_score(records: Sequence[Record], key: str, name: str) -> str:
    tasks = [task for task in TASKS if any(record["task"] == task for record in records)]
    values = {
        (task, method): {r["seed"]: r[key] for r in records if (r["task"], r["method"]) == (task, method)}
        for task in tasks
        for method in METHODS
    }
    rows = []
    for method in METHODS:
        if any(values[task, method] for task in tasks):
            cells = [cell for task in tasks for cell in _cells(values[task, method], values[task, BASE])]
            rows.append([method, *cells, str(max(len(values[task, method]) for task in tasks))])
    heads = [head for task in tasks for head in (f"{task}: {name}", "difference")]
    return table(["", *heads, "runs"], rows)


def _cells(values: Mapping[int, float], base: Mapping[int, float]) -> tuple[str, str]:
    gaps = paired_differences(values, base)
    if not gaps or values is base:
        return mean_cell(list(values.values()), ".1f"), "-"
    gap = summarise(gaps)
    return mean_cell(list(values.values()), ".1f"), f"{gap.mean:+.1f}" + (
        f" ({gap.error:.1f})" if gap.count > 1 else ""
    )


def _selector_options(quick: bool) -> dict[str, Any]:
    return {**_OPTIONS, **(_QUICK if quick else {})}


REPORT = Report.of_module(
    __doc__,
    "Training through a budget",
    show,
    "constrained-training --data-dir DATA --device cpu",
)

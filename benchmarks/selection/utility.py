"""Is the learned F a utility: does search on F find S*, and does S* have a larger F than its neighbours?

Claims checked: trained on partial subsets ("conditional") or on converged mean field ("implicit"), F is a utility: with
the true size, greedy and local search on F are within one point of `predict`, and S* has a larger F than nearly all
subsets that differ by one exchanged item. Trained by one step from probabilities of 1/2 ("unrolled"), it is not: search
is far below `predict` on Moons and Amazon.

"predict" is test Jaccard with the true size; "greedy", "local" and "completion" are the same with that `search`. "own
size" is that of `predict` without a size. "swaps" is the share of exchanges of one item of S* for one outside for which
F(S*) is larger, and "best" the share of sets in which it is larger for all of them; both are over the first 300 test
sets, and sets without an exchange do not count.

"conditional" and "unrolled" have eight members, as on a GPU, the others one. Moons, Gaussian and Amazon (farthest) are
cut into five folds; digits are drawn again for each seed. --tasks amazon is all categories.

Results: Test scores in percent, mean ± standard deviation over folds or splits. predict: Jaccard with the
true size, by the scores of the items. greedy, local, completion: the same by search on F. own size: Jaccard of
`predict` alone. swaps: share of exchanges of one chosen item for another one that lower F. best: share of sets in which
all of them do. "se" is the standard error of the difference between search and `predict`, by fold or split.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import compare, summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, run_and_show
from benchmarks.selection.scores import values_of
from benchmarks.selection.tasks import FOLDS
from benchmarks.selection.variants import VARIANTS, Trial, plan_trials
from setgrad import SubsetSelector
from setgrad.functions import SetFunction
from setgrad.selector import jaccard
from setgrad.selector.search import SEARCHES
from setgrad.sets import Choices, segment_rank, segment_sum, subset_sizes

MODELS = ("conditional", "unrolled", "conditional-single", "unrolled-single", "implicit")
TASKS = "moons,gaussian,digits,amazon:toys,amazon:gear,amazon:safety"
COLUMNS = {"true_size": "predict", **{name: name for name in SEARCHES}, "own_size": "own size"}
COLUMNS |= {"swaps": "swaps", "best": "best"}
# Test sets whose exchanges are tried, and how many of them at once.
_SWAP_SETS, _AT_ONCE = 300, 32


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--tasks", help=f"names of tasks or families (default: {TASKS})")
    add_trial_options(parser, seeds=FOLDS, unit="fit", models=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    trials = plan_trials(options, tasks="moons" if options.quick else TASKS, protocol="farthest")
    return run_and_show(options, trials, attempt, REPORT)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test. Scores are percentages."""
    task = trial.load(context)
    selector = trial.fit(task, context)
    scores = score_utility(selector, task.test)
    return {**scores, "summary": ", ".join(f"{name} {scores[key]:.1f}" for key, name in COLUMNS.items())}


def score_utility(selector: SubsetSelector, test: Choices) -> dict[str, float]:
    """Return all scores of a fitted selector, in percent."""
    sizes = subset_sizes(test.subsets).tolist()

    def percent(**request: Any) -> float:
        return 100 * float(jaccard(selector.predict(test.sets, **request), test.subsets).mean())

    return {
        "true_size": percent(size=sizes),
        **{search: percent(size=sizes, search=search) for search in SEARCHES},
        "own_size": percent(),
        **score_swaps(selector.function_, Choices(test.sets[:_SWAP_SETS], test.subsets[:_SWAP_SETS])),
    }


@torch.no_grad()
def score_swaps(function: SetFunction, choices: Choices) -> dict[str, float]:
    """Return the share of exchanges that lower F, and of sets in which all of them do, in percent.

    Sets without an exchange, because nothing or everything is chosen, do not count; NaN if there is no other set.
    """
    lower, tried = [], []
    for start in range(0, len(choices), _AT_ONCE):
        sets, subsets = (part[start : start + _AT_ONCE] for part in choices)
        # In double precision, as in `predict`: the differences may be small.
        bound = function.bind(sets.with_values(sets.values.double()))
        chosen = subsets.values.to(bound.sets.device)
        layout = bound.sets.layout
        # Row m is S* without its item number m; sets with fewer items repeat S*, and do not count there.
        place = segment_rank(chosen.double(), bound.sets)
        rows = torch.arange(int(subset_sizes(subsets).max()), device=layout.device)[:, None]
        masks = chosen & (place != rows)
        removed = (segment_sum(chosen.long(), bound.sets) > rows)[:, layout.ids]
        after = bound.value(masks)[:, layout.ids] + bound.gains(masks)
        before = bound.value(chosen[None])[:, layout.ids]
        counts = removed & ~chosen
        lower.append(segment_sum((counts & (after < before)).sum(0), bound.sets))
        tried.append(segment_sum(counts.sum(0), bound.sets))
    won, all_of = torch.cat(lower).double().cpu(), torch.cat(tried).double().cpu()
    won, all_of = won[all_of > 0], all_of[all_of > 0]
    return {"swaps": 100 * float(won.sum() / all_of.sum()), "best": 100 * float((won == all_of).double().mean())}


def show(records: Sequence[Record]) -> str:
    """Return a table with a row for each task and model; the last columns compare search with `predict`."""
    values = {column: values_of(records, column) for column in COLUMNS}
    rows = []
    for task in sorted(values["true_size"]):
        for model in VARIANTS:
            if model not in values["true_size"][task]:
                continue
            fits = {column: values[column][task][model] for column in COLUMNS}
            gaps = [str(compare(fits[search], fits["true_size"], paired=True)) for search in SEARCHES]
            rows.append([f"{task}, {model}", *(str(summarise(list(fits[c].values()))) for c in COLUMNS), *gaps])
    return table(["task, model", *COLUMNS.values(), *(f"{search} - predict" for search in SEARCHES)], rows)


REPORT = Report.of_module(
    __doc__, "Is the learned function a utility?", show, "utility --data-dir DATA --device cuda --jobs 15"
)

"""Mixed tables of a shop: the default on the table as it is, against boosted trees and logistic regression.

Claims checked: on a table as people have it - brands, categories, titles, dates, gaps, session facts - the default is
ahead of boosted trees on the same columns, and of logistic regression with set means, with the true size and with its
own, and not behind trees with context features that were made by hand for these tables.

240 generated sessions of 10 to 60 products from a catalogue of 400, of which 1 to 6 were bought; a fifth of them is
held out for validation. 200 other sessions are the test. Everything is drawn again for each seed. Three generators, so
that nothing is tuned to one: in "intent" a session wants a category, a colour or a brand at a price level; in "bargain"
a low price within the category and many stars; in "taste" brands of a style that device and day suggest, in a colour.
The intent is hidden. It shows in what is offered more often than usual, and in what was bought together.

"default" is `SubsetSelector()` on the data frame. "one-hot" is the same on numbers that were made by hand: one column
for each brand, category and colour, parts of dates, a flag for gaps. "numbers" has the numeric columns alone.

Rivals have the same sessions. "lightgbm" and "catboost" have the columns as they are, without ids; CatBoost reads the
title as text, and LightGBM, which cannot, has none. "-context" adds features by hand: colour of the title, parts of
dates, ranks, z-scores and distances to the best within the session, the share of the item's category, brand and colour
among the offered, and the ranks of price and stars among these. "lightgbm-ranker" has the same and learns the order.
LightGBM is the best of four settings by validation, CatBoost of two, logistic regression of three. "logistic" has the
one-hot columns, their means over the session and the products of both. "popularity" counts products. "oracle" knows the
worth of every item, but not the noise: the limit. Own sizes of rivals come from the same rules, fitted on their
validation sessions, as those of the default.

Results: Test Jaccard in percent, mean ± standard error over seeds. "ahead" is how far the default is above the row, and
"se" the standard error of that difference, paired by seed. "fit" and "predict" are seconds for 240 sessions to fit on,
validation and choice of settings included, and for 200 to choose from, each with one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import compare, summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.models import describe
from benchmarks.selection.scores import SCORES
from benchmarks.tables.methods import DEFAULT, METHODS, OURS, fit_method, score_method, true_sizes
from benchmarks.tables.shop import VARIANTS, draw_shop
from benchmarks.tables.trial import Trial, options_of

SEEDS = 10
_SESSIONS, _QUICK_SESSIONS = (240, 200), (40, 20)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(METHODS), help=f"default: {', '.join(METHODS)}")
    parser.add_argument("--tables", default=",".join(VARIANTS), help=f"default: {', '.join(VARIANTS)}")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="seeds from this one on (default: 0; design choices: 100)"
    )
    add_trial_options(parser, seeds=SEEDS, unit="fit")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    count = min(options.seeds, 2) if options.quick else options.seeds
    trials = [
        Trial(task, model, seed, describe(options_of(options.quick)) if model in OURS else "rival", options.quick)
        for model in parse_names(options.models, METHODS, "model")
        for task in parse_names(options.tables, VARIANTS, "table")
        for seed in range(options.first_seed, options.first_seed + count)
    ]
    return run_and_show(options, trials, attempt, REPORT)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test. Scores are percentages."""
    n_train, n_test = _QUICK_SESSIONS if trial.quick else _SESSIONS
    shop = draw_shop(trial.task, seed=trial.seed, n_train=n_train, n_test=n_test)
    started = time.perf_counter()
    predict = fit_method(trial.model, shop, seed=trial.seed, options=options_of(trial.quick), device=context.device)
    fitted = time.perf_counter()
    own_size = score_method(predict, shop.test, None)
    predicted = time.perf_counter()
    true_size = score_method(predict, shop.test, true_sizes(shop.test))
    return {
        "true_size": true_size,
        "own_size": own_size,
        "seconds": round(fitted - started, 2),
        "predict_seconds": round(predicted - fitted, 3),
        "summary": f"true size {true_size:.1f}, own size {own_size:.1f}",
    }


def show(records: Sequence[Record]) -> str:
    """Return a section for each table, with a row for each method."""
    parts = []
    for task in VARIANTS:
        found = [record for record in records if record["task"] == task]
        if found:
            parts.append(f"## {task}\n\n{task_table(found)}")
    return "\n\n".join(parts)


def task_table(records: Sequence[Record]) -> str:
    """Return the scores, leads of the default and seconds of the methods on one table."""
    by_seed = {
        score: {m: {r["seed"]: r[score] for r in records if r["model"] == m} for m in METHODS}
        for score in (*SCORES, "seconds", "predict_seconds")
    }
    rows = []
    for model in METHODS:
        if not by_seed["seconds"][model]:
            continue
        cells = []
        for score in SCORES:
            ours, theirs = by_seed[score][DEFAULT], by_seed[score][model]
            summary = summarise(list(theirs.values()))
            paired = model != DEFAULT and ours.keys() & theirs.keys()
            cells += [
                f"{summary.mean:.1f}" + (f" ± {summary.error:.1f}" if summary.count > 1 else ""),
                str(compare(ours, theirs, paired=True)) if paired else "-",
            ]
        seconds = [summarise(list(by_seed[name][model].values())).mean for name in ("seconds", "predict_seconds")]
        rows.append([model, str(len(by_seed["seconds"][model])), *cells, *(f"{value:.2f}" for value in seconds)])
    return table(["method", "seeds", "true size", "ahead", "own size", "ahead", "fit (s)", "predict (s)"], rows)


REPORT = Report.of_module(__doc__, "Mixed tables of a shop", show, "shop-tables --device cpu --jobs 1")

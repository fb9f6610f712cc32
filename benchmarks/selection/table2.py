"""Test Jaccard of our methods, plain baselines and every published method, on all tasks, beside published numbers.

Claims checked: over five folds of the large Amazon categories (protocol "farthest") "unrolled" is on average at least
10 points above the best method of arXiv:2412.11239 as tuned here (diffmf, idiffmf-*, equivset-*), and at least 2 above
the best of all published methods, which are these, INSET and HORSE. On the small categories only "conditional" is
level. Nowhere is it below direct (set transformer and a logit per item) by more than one standard error; the page names
the tasks where that fails. Published numbers are those of arXiv:2412.11239.

"conditional" (the default of the selector), "unrolled" and "direct" have eight members, as on a GPU; those named
"-single" have one, as on a CPU. Published methods have one. For images and pairs all have one; tasks named ":pixels"
have images as vectors.

Gaussian, moons, Amazon and compounds are cut into five folds (--splits published: the split of the loader, five seeds).
The splits of the other tasks keep images, people or customers separate: where none was published they are drawn again
for each seed, else only the seed varies. --seeds 10 fits every fold twice. Methods run with the options of their
presets; `grid` chooses them by cross-validation. Baselines: chance; popularity (Amazon); the distance of an item from
the mean of its set (anomalies); the subset whose items are most alike (bundles, clusters); and gradient boosting
(LightGBM), as classifier and as ranker, wherever items are vectors: on the features of an item, their z-scores and
ranks within its set, its distance from the mean of its set, and the size of its set.

Records are appended to a JSON-lines file. The same command run again runs only what is missing; records of other
options (a changed default, for example) do not count. `--table FILE` writes the page and figures of a file of records
and runs nothing. --quick without --tasks is Moons and one Amazon category.

Results: Mean ± standard deviation over folds or seeds; the best of a row is bold. "se" is the standard error of the
difference, by fold or split where these are paired; several fits of one fold count as one, their mean. ":pixels" are
images as plain vectors. Published numbers are those of Özcan et al., 2024 (arXiv:2412.11239): one test part, BERT
vectors for Amazon, times on an A100. They are for other data, so they are only roughly comparable.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.pages import Report, show_page
from benchmarks.lib.records import read_records
from benchmarks.lib.trials import add_trial_options, answers, parse_names, results_file, run_trials
from benchmarks.selection import fits
from benchmarks.selection.baselines import BASELINES, applies
from benchmarks.selection.figures import draw_figures
from benchmarks.selection.fits import Job, checkpoint_of, expected_cost, settings_of
from benchmarks.selection.models import MODELS
from benchmarks.selection.pages import show
from benchmarks.selection.scores import SCORES, collect
from benchmarks.selection.tasks import FOLDS, SPLITS, expand, splits_of
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS

# Second differences take about a hundred times as long as a step, and have to be asked for.
ALL = (*(name for name in MODELS if not name.endswith("-differences")), *BASELINES)
REPORT = Report.of_module(
    __doc__, "All methods on all tasks", show, "table2 --data-dir DATA --device cuda --jobs 15", draw_figures
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(ALL), help=f"models (default: all: {', '.join(ALL)})")
    parser.add_argument("--tasks", help="names of tasks or families, e.g. moons,anomaly,compounds (default: amazon)")
    parser.add_argument("--categories", default=",".join(AMAZON_CATEGORIES), help="Amazon categories (default: all)")
    parser.add_argument("--protocols", default=",".join(AMAZON_PROTOCOLS), help="farthest, random (default: both)")
    parser.add_argument("--splits", choices=SPLITS, default="folds", help="where both are sound (default: folds)")
    add_trial_options(parser, seeds=FOLDS, unit="fit", checkpoints=True, models=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page of all records of the file."""
    failed = 0
    with results_file(options, REPORT.results) as (results, page):
        if options.table is None:
            jobs = plan_jobs(options)
            failed = run_jobs(jobs, options, results)
        # The page shows the whole file: records often come from several commands.
        records = read_records(results)
        show_page(REPORT, records, page if records else None)
    tables = {
        score: {
            task: {model: summary.to_json() for model, summary in by_model.items()}
            for task, by_model in collect(records, score).items()
        }
        for score in SCORES
    }
    return {"tables": tables, "records": records, "failed": failed}


def plan_jobs(options: argparse.Namespace) -> list[Job]:
    """Return all fits of the options, the longest first."""
    categories = parse_names(options.categories, AMAZON_CATEGORIES, "category")
    protocols = parse_names(options.protocols, AMAZON_PROTOCOLS, "protocol")
    tasks = (options.tasks or ("moons,amazon:safety" if options.quick else "amazon")).split(",")
    seeds = range(min(options.seeds, 2) if options.quick else options.seeds)
    jobs = [
        Job(task, model, seed, options.quick, splits_of(task, options.splits))
        for task in expand([task.strip() for task in tasks if task.strip()], categories, protocols)
        for model in parse_names(options.models, (*MODELS, *BASELINES), "model")
        for seed in seeds
        if applies(model, task)
    ]
    return sorted(jobs, key=lambda job: -expected_cost(job))


def run_jobs(jobs: Sequence[Job], options: argparse.Namespace, results: Path) -> int:
    """Run the fits that have no record, and remove the checkpoints of finished ones; return how many failed."""
    failed = run_trials(jobs, fits.fit, options, results, settings=settings_of)
    if options.checkpoints is not None:
        for job in answers(jobs, read_records(results), settings=settings_of):
            checkpoint_of(job, options.checkpoints).unlink(missing_ok=True)
    return failed

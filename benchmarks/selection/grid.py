"""The published grid by cross-validation, and the published choices from it, for every published method.

Claims checked: those of tables 2, 5 and 6 of Özcan et al. (2024, arXiv:2412.11239), by their own protocol. The
published test split is held out. The other sets are cut into five folds; every point of the grid is fitted five times,
without one of the folds, on which it is validated. The point with the best mean validation score is chosen, and its
five models are tested: the score is their mean and standard deviation on one test split.

The grid is that of table 5: learning rates 1e-5 to 1e-2, two or three layers; for idiffmf-c* the constants 100, 1000
and 10000; for idiffmf-*-pathwise and -differences two solvers of each pass. `--points published` fits only the points
that tables 5 and 6 name. Every fit is a record with its point, so the same command goes on where it was killed. Points
of which folds are missing are not compared.

Results: Test Jaccard in percent with the true size, mean ± standard deviation of five models on one test split, by the
published inference: one step, five for diffmf-5. "validation" is the score that the choice is made by. "published" is
the figure of Özcan et al. (2024), on Amazon with BERT vectors, where ours are of MiniLM. All wait 20 epochs for
progress, the published code 6.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.lib.pages import Report, show_page
from benchmarks.lib.records import Record, read_records
from benchmarks.lib.summary import summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, results_file, run_trials
from benchmarks.selection import fits
from benchmarks.selection.fits import Job, describe_options, expected_cost, settings_of
from benchmarks.selection.models import GRIDS
from benchmarks.selection.published import ALGORITHM_OF, published
from benchmarks.selection.published_options import published_point
from benchmarks.selection.tasks import FOLDS, HELD_OUT, expand
from setgrad.datasets import AMAZON_CATEGORIES

Point = Mapping[str, Any]
POINTS = ("grid", "published")
# Second differences take a hundred times as long as a step, and have to be asked for.
USUAL = [name for name in GRIDS if name in ALGORITHM_OF and not name.endswith("-differences")]
_TASKS = "amazon:safety,amazon:furniture,amazon:carseats"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--tasks", help=f"names of tasks or families (default: {_TASKS})")
    parser.add_argument("--models", default=",".join(USUAL), help=f"presets (default: {', '.join(USUAL)})")
    parser.add_argument("--points", choices=POINTS, default="grid", help="what is fitted (default: grid)")
    add_trial_options(parser, seeds=FOLDS, unit="fit", checkpoints=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page of all records of the file."""
    failed = 0
    with results_file(options, REPORT.results) as (results, page):
        if options.table is None:
            failed = run_trials(plan_jobs(options), fits.fit, options, results, settings=settings_of)
        records = current(read_records(results))
        show_page(REPORT, records, page if records else None)
    return {"records": records, "failed": failed}


def plan_jobs(options: argparse.Namespace) -> list[Job]:
    """Return all fits: of each task and model all folds of one point after the other, cheap models first."""
    names = [name.strip() for name in (options.tasks or _TASKS).split(",") if name.strip()]
    models = parse_names(options.models, GRIDS, "model")
    points = 1 if options.quick else None
    folds = range(min(options.seeds, 2) if options.quick else options.seeds)
    cases = [
        Job(task, model, 0, options.quick, HELD_OUT)
        for task in expand(names, AMAZON_CATEGORIES, ["farthest"])
        for model in models
    ]
    return [
        replace(case, seed=fold, tuned=as_text(point))
        for case in sorted(cases, key=expected_cost)
        for point in points_of(case.task, case.model, options.points)[:points]
        for fold in folds
    ]


def points_of(task: str, model: str, which: str) -> list[Point]:
    """Return the published point, if the tables have one, and with "grid" all others.

    Examples:
        >>> points_of("moons", "diffmf", "published")
        [{'learning_rate': 0.0001, 'rho_layers': 3}]
        >>> len(points_of("moons", "idiffmf-c-pathwise", "grid"))
        96
    """
    grid = GRIDS[model]
    printed = published_point(task, ALGORITHM_OF.get(model, model))
    first = [] if printed is None else [{name: printed[name] for name in grid}]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return first + ([point for point in points if point not in first] if which == "grid" else [])


def as_text(point: Point) -> str:
    """Return a point as the field of a job."""
    return json.dumps(point, sort_keys=True)


def current(records: Sequence[Record]) -> list[Record]:
    """Return the latest record of each fit with the options of today."""
    latest: dict[Job, Record] = {}
    for record in records:
        names = ("task", "model", "seed", "quick", "splits", "tuned")
        job = Job(**{name: record[name] for name in names})
        if job.splits == HELD_OUT and job.model in GRIDS and record["options"] == describe_options(job):
            latest[job] = record
    return list(latest.values())


def show(records: Sequence[Record]) -> str:
    """Return the table of what was chosen, one row for each task and model."""
    by_case: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        by_case.setdefault((record["task"], record["model"]), {}).setdefault(record["tuned"], []).append(record)
    head = ["task", "model", "points", "chosen", "validation", "test", "test at the published point", "published"]
    rows = []
    for (task, model), points in sorted(by_case.items()):
        folds = max(len(fits_of) for fits_of in points.values())
        complete = {text: fits_of for text, fits_of in points.items() if len(fits_of) == folds}
        best = max(complete, key=lambda text: (mean(complete[text], "validation"), text))
        printed = points_of(task, model, "published")
        at_printed = complete.get(as_text(printed[0])) if printed else None
        figure = published(task).get(model)
        rows.append(
            [
                task,
                model,
                f"{len(complete)} of {len(points_of(task, model, 'grid'))}",
                describe_point(json.loads(best)),
                f"{mean(complete[best], 'validation'):.1f}",
                score(complete[best]),
                score(at_printed) if at_printed else "-",
                "-" if figure is None else f"{figure[0]:.1f} ± {figure[1]:.1f}",
            ]
        )
    return table(head, rows)


def mean(records: Sequence[Record], name: str) -> float:
    """Return the mean of a field."""
    return statistics.fmean(record[name] for record in records)


def score(records: Sequence[Record]) -> str:
    """Return mean and deviation of the test score with the true size, of iDiffMF after one step."""
    return str(summarise([r["one_step" if r["model"].startswith("idiffmf") else "true_size"] for r in records]))


def describe_point(point: Point) -> str:
    """Return a point in few words.

    Examples:
        >>> describe_point({"learning_rate": 1e-4, "rho_layers": 3, "forward": "picard", "backward": "gmres"})
        '1e-04, 3 layers, picard, gmres'
    """
    words = [f"{point['learning_rate']:.0e}", f"{point['rho_layers']} layers"]
    words += [f"c = {point['scale']:g}"] if "scale" in point else []
    return ", ".join([*words, *(str(point[name]) for name in ("forward", "backward") if name in point)])


REPORT = Report.of_module(__doc__, "The published grid by cross-validation", show, "grid --data-dir DATA")

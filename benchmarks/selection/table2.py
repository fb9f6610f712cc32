"""Test Jaccard of the default, the plain baseline and every published method, on all tasks, beside the printed numbers.

Claims checked: over five folds of the large Amazon categories (protocol "farthest") the default is on average at least
10 points above the best method of arXiv:2412.11239 as tuned here (diffmf, idiffmf-*, equivset-*), and at least 2 above
the best of all published methods, which are these, INSET and HORSE; on the small categories it is the best of all
(found: 0.5 to 2.7 points above direct, with standard errors of 0.7 to 1.3, and far ahead of all others).
Nowhere is it below direct (set transformer and a logit per item) by more than one standard error; the page names the
tasks where that fails. Published numbers are those of arXiv:2412.11239.

Default and direct have eight members, as they have on a GPU by default; "single" and "direct-single" have one, as on a
CPU. Published methods have one. For images and pairs, all have one; tasks named ":pixels" have images as vectors.

Gaussian, moons, Amazon and compounds are cut into five folds (--splits published: the loaders' own split, five seeds).
The splits of the others hold images, people or customers apart: where none was published they are drawn anew for each
seed, else the seed varies alone. --seeds 10 fits every fold twice. Contenders run with the options of their presets, or
with those that --search N finds on validation scores alone. Beside them stand chance, popularity (Amazon), the distance
of an item from the mean of its set (anomalies), and the subset whose items are most alike (bundles).

Results go to a JSON-lines file as they come. The same command run again does only what is missing; results of other
options (a changed default, say) do not count as done. Tables and figures are written beside that file. `--table FILE`
does that for a file of results and runs nothing. --quick without --tasks is Moons and one Amazon category.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lib.records import Place, Record, current_commit, read_records
from benchmarks.lib.trials import add_run_options, chosen, command_line
from benchmarks.selection.baselines import BASELINES, applies
from benchmarks.selection.figures import draw_figures
from benchmarks.selection.fits import Job, belongs, expected_cost, run_jobs, unfinished
from benchmarks.selection.models import MODELS
from benchmarks.selection.pages import page
from benchmarks.selection.scores import SCORES, collect
from benchmarks.selection.search import search
from benchmarks.selection.tasks import FOLDS, SPLITS, expand, splits_of
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS
from setgrad.errors import OptionError

ALL = (*MODELS, *BASELINES)
USUAL = Path("benchmarks/results/table2.jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(ALL), help=f"contenders (default: all: {', '.join(ALL)})")
    parser.add_argument("--tasks", help="names of tasks or families, e.g. moons,anomaly,compounds (default: amazon)")
    parser.add_argument("--categories", default=",".join(AMAZON_CATEGORIES), help="Amazon categories (default: all)")
    parser.add_argument("--protocols", default=",".join(AMAZON_PROTOCOLS), help="farthest, random (default: both)")
    parser.add_argument("--splits", choices=SPLITS, default="folds", help="where both are sound (default: folds)")
    parser.add_argument("--search", type=int, metavar="N", help="first try N points of the grid of each task and model")
    parser.add_argument(
        "--study", type=Path, metavar="FILE", help="journal of the search (default: beside the results)"
    )
    add_fit_options(parser, seeds=FOLDS)
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page of this file and run nothing")


def add_fit_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add what every benchmark of fits can be told."""
    add_run_options(parser, seeds=seeds, seed="folds or seeds", unit="fit")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="FOLDER",
        help="where unfinished fits are kept, to go on with if killed",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search if asked to, fit what is missing, then print the page and write it."""
    if options.table is not None:
        if not options.table.is_file():
            raise OptionError(f"there is no file {options.table}; --table takes what --results wrote")
        return show(read_records(options.table), options.table)
    jobs = plan_jobs(options)
    if options.quick and options.results is None:
        with tempfile.TemporaryDirectory() as folder:
            return _run(jobs, options, Path(folder) / USUAL.name, keep=False)
    return _run(jobs, options, options.results or USUAL, keep=True)


def plan_jobs(options: argparse.Namespace) -> list[Job]:
    """All fits asked for, longest first."""
    categories = chosen(options.categories, AMAZON_CATEGORIES, "category")
    protocols = chosen(options.protocols, AMAZON_PROTOCOLS, "protocol")
    tasks = (options.tasks or ("moons,amazon:safety" if options.quick else "amazon")).split(",")
    seeds = range(min(options.seeds, 2) if options.quick else options.seeds)
    jobs = [
        Job(task, model, seed, options.quick, splits_of(task, options.splits))
        for task in expand([task.strip() for task in tasks if task.strip()], categories, protocols)
        for model in chosen(options.models, ALL, "model")
        for seed in seeds
        if applies(model, task)
    ]
    return sorted(jobs, key=lambda job: -expected_cost(job))


def run_missing(jobs: Sequence[Job], options: argparse.Namespace, usual: Path) -> tuple[list[Record], int]:
    """Run the jobs that the file of results lacks; return the records of all jobs, old and new, and how many failed."""
    if options.quick and options.results is None:
        with tempfile.TemporaryDirectory() as folder:
            return _run_missing(jobs, options, Path(folder) / usual)
    return _run_missing(jobs, options, options.results or usual)


def show(records: Sequence[Record], results: Path | None) -> dict[str, Any]:
    """Print the page, write it with its figures beside the results, and return the numbers."""
    figures = [] if results is None or not records else draw_figures(records, results.parent, results.stem)
    text = page(records, figures)
    print(f"\n{text}")
    if results is not None:
        results.with_suffix(".md").write_text(text, encoding="utf-8")
    tables = {
        score: {
            task: {model: summary.to_json() for model, summary in found.items()}
            for task, found in collect(records, score).items()
        }
        for score in SCORES
    }
    return {"tables": tables, "records": list(records)}


def _run(jobs: Sequence[Job], options: argparse.Namespace, results: Path, *, keep: bool) -> dict[str, Any]:
    if options.search:
        started = time.monotonic()
        journal = options.study or results.with_suffix(".search.log")
        jobs = search(
            jobs,
            replace(_place(options), checkpoints=None),
            trials=options.search,
            journal=journal,
            workers=options.jobs,
            time_limit=options.time_limit,
        )
        if options.time_limit is not None:
            options.time_limit = max(0.0, options.time_limit - (time.monotonic() - started))
    _, failed = _run_missing(jobs, options, results)
    # The page shows all that the file holds: results often come from several commands.
    return {**show(read_records(results), results if keep else None), "failed": failed}


def _run_missing(jobs: Sequence[Job], options: argparse.Namespace, results: Path) -> tuple[list[Record], int]:
    missing = unfinished(jobs, read_records(results))
    print(f"{len(jobs) - len(missing)} of {len(jobs)} fits are in {results}; {len(missing)} to go", flush=True)
    failed = run_jobs(missing, _place(options), workers=options.jobs, results=results, time_limit=options.time_limit)
    return [record for record in read_records(results) if belongs(jobs)(record)], failed


def _place(options: argparse.Namespace) -> Place:
    if options.checkpoints is not None:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
    return Place(options.device, options.data_dir, current_commit(), command_line(options), options.checkpoints)

"""Test Jaccard on Amazon, Moons and Gaussian: the paper's preset, the default and the plain baseline side by side.

Claims checked: over five seeds the default is no worse than direct (set transformer and a logit per item) beyond one
standard error, and at least 8 points above the paper's preset on the large Amazon categories of the published
protocol. Published numbers are those of Table 2 of arXiv:2412.11239, which used BERT vectors; here they are MiniLM.

Results go to a JSON-lines file as they come. The same command run again does only what is missing; results of other
options (a changed default, say) do not count as done. `--table FILE` prints the tables of a file and runs nothing.
Cells are mean ± standard deviation (standard error) over the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._fits import Job, Place, Record, expected_cost, read_records, run_jobs, unfinished
from benchmarks._published import AMAZON_PAIRS
from benchmarks._scores import SCORES, collect, score_table, verdicts
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS
from setgrad.errors import unknown_name

# What a method of the command line stands for. The paper's model is unrolled mean field too, with its own options.
METHODS = {"unrolled": ("paper", "default"), "direct": ("direct",)}
DATASETS = ("amazon", "moons", "gaussian")
_SYNTHETIC_SETS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(METHODS), help="unrolled (paper and default), direct")
    parser.add_argument("--datasets", default="amazon", help="amazon, moons, gaussian (default: amazon)")
    parser.add_argument("--categories", default=",".join(AMAZON_CATEGORIES), help="Amazon categories (default: all)")
    parser.add_argument("--protocols", default=",".join(AMAZON_PROTOCOLS), help="farthest, random (default: both)")
    add_fit_options(parser, seeds=5)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the tables of this file and run nothing")


def add_fit_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add what every benchmark of fits can be told."""
    parser.add_argument("--seeds", type=int, default=seeds, help=f"fits with seeds 0, 1, ... (default: {seeds})")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, each with one thread (default: 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--data-dir", help="folder of the data files (default: the variable SETGRAD_DATA)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON-lines file to append to and go on from")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no new fit after this time")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fit what is missing, then print the tables."""
    if options.table is not None:
        return show(read_records(options.table))
    records, failed = run_missing(plan_jobs(options), options, Path("table2.jsonl"))
    return {**show(records), "failed": failed}


def plan_jobs(options: argparse.Namespace) -> list[Job]:
    """All fits asked for, longest first."""
    sets: dict[str, int] = {}
    categories = ["safety"] if options.quick else _names(options.categories, AMAZON_CATEGORIES, "category")
    for dataset in _names(options.datasets, DATASETS, "data set"):
        if dataset == "amazon":
            for protocol in _names(options.protocols, AMAZON_PROTOCOLS, "protocol"):
                sets |= {f"amazon:{category}:{protocol}": AMAZON_PAIRS[category] // 3 for category in categories}
        else:
            sets[dataset] = _SYNTHETIC_SETS
    models = [model for method in _names(options.methods, METHODS, "method") for model in METHODS[method]]
    seeds = range(min(options.seeds, 2) if options.quick else options.seeds)
    jobs = [Job(task, model, seed, options.quick) for task in sets for model in models for seed in seeds]
    return sorted(jobs, key=lambda job: -expected_cost(job, sets[job.task]))


def run_missing(jobs: Sequence[Job], options: argparse.Namespace, usual: Path) -> tuple[list[Record], int]:
    """Run the jobs that the file of results lacks; return the records of all jobs, old and new, and how many failed."""
    if options.quick and options.results is None:
        with tempfile.TemporaryDirectory() as folder:
            return _run_missing(jobs, options, Path(folder) / usual)
    return _run_missing(jobs, options, options.results or usual)


def show(records: Sequence[Record]) -> dict[str, Any]:
    """Print the tables of both scores and the verdicts."""
    models = [model for names in METHODS.values() for model in names]
    for score, meaning in SCORES.items():
        print(f"\n## Test Jaccard in percent; {meaning}\n")
        print(score_table(records, score, models))
    print()
    for line in verdicts(records):
        print(line)
    tables = {
        score: {
            task: {model: summary.to_json() for model, summary in found.items()}
            for task, found in collect(records, score).items()
        }
        for score in SCORES
    }
    return {"tables": tables, "records": list(records)}


def _run_missing(jobs: Sequence[Job], options: argparse.Namespace, results: Path) -> tuple[list[Record], int]:
    missing = unfinished(jobs, read_records(results))
    print(f"{len(jobs) - len(missing)} of {len(jobs)} fits are in {results}; {len(missing)} to go", flush=True)
    place = Place(options.device, options.data_dir)
    failed = run_jobs(missing, place, workers=options.jobs, results=results, time_limit=options.time_limit)
    wanted = {(job.task, job.model, job.seed, job.quick) for job in jobs}
    records = [r for r in read_records(results) if (r["task"], r["model"], r["seed"], r["quick"]) in wanted]
    return records, failed


def _names(text: str, known: Sequence[str] | dict[str, Any], kind: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return names

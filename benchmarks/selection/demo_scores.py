"""Test Jaccard on the tasks of the demo: Moons, Gaussian and digits, with the default and with the preset of DiffMF.

"default" has the members that it has on a GPU, "single" has one, as on a CPU.

Claims checked: with one set of defaults, Moons reaches 99.5 with the true size and 98 with the size chosen by the
model, where the published best is 58.97; DiffMF stays at its published 57.5 to 59 on Moons and 90 to 91.5
on Gaussian. "limit" is the best that anyone can do who is told the size. Digits needs scikit-learn and is left out
without it; it was not published, and its limit is not known.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from benchmarks.lib.summary import summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import chosen, show_page
from benchmarks.selection.fits import Job, expected_cost
from benchmarks.selection.published import best_published
from benchmarks.selection.scores import SCORES, collect, latest
from benchmarks.selection.table2 import add_fit_options, run_missing
from setgrad import datasets

TASKS = ("moons", "gaussian", "digits")
MODELS = ("default", "single", "diffmf")
USUAL = Path("benchmarks/results/demo-scores.jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: all: {', '.join(MODELS)}")
    add_fit_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fit, then print one table and write it beside the results."""
    models = chosen(options.models, MODELS, "model")
    tasks = [task for task in TASKS if task != "digits" or importlib.util.find_spec("sklearn")]
    if len(tasks) < len(TASKS):
        print("digits is left out: it needs scikit-learn")
    jobs = [
        Job(task, model, seed, options.quick) for task in tasks for model in models for seed in range(options.seeds)
    ]
    jobs.sort(key=lambda job: -expected_cost(job))
    records, failed = run_missing(jobs, options, USUAL)
    found = {score: collect(records, score) for score in SCORES}
    rows = []
    for task in tasks:
        published = best_published(task)
        for model in models:
            if model not in found["true_size"].get(task, {}):
                continue
            spent = [r["seconds"] for r in latest(records) if (r["task"], r["model"]) == (task, model)]
            rows.append(
                [
                    f"{task}, {model}",
                    *(str(found[score][task][model]) for score in SCORES),
                    f"{published[0]:.2f}" if published else "-",
                    _limit(task),
                    f"{summarise(spent).mean:.0f} s",
                ]
            )
    shown = table(["task, model", "true size", "own size", "published best", "limit", "fit"], rows)
    show_page(f"# The tasks of the demo\n\n{shown}", records, options, options.results or USUAL)
    return {"records": records, "failed": failed}


def _limit(task: str) -> str:
    if task == "gaussian":
        return f"{100 * datasets.bayes_jaccard(datasets.load_task(task, n_train=0, n_validation=0).test):.2f}"
    return "100" if task == "moons" else "-"

"""Time of a whole fit: the default selector, a hand-written set transformer, and LightGBM, side by side.

Claims checked: the default takes at most the processor time that a plain set transformer takes until its best epoch,
where its own time counts until half a point below the validation score that it ends with.

The plain set transformer has the encoder of the default, a logit for each item, batches of 64, AdamW, and patience 10:
what a user would write. LightGBM gets the features of an item and what a table can say about its set. Times are of the
processor. All are scored on test sets with the true size.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.selection.boosting import Boosting
from benchmarks.speed.plain import fit_plain, score_plain
from benchmarks.speed.speed_tasks import NAMES, load_speed_task
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.selector import jaccard, pick_top
from setgrad.sets import subset_sizes

POINTS = 0.005


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--tasks", default=",".join(NAMES), help=f"names separated by commas (default: {NAMES})")
    parser.add_argument("--seeds", type=int, default=1, help="fits of each task (default: 1)")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    machine = announce(torch.device("cpu"), options.threads)
    rows = []
    for name in options.tasks.split(","):
        task = load_speed_task(name, options.data_dir, quick=options.quick)
        rows += [measure(name, task, seed, quick=options.quick) for seed in range(options.seeds)]
        print(show(rows), flush=True)
    return {"machine": machine, "rows": rows}


def measure(name: str, task: Task, seed: int, *, quick: bool) -> dict[str, Any]:
    """Fit all three and return times and scores."""
    epochs = 2 if quick else 100
    started = time.process_time()
    options: dict[str, Any] = {"max_epochs": epochs, "dim": 16, "hidden": (16,)} if quick else {}
    selector = SubsetSelector(device="cpu", members=1, random_state=seed, verbose=0, **options)
    selector.fit(*task.train, validation=tuple(task.validation))
    own = time.process_time() - started
    plain = fit_plain(task.train, task.validation, seed, max_epochs=epochs, patience=10)
    started = time.process_time()
    rank = Boosting(threads=torch.get_num_threads())(task, seed)
    boosted = time.process_time() - started
    picks = pick_top(rank(task.test), task.test.sets, subset_sizes(task.test.subsets))
    return {
        "task": name,
        "seed": seed,
        "default": own,
        "default_to_score": own * share_to_score(selector.history_, selector.best_epoch_),
        "default_epochs": len(selector.history_),
        "default_score": selector.score_true_size(*task.test),
        "default_own_size": selector.score(*task.test),
        "plain": plain.total,
        "plain_to_best": plain.best,
        "plain_epochs": plain.epochs,
        "plain_score": score_plain(plain.model, task.test),
        "lightgbm": boosted,
        "lightgbm_score": float(jaccard(picks, task.test.subsets).mean()),
    }


def share_to_score(history: list[dict[str, float]], best_epoch: int) -> float:
    """Return the share of all epochs, which have the same work, until the score is within half a point of the best."""
    goal = history[best_epoch - 1]["validation_jaccard"] - POINTS
    epochs = next(number for number, record in enumerate(history, 1) if record["validation_jaccard"] >= goal)
    return epochs / len(history)


def show(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    head = ["task, seed", "default", "to its score", "epochs", "true / own size", "plain", "to its best", "epochs"]
    head += ["true size", "LightGBM", "true size", "ratio to plain", "ratio to LightGBM"]
    return table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['task']}, {row['seed']}",
        format_seconds(row["default"]),
        format_seconds(row["default_to_score"]),
        str(row["default_epochs"]),
        f"{100 * row['default_score']:.1f} / {100 * row['default_own_size']:.1f}",
        format_seconds(row["plain"]),
        format_seconds(row["plain_to_best"]),
        str(row["plain_epochs"]),
        f"{100 * row['plain_score']:.1f}",
        format_seconds(row["lightgbm"]),
        f"{100 * row['lightgbm_score']:.1f}",
        f"{row['default_to_score'] / row['plain_to_best']:.2f}",
        f"{row['default'] / row['lightgbm']:.1f}",
    ]

"""Training time to the same score: the default selector against the published model trained with mask tensors.

Claims checked: on every Amazon category the default reaches the best validation score of the mask-tensor baseline in at
most a fifth of the time that the baseline needs for it. Where the default has several members, it is also timed with
one.

The baseline is trained as published: linear phi of 256, rho 500-500, one step from 1/2 with 5 masks for each item, loss
on S* and as many negatives, Adam with weight decay 1e-5, batches of 128, patience 20, one row for each learning rate.
Both get the splits of the loader and are validated after every epoch with the true size, each with its own inference.
Clocks start at the first epoch, with the data on the device; validation counts for both, a warm-up of each does not.
The best of a noisy curve comes late, so "1 point less" is the ratio of times to one point below the baseline's best.
Where the baseline learns nothing its best is that of an untrained network, and comes at once. "in all" is the time at
the end of training.

The second table shows how much the flips alone are worth: one pass over the training sets with the default model, its
gains by flips and by mask tensors, everything else equal, medians of alternating passes.

A trial is one task and one seed: the baseline at each rate, the default, also with one member, then the passes. Tables
show medians over seeds. Trials run one at a time, because parallel runs slow each other down, so `--jobs` above 1 is an
error.

Results: The default reaches the baseline's best score in at most a fifth of its time on eight of the nine large
categories with eight members and on all nine with one, but not on the small ones, where the baseline has its best after
0.2 seconds. ratio: time of the default over time of the baseline. in all: the time at the end of training.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.machine import describe as machine
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.models import MEMBERS, describe
from benchmarks.selection.tasks import load_split
from benchmarks.selection.time_curves import (
    FULL,
    QUICK,
    WARM_UP,
    Curve,
    Plan,
    default_options,
    ratio,
    time_passes,
    train_baseline,
    train_default,
)
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, Task
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

LIMIT = 0.2
POINT = 0.01
# Fields of a record for each curve, and for the default against a curve of the baseline.
_OF_CURVE = ("best", "test", "time_to_best", "time_in_all")
_OF_BOTH = ("default_time", "ratio", "ratio_one_point_less")
_OF_SINGLE = ("single_time", "single_ratio")


@final
@dataclass(frozen=True)
class Trial:
    """All measurements of one task with one seed; `rates` are the baseline's.

    `options` has all options of the default selector, so records of an older default do not count.
    """

    task: str
    rates: tuple[float, ...]
    seed: int
    options: str
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task}, seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--categories", help="Amazon categories (default: all; with --quick: safety)")
    parser.add_argument("--protocols", default="farthest", help="farthest, random (default: farthest)")
    parser.add_argument("--baseline-lr", default="1e-4,1e-3", help="learning rates of the baseline (default: both)")
    add_machine_options(parser, device=False)
    add_trial_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    trials = trials_of(options)
    if options.table is None:
        announce(resolve_device(options.device), options.threads)
    folders = {"amazon_baby_registry": "the Amazon registries"}
    return run_and_show(options, trials, attempt, REPORT, folders=folders)


def trials_of(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, by protocol and in the order of AMAZON_CATEGORIES."""
    if options.jobs > 1:
        raise OptionError(
            f"--jobs {options.jobs} would run trials in parallel, which slow each other down, so their times would "
            "mean nothing; leave out --jobs"
        )
    usual = ("safety",) if options.quick else AMAZON_CATEGORIES
    categories = parse_names(options.categories, AMAZON_CATEGORIES, "Amazon category") if options.categories else usual
    protocols = parse_names(options.protocols, AMAZON_PROTOCOLS, "Amazon protocol")
    rates = _rates(options.baseline_lr)
    # The members of the default on this device.
    members = MEMBERS if resolve_device(options.device).type == "cuda" else 1
    described = describe({**default_options(_plan(options.quick)), "members": members})
    return [
        Trial(task, rates, seed, described, options.quick)
        for task in _tasks(categories, protocols)
        for seed in range(options.seeds)
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Run all measurements of a trial, on the split of the loader."""
    device = resolve_device(context.device)
    # Before the measurement, which is load too.
    ran_on = machine(device)
    task = load_split(trial.task, splits="published", number=trial.seed, data_dir=context.data_dir, quick=trial.quick)
    measured = compare(task, trial.rates, _plan(trial.quick), trial.seed, device)
    ratios = ", ".join(f"{_ratio(row['ratio'])} ({row['learning_rate']:g})" for row in measured["baseline"])
    return {**measured, "threads": ran_on["threads"], "load": ran_on["load"], "summary": f"ratios {ratios}"}


def compare(task: Task, rates: Sequence[float], plan: Plan, seed: int, device: torch.device) -> Record:
    """Return all measurements of one task with one seed as JSON; a time that was never reached is None."""
    # Libraries choose their kernels by the shapes of a task, so each trial has its own warm-up.
    train_baseline(task, rates[0], WARM_UP, device)
    several = train_default(task, WARM_UP, device)[1].model_.config.members > 1
    if several:
        train_default(task, WARM_UP, device, members=1)
    rivals = {rate: train_baseline(task, rate, plan, device, seed) for rate in rates}
    own, selector = train_default(task, plan, device, seed)
    single = train_default(task, plan, device, seed, members=1)[0] if several else own
    flips, masks = time_passes(selector.model_, task.train, plan.repeats, device)
    return {
        "training_sets": len(task.train),
        "baseline": [
            {"learning_rate": rate, **rival.to_json(), **_against(rival, own, single)} for rate, rival in rivals.items()
        ],
        "default": own.to_json(),
        "single": single.to_json(),
        "pass": {"flips": flips, "mask_tensor": masks, "ratio": masks / flips},
    }


def medians(records: Sequence[Record]) -> list[Record]:
    """Return one row for each task and rate, with medians over seeds for the baseline and the default."""
    # A file may have one seed twice, for other rates or an older default: the last one counts.
    by_seed: dict[tuple[str, float], dict[int, tuple[Record, Record]]] = {}
    for record in records:
        for row in record["baseline"]:
            by_seed.setdefault((record["task"], row["learning_rate"]), {})[record["seed"]] = record, row
    rows = []
    for task, rate in sorted(by_seed, key=lambda key: (_tasks().index(key[0]), key[1])):
        trials, rivals = zip(*by_seed[task, rate].values(), strict=True)
        rows.append(
            {
                "task": task,
                "training_sets": trials[-1]["training_sets"],
                "members": json.loads(trials[-1]["options"])["members"],
                "learning_rate": rate,
                "seeds": len(trials),
                **{name: _middle(row[name] for row in rivals) for name in (*_OF_CURVE, *_OF_BOTH, *_OF_SINGLE)},
                **{
                    own: {name: _middle(trial[own][name] for trial in trials) for name in _OF_CURVE}
                    for own in ("default", "single")
                },
            }
        )
    return rows


def show(records: Sequence[Record]) -> str:
    """Return both tables, and the verdict on the claim."""
    rows = medians(records)
    counts = sorted({row["seeds"] for row in rows})
    seeds = f", seeds: {' or '.join(map(str, counts))}" if counts else ""
    parts = [
        f"## Time to the best validation score of the mask-tensor baseline{seeds}",
        time_table(rows),
        *([verdict(rows)] if rows else []),
        "## One pass over the training sets: gains by flips and by mask tensors",
        pass_table(records),
    ]
    return "\n\n".join(parts)


def time_table(rows: Sequence[Record]) -> str:
    """Return the table of `medians`, one row for each task and learning rate of the baseline."""
    head = ["task (training sets), learning rate", "baseline: best", "after", "in all", "test"]
    head += ["members", "default: there after", "ratio", "1 point less", "default: best", "after", "in all", "test"]
    head += ["one member: there after", "ratio", "one member: best", "test"]
    return table(head, [_cells(row) for row in rows])


def verdict(rows: Sequence[Record]) -> str:
    """Return how many rows meet the claim, of all rows and of the better learning rate of each task."""
    better: dict[str, Record] = {}
    for row in rows:
        better[row["task"]] = max(better.get(row["task"], row), row, key=lambda one: one["best"])
    lines = []
    for name, selected in (("all rows", rows), ("the better learning rate of each task", list(better.values()))):
        for key, less in (
            ("ratio", ""),
            ("ratio_one_point_less", ", one point less"),
            ("single_ratio", ", with one member"),
        ):
            ratios = [_or_never(row[key]) for row in selected]
            met = sum(r <= LIMIT for r in ratios)
            lines.append(
                f"- {name}{less}: ratio at most {LIMIT:g} in {met} of {len(selected)}, "
                f"median {_ratio(_middle(ratios))}, worst {_ratio(_finite(max(ratios)))}"
            )
    return "\n".join(lines)


def pass_table(records: Sequence[Record]) -> str:
    """Return a table with one row for each task, with medians over seeds."""
    by_seed: dict[str, dict[int, Record]] = {}
    for record in records:
        by_seed.setdefault(record["task"], {})[record["seed"]] = record
    rows = []
    for task in sorted(by_seed, key=_tasks().index):
        trials = list(by_seed[task].values())
        masks, flips, times = (
            statistics.median(trial["pass"][name] for trial in trials) for name in ("mask_tensor", "flips", "ratio")
        )
        rows.append([_name(trials[-1]), format_seconds(masks), format_seconds(flips), f"{times:.2f}"])
    return table(["task (training sets)", "mask tensors", "flips", "ratio"], rows)


def _cells(row: Record) -> list[str]:
    own, single = row["default"], row["single"]
    return [
        f"{_name(row)}, {row['learning_rate']:g}",
        _percent(row["best"]),
        format_seconds(row["time_to_best"]),
        format_seconds(row["time_in_all"]),
        _percent(row["test"]),
        str(row["members"]),
        _seconds(row["default_time"]),
        _ratio(row["ratio"]),
        _ratio(row["ratio_one_point_less"]),
        _percent(own["best"]),
        format_seconds(own["time_to_best"]),
        format_seconds(own["time_in_all"]),
        _percent(own["test"]),
        _seconds(row["single_time"]),
        _ratio(row["single_ratio"]),
        _percent(single["best"]),
        _percent(single["test"]),
    ]


def _against(rival: Curve, own: Curve, single: Curve) -> Record:
    several = (own.time_to(rival.best), ratio(rival, own), ratio(rival, own, less=POINT))
    alone = (single.time_to(rival.best), ratio(rival, single))
    return dict(zip((*_OF_BOTH, *_OF_SINGLE), map(_finite, (*several, *alone)), strict=True))


def _plan(quick: bool) -> Plan:
    return QUICK if quick else FULL


def _tasks(categories: Collection[str] = AMAZON_CATEGORIES, protocols: Collection[str] = AMAZON_PROTOCOLS) -> list[str]:
    return [f"amazon:{c}:{p}" for p in AMAZON_PROTOCOLS if p in protocols for c in AMAZON_CATEGORIES if c in categories]


def _name(row: Record) -> str:
    return f"{row['task'].partition(':')[2]} ({row['training_sets']})"


def _middle(values: Iterable[float | None]) -> float | None:
    return _finite(statistics.median(map(_or_never, values)))


def _or_never(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else format_seconds(value)


def _ratio(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f}"


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = {float(entry) for entry in text.split(",")}
    except ValueError:
        rates = set()
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise OptionError(f"--baseline-lr takes positive numbers separated by commas, e.g. 1e-4,1e-3, not {text!r}")
    # Sorted, because the same rates in another order are the same trial.
    return tuple(sorted(rates))


REPORT = Report.of_module(
    __doc__, "Training time to the same score", show, "time-to-score --data-dir DATA --device cuda"
)

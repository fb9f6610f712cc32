"""Run the trials of a benchmark: options, processes, resuming, and the page of the results.

A trial is a frozen dataclass with everything that shapes its result, among it a `seed`, and with a `label`. A stored
record answers a trial if all settings are equal, so results of other settings never count.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.data import data_folder
from benchmarks.lib.machine import describe
from benchmarks.lib.pages import Report, page_path, show_page
from benchmarks.lib.parallel import run_parallel
from benchmarks.lib.records import Record, RunContext, append_record, current_commit, read_records
from setgrad.errors import OptionError, unknown_name
from setgrad.selector import resolve_device

# From a trial and its context to a record. Other processes must be able to import the function.
Work = Callable[[Any, RunContext], Record]
# The settings of a trial that a record must repeat to answer it.
Settings = Callable[[Any], Record]


def add_trial_options(
    parser: argparse.ArgumentParser, *, seeds: int, unit: str = "trial", checkpoints: bool = False, models: bool = False
) -> None:
    """Add the options that every benchmark of trials has; `unit` is the word for a trial in the help."""
    parser.add_argument("--seeds", type=int, default=seeds, help=f"folds or seeds 0, 1, ... (default: {seeds})")
    parser.add_argument("--jobs", type=int, default=1, help=f"{unit}s at a time, each with one thread (default: 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--data-dir", help="folder of the data files (default: the variable SETGRAD_DATA)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON-lines file to append to and resume from")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help=f"start no new {unit} after this time")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page of this file and run nothing")
    if checkpoints:
        parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="where unfinished fits are saved")
    if models:
        parser.add_argument(
            "--models-dir", type=Path, metavar="FOLDER", help="where fitted models are saved, for other benchmarks too"
        )


def parse_names(text: str, known: Collection[str], kind: str) -> list[str]:
    """Return the names of a comma-separated option; a name that is not known raises an error."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return names


def run_and_show(
    options: argparse.Namespace,
    trials: Sequence[Any],
    work: Work,
    report: Report,
    *,
    folders: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the trials that have no record, then print and write the page of all.

    `folders` maps data folders to their content: a missing one is an error before any work.
    """
    with results_file(options, report.results) as (results, page):
        failed = 0
        if options.table is None:
            for folder, content in (folders or {}).items():
                data_folder(options.data_dir, folder, content)
            failed = run_trials(trials, work, options, results)
        records = read_records(results) if options.table is not None else records_of(trials, results)
        show_page(report, records, page if records else None)
    return {"records": records, "failed": failed}


@contextmanager
def results_file(options: argparse.Namespace, usual: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield the file of records and the path of its page.

    A quick run that names no file uses a temporary one and writes no page.
    """
    if options.table is not None and not options.table.is_file():
        raise OptionError(f"there is no file {options.table}; --table takes a file that --results wrote")
    if options.quick and options.results is None and options.table is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / usual.name, None
    else:
        path = options.table or options.results or usual
        yield path, page_path(path)


def run_trials(
    trials: Sequence[Any],
    work: Work,
    options: argparse.Namespace,
    results: Path,
    *,
    settings: Settings = asdict,
    is_complete: Callable[[Any], bool] | None = None,
) -> int:
    """Run the trials that have no record, in the given order, and append their records; return how many failed.

    `is_complete` says whether a trial that has a record needs no other run, for example because its model is saved. A
    trial that fails is reported and has no record, so the next run tries it again.
    """
    known = answers(trials, read_records(results), settings=settings)
    missing = [trial for trial in trials if trial not in known or (is_complete and not is_complete(trial))]
    finished = len(trials) - len(missing)
    print(f"{finished} of {len(trials)} trials are in {results.name}; {len(missing)} to run", flush=True)
    context = run_context(options)
    deadline = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    attempt = partial(_attempt, work=work, context=context, settings=settings)
    done = failed = 0
    for trial, outcome in run_parallel(missing, attempt, workers=options.jobs, deadline=deadline):
        if isinstance(outcome, str):
            print(f"{trial.label} failed: {outcome}", file=sys.stderr, flush=True)
            failed += 1
            continue
        done += 1
        append_record(results, outcome)
        print(f"[{done}/{len(missing)}] {trial.label}: {outcome['summary']}, {outcome['seconds']:.0f} s", flush=True)
    if done < len(missing):
        print(f"{len(missing) - done} trials are not done; run the same command again", flush=True)
    return failed


def records_of(trials: Sequence[Any], results: Path, *, settings: Settings = asdict) -> list[Record]:
    """Return the latest stored record of each of these trials."""
    return list(answers(trials, read_records(results), settings=settings).values())


def answers(trials: Sequence[Any], records: Sequence[Record], *, settings: Settings = asdict) -> dict[Any, Record]:
    """Map each trial that has records to the latest of them."""
    names = list(settings(trials[0])) if trials else []
    latest = {_key({name: record.get(name) for name in names}): record for record in records}
    wanted = {trial: latest.get(_key(settings(trial))) for trial in trials}
    return {trial: record for trial, record in wanted.items() if record is not None}


def run_context(options: argparse.Namespace) -> RunContext:
    """Return the context that the options describe."""
    folders = [getattr(options, name, None) for name in ("checkpoints", "models_dir")]
    for folder in folders:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    return RunContext(options.device, options.data_dir, current_commit(), command_line(options), *folders)


def command_line(options: argparse.Namespace) -> str:
    """Return the command that was run, without the folders of this machine."""
    words = [Path(word).name if os.path.isabs(word) else word for word in getattr(options, "command", ())]
    return f"python -m benchmarks {shlex.join(words)}"


def _attempt(trial: Any, work: Work, context: RunContext, settings: Settings) -> Record | str:
    try:
        device = resolve_device(context.device)
        started = time.perf_counter()
        # Weights, dropout and slots draw from torch's global generator.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(trial.seed)
            result = work(trial, context)
        seconds = round(time.perf_counter() - started, 1)
        machine = describe(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    origin = {"commit": context.commit, "command": context.command, "torch": machine["torch"]}
    return {**settings(trial), "seconds": seconds, "device": machine["device"], **result, **origin}


def _key(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    # Tuples come back from a file as lists.
    return tuple(tuple(value) if isinstance(value, list) else value for value in settings.values())

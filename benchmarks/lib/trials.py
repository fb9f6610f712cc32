"""Trials: runs of an experiment with different settings, in parallel, and a file that a killed run goes on from.

A trial is a frozen dataclass with all that shapes its result, so that what was stored for other settings never counts.
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
from benchmarks.lib.device import resolve_device
from benchmarks.lib.machine import describe
from benchmarks.lib.parallel import outcomes
from benchmarks.lib.records import Place, Record, append_record, current_commit, read_records
from setgrad.errors import OptionError, unknown_name

# From settings and place to what was found. It goes to other processes, so it must be a function of a module.
Work = Callable[[Any, Place], Record]


def add_trial_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add what every benchmark of trials can be told."""
    add_run_options(parser, seeds=seeds, seed="seeds", unit="trial")
    parser.add_argument("--table", type=Path, metavar="FILE", help="show this file of results and run nothing")


def add_run_options(parser: argparse.ArgumentParser, *, seeds: int, seed: str, unit: str) -> None:
    """Add how many to run, where, and where results go; `seed` and `unit` are the words for them."""
    parser.add_argument("--seeds", type=int, default=seeds, help=f"{seed} 0, 1, ... (default: {seeds})")
    parser.add_argument("--jobs", type=int, default=1, help=f"{unit}s at a time, each with one thread (default: 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--data-dir", help="folder of the data files (default: the variable SETGRAD_DATA)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON-lines file to append to and go on from")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help=f"start no new {unit} after this time")


def chosen(text: str, known: Collection[str], kind: str) -> list[str]:
    """Names given on the command line, all of them known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return names


@contextmanager
def results_file(options: argparse.Namespace, usual: Path) -> Iterator[Path]:
    """Where results go: what was asked for, else the usual file, else for a quick run a folder that is removed."""
    if options.table is not None:
        if not options.table.is_file():
            raise OptionError(f"there is no file {options.table}; --table takes what --results wrote")
        yield options.table
    elif options.quick and options.results is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / usual.name
    else:
        yield options.results or usual


def run_and_show(
    options: argparse.Namespace,
    trials: Sequence[Any],
    work: Work,
    usual: Path,
    *,
    page: Callable[[list[Record]], str],
    folders: Mapping[str, str] | None = None,
    draw: Callable[[list[Record], Path], object] | None = None,
) -> dict[str, Any]:
    """Run the trials that the file lacks, then print and write the page of all, and draw what is kept.

    `folders` names those of the data, with what is in them: one that is missing is an error before any work.
    """
    with results_file(options, usual) as results:
        failed = 0
        if options.table is None:
            for folder, holds in (folders or {}).items():
                data_folder(options.data_dir, folder, holds)
            failed = run_trials(trials, work, options, results)
        records = records_of(trials, options, results)
        show_page(page(records), records, options, results)
        if draw is not None and not options.quick:
            draw(records, results)
    return {"records": records, "failed": failed}


def run_trials(trials: Sequence[Any], work: Work, options: argparse.Namespace, results: Path) -> int:
    """Run the trials that the file lacks, in the given order, and append what they find. Returns how many failed."""
    known = [_settings(record, trials[0]) for record in read_records(results)] if trials else []
    missing = [trial for trial in trials if asdict(trial) not in known]
    print(
        f"{len(trials) - len(missing)} of {len(trials)} trials are in {results.name}; {len(missing)} to go", flush=True
    )
    place = Place(options.device, options.data_dir, current_commit(), command_line(options))
    ends = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    done = failed = 0
    for trial, found in outcomes(missing, partial(_attempt, work=work, place=place), workers=options.jobs, ends=ends):
        if isinstance(found, str):
            print(f"{trial} failed: {found}", file=sys.stderr, flush=True)
            failed += 1
            continue
        done += 1
        append_record(results, found)
        print(f"[{done}/{len(missing)}] {trial.label}: {found['said']}, {found['seconds']:.0f} s", flush=True)
    return failed


def records_of(trials: Sequence[Any], options: argparse.Namespace, results: Path) -> list[Record]:
    """Stored results of these trials; with --table of all that the file holds."""
    stored = read_records(results)
    if options.table is not None:
        return stored
    wanted = [asdict(trial) for trial in trials]
    return [record for record in stored if trials and _settings(record, trials[0]) in wanted]


def show_page(text: str, records: Sequence[Record], options: argparse.Namespace, results: Path) -> None:
    """Print a page with the commands that gave it; write it beside the results unless they were quick ones."""
    page = f"{text}\n\n{origins(records)}\n"
    print(f"\n{page}", end="", flush=True)
    if records and not options.quick:
        results.with_suffix(".md").write_text(page, encoding="utf-8")


def origins(records: Sequence[Record]) -> str:
    """The commands, commits and devices that gave the results."""
    names = ("command", "commit", "device", "torch")
    found = sorted({tuple(record[name] for name in names) for record in records})
    return "\n".join("- `{}` at {}, {}, torch {}".format(*origin) for origin in found)


def _attempt(trial: Any, work: Work, place: Place) -> Record | str:
    try:
        device = resolve_device(place.device)
        started = time.perf_counter()
        # Weights, dropout and slots draw from torch's own generator.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(trial.seed)
            found = work(trial, place)
        seconds = time.perf_counter() - started
        machine = describe(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    origin = {"commit": place.commit, "command": place.command, "device": machine["device"], "torch": machine["torch"]}
    return {**asdict(trial), **found, "seconds": round(seconds, 1), **origin}


def _settings(record: Record, like: Any) -> Record:
    # Tuples come back from a file as lists.
    return {name: tuple(v) if isinstance(v := record.get(name), list) else v for name in asdict(like)}


def command_line(options: argparse.Namespace) -> str:
    """What was asked for, without the folders of this machine."""
    words = [Path(word).name if os.path.isabs(word) else word for word in getattr(options, "command", ())]
    return f"python -m benchmarks {shlex.join(words)}"

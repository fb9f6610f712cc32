"""Many fits: what one is, how to run them in parallel, and a file of results that a killed run goes on from."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from setgrad import SubsetSelector, datasets

Record = dict[str, Any]

# The contenders, by the name of their column. Each takes a seed, a device and the number of epochs (None: the usual).
MODELS: dict[str, Callable[..., SubsetSelector]] = {
    "paper": SubsetSelector.paper,
    "default": SubsetSelector,
    "direct": lambda **options: SubsetSelector(method="direct", **options),
}
# Rough cost of an epoch's worth of sets, relative to the paper's model: only used to start long fits first.
_COST = {"paper": 1.0, "default": 2.5, "direct": 2.0}
_QUICK_SETS = 24


@final
@dataclass(frozen=True)
class Job:
    """One fit. The data are the same for all seeds; the seed decides weights, batches and samples."""

    task: str
    model: str
    seed: int
    quick: bool = False


@final
@dataclass(frozen=True)
class Place:
    """Where fits run and where their data are."""

    device: str | None = None
    data_dir: str | None = None


def make_selector(job: Job, place: Place) -> SubsetSelector:
    """The untrained selector of a job."""
    options: dict[str, Any] = {"random_state": job.seed, "device": place.device, "verbose": 0}
    if job.quick:
        options |= {"width": 16, "hidden": (16,), "max_epochs": 2}
    return MODELS[job.model](**options)


def fit(job: Job, place: Place) -> Record:
    """Fit, score on the test split, and say how it went. Scores are percentages."""
    counts = dict.fromkeys(("n_train", "n_validation", "n_test"), _QUICK_SETS if job.quick else None)
    task = datasets.load(job.task, data_dir=place.data_dir, **counts)
    selector = make_selector(job, place)
    started = time.perf_counter()
    selector.fit(*task.train, validation=task.validation)
    seconds = time.perf_counter() - started
    return {
        **asdict(job),
        "true_size": 100 * selector.score_true_size(*task.test),
        "own_size": 100 * selector.score(*task.test),
        "seconds": round(seconds, 2),
        "best_epoch": selector.best_epoch_,
        "epochs": len(selector.history_),
        "options": describe_options(job),
        "device": next(selector.model_.parameters()).device.type,
        "torch": torch.__version__,
    }


def describe_options(job: Job) -> str:
    """All options that shape the result: when a default changes, stored results of the old one no longer count."""
    free = ("random_state", "device", "verbose", "checkpoint")
    options = {k: v for k, v in make_selector(job, Place()).get_params().items() if k not in free}
    return json.dumps(options, sort_keys=True, default=str)


def expected_cost(job: Job, sets: int) -> float:
    """A number that is larger for fits that take longer."""
    return sets * _COST[job.model]


def read_records(path: Path) -> list[Record]:
    """Stored results. A line that was cut off when the run was killed is dropped."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: a damaged line is left out: {line[:60]!r}", file=sys.stderr)
    return records


def unfinished(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    """The jobs that no stored result answers."""
    names = ("task", "model", "seed", "quick", "options")
    done = {tuple(record.get(name) for name in names) for record in records}
    return [job for job in jobs if (*asdict(job).values(), describe_options(job)) not in done]


def run_jobs(jobs: Sequence[Job], place: Place, *, workers: int, results: Path, time_limit: float | None) -> int:
    """Run fits in the given order and append each result to the file as it comes. No new fit starts after the limit.

    A fit that fails is reported and left out, so that the next run tries it again. Returns how many failed.
    """
    done = failed = 0
    ends = time.monotonic() + time_limit if time_limit is not None else float("inf")
    for job, outcome in _in_turn(jobs, place, ends) if workers <= 1 else _in_parallel(jobs, place, ends, workers):
        name = f"{job.task} {job.model} seed {job.seed}"
        if isinstance(outcome, str):
            print(f"{name} failed: {outcome}", file=sys.stderr, flush=True)
            failed += 1
            continue
        done += 1
        _append(results, outcome)
        scores = f"true size {outcome['true_size']:.2f}, own size {outcome['own_size']:.2f}"
        progress = f"[{done}/{len(jobs)}]"
        print(f"{progress} {name}: {scores}, {outcome['seconds']:.0f} s, epoch {outcome['best_epoch']}", flush=True)
    if done < len(jobs):
        print(f"{len(jobs) - done} of {len(jobs)} fits are still to be done; run the same command again", flush=True)
    return failed


# A record, or what went wrong.
Outcome = tuple[Job, Record | str]


def _in_turn(jobs: Sequence[Job], place: Place, ends: float) -> Iterator[Outcome]:
    for job in jobs:
        if time.monotonic() >= ends:
            return
        yield job, _attempt(job, place)


def _in_parallel(jobs: Sequence[Job], place: Place, ends: float, workers: int) -> Iterator[Outcome]:
    queue = list(reversed(jobs))
    running: dict[Future[Record | str], Job] = {}
    # CUDA does not survive a fork, so workers are started afresh.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        while True:
            while queue and len(running) < workers and time.monotonic() < ends:
                job = queue.pop()
                running[pool.submit(_attempt, job, place)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _attempt(job: Job, place: Place) -> Record | str:
    try:
        return fit(job, place)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _start_worker() -> None:
    torch.set_num_threads(1)


def _append(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left half a line; the new record must not be glued to it.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if broken else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())

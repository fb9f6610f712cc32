"""Many fits: what one is, how to run them in parallel, and a file of results that a killed run goes on from."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from benchmarks._inference import score_selector
from benchmarks._machine import describe as machine
from benchmarks._machine import forget_peak, memory_peak
from benchmarks._machine import wait as wait_for
from benchmarks._models import cost_of, describe, make_selector, options_of
from benchmarks._plain import BASELINES, score_baseline
from benchmarks._tasks import load_split, work_of
from setgrad.selector import resolve_device

Record = dict[str, Any]


@final
@dataclass(frozen=True)
class Job:
    """One fit. The seed decides weights, batches and samples, and where the data are cut into folds, which fold it is.

    `tuned` is a point of the model's grid in JSON, from a search; empty for the options as they are.
    """

    task: str
    model: str
    seed: int
    quick: bool = False
    splits: str = "published"
    tuned: str = ""


@final
@dataclass(frozen=True)
class Place:
    """Where fits run, where their data are, where unfinished ones are kept, and what to write beside every result."""

    device: str | None = None
    data_dir: str | None = None
    commit: str = ""
    command: str = ""
    checkpoints: Path | None = None

    def checkpoint_of(self, job: Job) -> Path | None:
        """The file that a fit is kept in until it is done, if any; fits with other options have other files."""
        if self.checkpoints is None:
            return None
        mark = hashlib.sha256(describe_options(job).encode()).hexdigest()[:8]
        name = f"{job.task}-{job.model}-{job.seed}-{job.splits}".replace(":", "-")
        return self.checkpoints / f"{name}{'-quick' if job.quick else ''}-{mark}.safetensors"


def fit(job: Job, place: Place) -> Record:
    """Fit, score on the test split, and say how it went. Scores are percentages, memory is in bytes.

    A fit that may have been gone on with took as long as its epochs did.
    """
    task = load_split(job.task, splits=job.splits, number=job.seed, data_dir=place.data_dir, quick=job.quick)
    origin = {"torch": torch.__version__, "commit": place.commit, "command": place.command}
    if job.model in BASELINES:
        scores = score_baseline(job.model, task, job.seed)
        return {**asdict(job), "options": describe_options(job), **scores, "seconds": 0.0, "device": "none", **origin}
    device = resolve_device(place.device)
    options = options_of(job.model, job.task, quick=job.quick, tuned=_tuned(job))
    checkpoint = place.checkpoint_of(job)
    selector = make_selector({**options, "checkpoint": checkpoint}, seed=job.seed, device=place.device)
    # What the last fit of this process left behind must not count, nor the start of CUDA in a new one.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.init()
    forget_peak(device)
    started = time.perf_counter()
    selector.fit(*task.train, validation=task.validation)
    wait_for(device)
    fitted = time.perf_counter()
    seconds = fitted - started if checkpoint is None else sum(epoch["seconds"] for epoch in selector.history_)
    peak = memory_peak(device)
    best = selector.history_[max(0, selector.best_epoch_ - 1)]
    found = score_selector(selector, task.test)
    return {
        **asdict(job),
        "options": describe_options(job),
        **found,
        "validation": 100 * best["validation_jaccard"],
        "seconds": round(seconds, 2),
        "test_seconds": round(time.perf_counter() - fitted, 2),
        "peak_memory": peak,
        "best_epoch": selector.best_epoch_,
        "epochs": len(selector.history_),
        "settled": best["converged"],
        "device": machine(device)["device"],
        **origin,
    }


def describe_options(job: Job) -> str:
    """All options that shape the result: when a default changes, stored results of the old one no longer count."""
    if job.model in BASELINES:
        return json.dumps({"baseline": job.model})
    return describe(options_of(job.model, job.task, quick=job.quick, tuned=_tuned(job)))


def expected_cost(job: Job) -> float:
    """A number that is larger for fits that take longer."""
    return work_of(job.task) * cost_of(job.model)


def current_commit() -> str:
    """The commit of the checkout, with a plus if files differ from it; SETGRAD_COMMIT where there is no git."""
    named = os.environ.get("SETGRAD_COMMIT")
    if named:
        return named
    try:
        ask = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        commit = ask(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = ask(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _tuned(job: Job) -> dict[str, Any]:
    return json.loads(job.tuned) if job.tuned else {}


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
    done = {_key(record, record.get("options")) for record in records}
    return [job for job in jobs if _key(asdict(job), describe_options(job)) not in done]


def belongs(jobs: Sequence[Job]) -> Callable[[Record], bool]:
    """Whether a record answers one of the jobs, whatever its options."""
    wanted = {_key(asdict(job), None) for job in jobs}
    return lambda record: _key(record, None) in wanted


def _key(record: Mapping[str, Any], options: str | None) -> tuple[Any, ...]:
    return (*(record.get(name) for name in ("task", "model", "seed", "quick", "splits")), options)


def run_jobs(jobs: Sequence[Job], place: Place, *, workers: int, results: Path, time_limit: float | None) -> int:
    """Run fits in the given order and append each result to the file as it comes. No new fit starts after the limit.

    A fit that fails is reported and left out, so that the next run tries it again. Returns how many failed.
    """
    done = failed = 0
    ends = time.monotonic() + time_limit if time_limit is not None else math.inf
    for job, outcome in outcomes(jobs, partial(_attempt, place=place), workers=workers, ends=ends):
        name = f"{job.task} {job.model} {'fold' if job.splits == 'folds' else 'seed'} {job.seed}"
        if isinstance(outcome, str):
            print(f"{name} failed: {outcome}", file=sys.stderr, flush=True)
            failed += 1
            continue
        done += 1
        append_record(results, outcome)
        checkpoint = place.checkpoint_of(job)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        scores = f"true size {outcome['true_size']:.2f}, own size {outcome['own_size']:.2f}"
        how = f", {outcome['seconds']:.0f} s, epoch {outcome['best_epoch']}" if outcome["seconds"] else ""
        print(f"[{done}/{len(jobs)}] {name}: {scores}{how}", flush=True)
    if done < len(jobs):
        print(f"{len(jobs) - done} of {len(jobs)} fits are still to be done; run the same command again", flush=True)
    return failed


# What is done for a job: a record, or what went wrong. Goes to other processes, so it must be a function of a module.
Work = Callable[[Job], Record | str]


def outcomes(jobs: Sequence[Job], work: Work, *, workers: int, ends: float) -> Iterator[tuple[Job, Record | str]]:
    """Do the work for all jobs, in order, several at a time; none starts after the time `ends`."""
    return _in_turn(jobs, work, ends) if workers <= 1 else _in_parallel(jobs, work, ends, workers)


def _in_turn(jobs: Sequence[Job], work: Work, ends: float) -> Iterator[tuple[Job, Record | str]]:
    for job in jobs:
        if time.monotonic() >= ends:
            return
        yield job, work(job)


def _in_parallel(jobs: Sequence[Job], work: Work, ends: float, workers: int) -> Iterator[tuple[Job, Record | str]]:
    queue = list(reversed(jobs))
    running: dict[Future[Record | str], Job] = {}
    # CUDA does not survive a fork, so workers are started afresh.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, max(1, len(jobs))), mp_context=context, initializer=_start_worker) as pool:
        while True:
            while queue and len(running) < workers and time.monotonic() < ends:
                job = queue.pop()
                running[pool.submit(work, job)] = job
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


def append_record(path: Path, record: Record) -> None:
    """Add a line to a file of results, and see to it that it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left half a line; the new record must not be glued to it.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if broken else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())

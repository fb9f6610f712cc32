"""Many fits: what one is, how to run them in parallel, and a file of results that a killed run goes on from."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.lib.device import resolve_device
from benchmarks.lib.machine import describe as machine
from benchmarks.lib.machine import forget_peak, memory_peak
from benchmarks.lib.machine import wait as wait_for
from benchmarks.lib.parallel import outcomes
from benchmarks.lib.records import Place, Record, append_record
from benchmarks.selection.baselines import BASELINES, score_baseline
from benchmarks.selection.inference import score_selector
from benchmarks.selection.models import cost_of, describe, make_selector, options_of
from benchmarks.selection.tasks import load_split, work_of


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
    checkpoint = checkpoint_of(job, place)
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
        "settled": best["settled"],
        "device": machine(device)["device"],
        **origin,
    }


def checkpoint_of(job: Job, place: Place) -> Path | None:
    """The file that a fit is kept in until it is done, if any; fits with other options have other files."""
    if place.checkpoints is None:
        return None
    mark = hashlib.sha256(describe_options(job).encode()).hexdigest()[:8]
    name = f"{job.task}-{job.model}-{job.seed}-{job.splits}".replace(":", "-")
    return place.checkpoints / f"{name}{'-quick' if job.quick else ''}-{mark}.safetensors"


def describe_options(job: Job) -> str:
    """All options that shape the result: when a default changes, stored results of the old one no longer count."""
    if job.model in BASELINES:
        return json.dumps({"baseline": job.model})
    return describe(options_of(job.model, job.task, quick=job.quick, tuned=_tuned(job)))


def expected_cost(job: Job) -> float:
    """A number that is larger for fits that take longer."""
    return work_of(job.task) * cost_of(job.model)


def _tuned(job: Job) -> dict[str, Any]:
    return json.loads(job.tuned) if job.tuned else {}


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
        checkpoint = checkpoint_of(job, place)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        scores = f"true size {outcome['true_size']:.2f}, own size {outcome['own_size']:.2f}"
        how = f", {outcome['seconds']:.0f} s, epoch {outcome['best_epoch']}" if outcome["seconds"] else ""
        print(f"[{done}/{len(jobs)}] {name}: {scores}{how}", flush=True)
    if done < len(jobs):
        print(f"{len(jobs) - done} of {len(jobs)} fits are still to be done; run the same command again", flush=True)
    return failed


def _attempt(job: Job, place: Place) -> Record | str:
    try:
        return fit(job, place)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

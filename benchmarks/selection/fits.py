"""One fit of a selector or baseline on one split of a task, and its record."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.lib.machine import describe as describe_machine
from benchmarks.lib.machine import memory_peak, reset_peak, synchronize
from benchmarks.lib.records import Record, RunContext
from benchmarks.selection.baselines import BASELINES, score_baseline
from benchmarks.selection.fitted import model_folder
from benchmarks.selection.inference import score_selector
from benchmarks.selection.models import cost_of, describe, make_selector, options_of
from benchmarks.selection.tasks import load_split, work_of
from setgrad.selector import resolve_device


@final
@dataclass(frozen=True)
class Job:
    """One fit. The seed sets weights, batches and samples and, where data are cut into folds, the fold.

    `tuned` is a point of the model's grid in JSON; it is empty for the usual options.
    """

    task: str
    model: str
    seed: int
    quick: bool = False
    splits: str = "published"
    tuned: str = ""

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task} {self.model} {'fold' if self.splits == 'folds' else 'seed'} {self.seed}"


def settings_of(job: Job) -> Record:
    """Return the settings that a record must have to answer the job: if a default changes, old records do not count."""
    names = ("task", "model", "seed", "quick", "splits")
    return {**{name: getattr(job, name) for name in names}, "options": describe_options(job)}


def fit(job: Job, context: RunContext) -> Record:
    """Fit, score on the test split, and return the record. Scores are percentages, memory is in bytes.

    With checkpoints the seconds are the sum over epochs, because a fit may have been resumed.
    """
    task = load_split(job.task, splits=job.splits, number=job.seed, data_dir=context.data_dir, quick=job.quick)
    if job.model in BASELINES:
        started = time.perf_counter()
        scores = score_baseline(job.model, task, job.seed)
        seconds = round(time.perf_counter() - started, 2)
        return {"tuned": job.tuned, **scores, "seconds": seconds, "device": "none", "summary": _summary(scores)}
    device = resolve_device(context.device)
    options = options_of(job.model, job.task, quick=job.quick, tuned=_tuned(job))
    checkpoint = None if context.checkpoints is None else checkpoint_of(job, context.checkpoints)
    selector = make_selector({**options, "checkpoint": checkpoint}, seed=job.seed, device=context.device)
    # Memory of the last fit of this process must not count, nor the start of CUDA in a new one.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.init()
    reset_peak(device)
    started = time.perf_counter()
    selector.fit(*task.train, validation=task.validation)
    synchronize(device)
    fitted = time.perf_counter()
    seconds = fitted - started if checkpoint is None else sum(epoch["seconds"] for epoch in selector.history_)
    peak = memory_peak(device)
    folder = model_folder(options, f"{job.task}-{job.splits}", seed=job.seed, context=context)
    if folder is not None:
        selector.save(folder)
    best = selector.history_[max(0, selector.best_epoch_ - 1)]
    test_scores = score_selector(selector, task.test)
    return {
        "tuned": job.tuned,
        **test_scores,
        "validation": 100 * best["validation_jaccard"],
        "seconds": round(seconds, 2),
        "test_seconds": round(time.perf_counter() - fitted, 2),
        "peak_memory": peak,
        "best_epoch": selector.best_epoch_,
        "epochs": len(selector.history_),
        "share_converged": best["converged"],
        "device": describe_machine(device)["device"],
        "summary": f"{_summary(test_scores)}, epoch {selector.best_epoch_}",
    }


def checkpoint_of(job: Job, folder: Path) -> Path:
    """Return the file of an unfinished fit; fits with other options have other files."""
    digest = hashlib.sha256(describe_options(job).encode()).hexdigest()[:8]
    name = f"{job.task}-{job.model}-{job.seed}-{job.splits}".replace(":", "-")
    return folder / f"{name}{'-quick' if job.quick else ''}-{digest}.safetensors"


def describe_options(job: Job) -> str:
    """Return all options that shape the result, as JSON."""
    if job.model in BASELINES:
        return json.dumps({"baseline": job.model})
    return describe(options_of(job.model, job.task, quick=job.quick, tuned=_tuned(job)))


def expected_cost(job: Job) -> float:
    """Return a number that is larger for fits that take longer."""
    return work_of(job.task) * cost_of(job.model)


def _tuned(job: Job) -> dict[str, Any]:
    return json.loads(job.tuned) if job.tuned else {}


def _summary(scores: Record) -> str:
    return f"true size {scores['true_size']:.2f}, own size {scores['own_size']:.2f}"

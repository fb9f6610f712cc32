"""Fitted selectors that several benchmarks share, so that one fit answers all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from benchmarks.lib.records import RunContext
from benchmarks.selection.models import Options, describe, make_selector
from setgrad import SubsetSelector, load
from setgrad.datasets import Task


def fit_or_load(task: Task, options: Options, name: str, *, seed: int, context: RunContext) -> SubsetSelector:
    """Return a selector that is fitted to a task, from the folder of fitted models if it is there.

    Args:
        task: The data.
        options: All options of the selector that are not defaults.
        name: Name of the task, with its split.
        seed: Seed of the fit.
        context: Device and folders of the run.
    """
    folder = model_folder(options, name, seed=seed, context=context)
    if folder is not None and folder.exists():
        return load(folder, device=context.device)
    selector = make_selector(options, seed=seed, device=context.device)
    selector.fit(*task.train, validation=task.validation)
    if folder is not None:
        selector.save(folder)
    return selector


def model_folder(options: Options, name: str, *, seed: int, context: RunContext) -> Path | None:
    """Return where a fitted selector is saved: a folder for each task, options, seed, device and commit."""
    if context.models is None:
        return None
    words = json.dumps([name, describe(options), seed, context.device, context.commit])
    return context.models / f"{name.replace(':', '-')}-{seed}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"

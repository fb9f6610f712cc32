"""Fits on a GPU: their time, the kernels that they launch, and how long the GPU waits.

Claims checked: replayed steps leave the GPU idle for less of an epoch, and a fit takes less time.

The default of a GPU (eight members) and one member, with steps that are replayed as CUDA graphs ("replayed", as the
default does where batches have one shape) and without ("launched", as every step was before). The time of a fit is
whole, with validation and calibration; on a million rows it has three epochs. Launches, questions to the GPU and the
idle share are of the second epoch, with its validation, by torch's profiler, which slows the host down: without it the
GPU waits less. A launch of a graph counts as one.

Run it alone on the GPU.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import setgrad.selector._stacked_weights as stacked_weights
from benchmarks.lib.machine import announce, synchronize
from benchmarks.lib.tables import format_seconds, table
from benchmarks.selection.models import MEMBERS
from benchmarks.speed.members_speed import NEVER
from benchmarks.speed.speed_tasks import load_speed_task, make_table
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.selector import resolve_device

TOYS, MILLION = "amazon:toys:farthest", "million rows"
_SETS, _FEATURES, _EPOCHS = 33_334, 8, 3
WAYS = ("replayed", "launched")
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--data-dir", help="folder of the data files (default: the variable SETGRAD_DATA)")
    parser.add_argument("--tasks", default=f"{TOYS},{MILLION}", help=f"default: {TOYS},{MILLION}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = resolve_device(options.device)
    machine = announce(device)
    rows = []
    for name in options.tasks.split(","):
        task = load(name, options)
        for members in (2,) if options.quick else (MEMBERS, 1):
            rows += [measure(name, task, members, way, device, quick=options.quick) for way in WAYS]
            show(rows[-len(WAYS) :])
    print()
    show(rows)
    return {"machine": machine, "rows": rows}


def load(name: str, options: argparse.Namespace) -> Task:
    """Return a task by name."""
    if name != MILLION:
        return load_speed_task(name, options.data_dir, quick=options.quick)
    counts = (90, 30, 30) if options.quick else (_SETS, 1000, 1000)
    train, validation, test = (make_table(some, seed, _FEATURES) for seed, some in enumerate(counts, 1))
    return Task(name, "", train, validation, test, "drawn here")


def measure(name: str, task: Task, members: int, way: str, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Return the time and the scores of a fit, and what its second epoch asks of the GPU."""
    few: dict[str, Any] = {"dim": 16, "hidden": (16,)} if quick else {}
    make = partial(SubsetSelector, members=members, random_state=0, device=str(device), verbose=0, **few)
    with training(way):
        make(max_epochs=1).fit(*task.train, validation=task.validation)
        synchronize(device)
        started = time.perf_counter()
        selector = make(max_epochs=_EPOCHS if name == MILLION else None)
        selector.fit(*task.train, validation=task.validation)
        synchronize(device)
        seconds = time.perf_counter() - started
        asked = second_epoch(make(max_epochs=2), task)
    batch_size = selector.options_.batch_size
    assert batch_size is not None
    steps = math.ceil(len(task.train.sets) / batch_size)
    epochs = [record["seconds"] for record in selector.history_]
    return {
        "task": name,
        "members": members,
        "way": way,
        "seconds": seconds,
        "epochs": len(epochs),
        "epoch_seconds": sum(epochs) / len(epochs),
        "true_size": 100 * selector.score_true_size(*task.test),
        "own_size": 100 * selector.score(*task.test),
        "steps": steps,
        **asked,
    }


@contextmanager
def training(way: str) -> Iterator[None]:
    """Let steps be replayed as CUDA graphs, or not."""
    usual = stacked_weights.CUDAGraphReplay
    if way == "launched":
        stacked_weights.CUDAGraphReplay = partial(usual, warm_up=NEVER)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        stacked_weights.CUDAGraphReplay = usual  # type: ignore[misc]


def second_epoch(selector: SubsetSelector, task: Task) -> dict[str, Any]:
    """Return launches, kernels and questions of the second epoch, and the share of its time in which no kernel ran."""
    if not torch.cuda.is_available():
        return {"launches": None, "kernels": None, "waits": None, "idle": None}
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def noted(record: dict[str, float]) -> None:
        torch.cuda.synchronize()
        (profiler.start if record["epoch"] == 1 else profiler.stop)()

    selector.fit(*task.train, validation=task.validation, callback=noted)
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = profiler.profiler.kineto_results.events()
    kernels = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    begin = min(event.start_ns() for event in kernels)
    end = max(event.start_ns() + event.duration_ns() for event in kernels)
    names = [event.name() for event in events if event.device_type() == torch.autograd.DeviceType.CPU]
    return {
        "launches": sum(name.startswith(_LAUNCHES) for name in names),
        "kernels": len(kernels),
        "waits": sum(name in _WAITS for name in names),
        "idle": 1 - sum(event.duration_ns() for event in kernels) / (end - begin),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    heads = ["task", "members", "steps", "fit", "epochs", "an epoch", "true / own size"]
    heads += ["launches a step", "kernels a step", "questions an epoch", "idle"]
    cells = []
    for row in rows:
        times = [format_seconds(row["seconds"]), str(row["epochs"]), format_seconds(row["epoch_seconds"])]
        asked = ["-"] * 4
        if row["launches"] is not None:
            of_steps = [f"{row[name] / row['steps']:.1f}" for name in ("launches", "kernels")]
            asked = [*of_steps, str(row["waits"]), f"{100 * row['idle']:.0f} %"]
        scores = f"{row['true_size']:.1f} / {row['own_size']:.1f}"
        cells.append([row["task"], str(row["members"]), row["way"], *times, scores, *asked])
    print(table(heads, cells), flush=True)

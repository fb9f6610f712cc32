"""Run jobs one after the other, or in several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

import torch

from benchmarks.lib.records import Record

Job = TypeVar("Job")
# A record, or the text of an error. Other processes must be able to import the function.
Outcome = Record | str


def run_parallel(
    jobs: Sequence[Job], work: Callable[[Job], Outcome], *, workers: int, deadline: float
) -> Iterator[tuple[Job, Outcome]]:
    """Yield each job with its outcome as it finishes. Jobs start in the given order, none after `deadline`."""
    return _run_serial(jobs, work, deadline) if workers <= 1 else _run_processes(jobs, work, deadline, workers)


def _run_serial(jobs: Sequence[Job], work: Callable[[Job], Outcome], deadline: float) -> Iterator[tuple[Job, Outcome]]:
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        yield job, work(job)


def _run_processes(
    jobs: Sequence[Job], work: Callable[[Job], Outcome], deadline: float, workers: int
) -> Iterator[tuple[Job, Outcome]]:
    queue = list(reversed(jobs))
    running: dict[Future[Outcome], Job] = {}
    # CUDA does not survive a fork, so workers are spawned.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, max(1, len(jobs))), mp_context=context, initializer=_start_worker) as pool:
        while True:
            while queue and len(running) < workers and time.monotonic() < deadline:
                job = queue.pop()
                running[pool.submit(work, job)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _start_worker() -> None:
    torch.set_num_threads(1)

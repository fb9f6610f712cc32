"""Run jobs one after the other or in several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import torch

from benchmarks.lib.records import Record

# What is done for a job: a record, or what went wrong. Goes to other processes, so it must be a function of a module.
Work = Callable[[Any], Record | str]


def outcomes(jobs: Sequence[Any], work: Work, *, workers: int, ends: float) -> Iterator[tuple[Any, Record | str]]:
    """Do the work for all jobs, in order, several at a time; none starts after the time `ends`."""
    return _in_turn(jobs, work, ends) if workers <= 1 else _in_parallel(jobs, work, ends, workers)


def _in_turn(jobs: Sequence[Any], work: Work, ends: float) -> Iterator[tuple[Any, Record | str]]:
    for job in jobs:
        if time.monotonic() >= ends:
            return
        yield job, work(job)


def _in_parallel(jobs: Sequence[Any], work: Work, ends: float, workers: int) -> Iterator[tuple[Any, Record | str]]:
    queue = list(reversed(jobs))
    running: dict[Future[Record | str], Any] = {}
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


def _start_worker() -> None:
    torch.set_num_threads(1)

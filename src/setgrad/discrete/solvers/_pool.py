"""Solvers that run on the CPU, one instance at a time: a worker pool, and the conversion of their results."""

from __future__ import annotations

import atexit
import importlib
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import SolverResult
from setgrad.errors import MissingDependencyError, OptionError, SolverError

Array = npt.NDArray[np.float64]
Item = TypeVar("Item")
Result = TypeVar("Result")

# Values within this distance of a whole number are rounded to it: some solvers compute in single precision.
INTEGER_TOLERANCE = 1e-4
# Marks the threads that belong to a pool.
_thread = threading.local()


@final
@dataclass(frozen=True)
class WorkerPool:
    """Workers for solvers that take one instance at a time. Pools with equal options share their workers.

    Args:
        workers: The number of workers; None for one for each core, 1 for no pool.
        processes: Use processes instead of threads. SciPy, HiGHS and OR-Tools run in parallel in threads. A function in
            plain Python needs processes, and must then be importable in a new one: no lambda, and a script runs its
            code under `if __name__ == "__main__":`.

    Raises:
        OptionError: If workers is below 1.

    Examples:
        >>> WorkerPool(2).map(abs, [-1, 2, -3])
        [1, 2, 3]
    """

    workers: int | None = None
    processes: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be 1 or more, or None for one for each core, got {self.workers}")

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return fn(item) for all items, in their order. A call from within a worker runs in that worker.

        Raises:
            SolverError: If a worker process was killed. The pool can be used again.
        """
        items = list(items)
        workers = self.workers or os.cpu_count() or 1
        # Workers that wait for other workers would block for ever once all of them do.
        if workers == 1 or len(items) < 2 or getattr(_thread, "is_worker", False):
            return _map_chunk(fn, items)
        # A few chunks for each worker: handing over a small problem costs more than solving it.
        size = math.ceil(len(items) / (4 * workers))
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        try:
            results = _executor(workers, self.processes, os.getpid()).map(partial(_map_chunk, fn), chunks)
            return [result for chunk in results for result in chunk]
        except BrokenExecutor as error:
            # The others were ended too; the next call starts new ones.
            _executor.cache_clear()
            raise SolverError(
                f"a worker process ended before its work was done ({error}); if the system killed it for want of "
                "memory, use fewer workers"
            ) from error


def _map_chunk(fn: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [fn(item) for item in items]


@lru_cache(maxsize=8)
def _executor(workers: int, processes: bool, process: int) -> Executor:
    """Return the executor for these options; `process` keeps a forked process from using its parent's threads."""
    if processes:
        # A fork of a process with running threads may hang.
        return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_process)
    return ThreadPoolExecutor(workers, thread_name_prefix="setgrad-solver", initializer=_mark_worker)


def _mark_worker() -> None:
    _thread.is_worker = True


def _start_process() -> None:
    _mark_worker()
    # A worker whose parent was killed would wait for work forever.
    threading.Thread(target=_end_with_parent, name="setgrad-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Processes must end before the interpreter unloads its modules.
atexit.register(_executor.cache_clear)


def stack_results(results: list[tuple[Array | None, Status]], theta: Tensor) -> SolverResult:
    """Return points and statuses of the instances, in the order of the flat batch, as one result; no point is 0."""
    points = np.array([np.zeros(theta.shape[-1]) if point is None else point for point, _ in results])
    status = torch.tensor([int(status) for _, status in results], dtype=torch.long, device=theta.device)
    return SolverResult(torch.from_numpy(points).to(theta).reshape(theta.shape), status.reshape(theta.shape[:-1]))


def round_points(points: Tensor, dims: int, *, whole: bool) -> SolverResult:
    """Round points to whole numbers, if they must be whole, and return them with the status that follows from them.

    Points that are not whole are FRACTIONAL, those with NaN INFEASIBLE, those with infinity UNBOUNDED.
    """
    rounded = points.round() if whole else points
    flat = points.flatten(points.ndim - dims)
    is_whole = ((rounded - points).abs() <= INTEGER_TOLERANCE).flatten(points.ndim - dims).all(-1)
    status = torch.where(is_whole, Status.SOLVED, Status.FRACTIONAL)
    status = torch.where(flat.isinf().any(-1), Status.UNBOUNDED, status)
    return SolverResult(rounded, torch.where(flat.isnan().any(-1), Status.INFEASIBLE, status))


def to_numpy(values: Tensor) -> Array:
    """Return a tensor as an array of float64."""
    return values.detach().double().cpu().numpy()


def require(module: str) -> Any:
    """Import a module of an optional package; raise a MissingDependencyError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependencyError(f'this solver needs {package}: pip install "setgrad[solvers]"') from error

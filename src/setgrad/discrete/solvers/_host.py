"""Work that the host does instance by instance: a pool of threads or processes, and packages that may be missing."""

from __future__ import annotations

import atexit
import importlib
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import SolverResult
from setgrad.errors import MissingDependencyError, OptionError

Array = npt.NDArray[np.float64]
Item = TypeVar("Item")
Result = TypeVar("Result")

# How far from a whole number an answer may be, and be rounded: solvers answer in single precision too.
WHOLE = 1e-4
# Says on which threads a pool works.
_here = threading.local()


@final
@dataclass(frozen=True)
class HostPool:
    """Workers for solvers that take one instance at a time. Pools of equal options share their workers.

    Args:
        workers: How many; None is one for each core, 1 is no pool at all.
        processes: Processes instead of threads. SciPy, HiGHS and OR-Tools let threads run side by side; a function in
            plain Python needs processes, and must then be importable in a new one: no lambda, and a script keeps what
            it runs under `if __name__ == "__main__":`.

    Example:
        >>> HostPool(2).map(abs, [-1, 2, -3])
        [1, 2, 3]
    """

    workers: int | None = None
    processes: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be 1 or more, or None for one for each core, got {self.workers}")

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items; a worker that gets here does all of it alone."""
        listed = list(items)
        workers = self.workers or os.cpu_count() or 1
        # Workers that wait for workers wait for ever once all of them do.
        if workers == 1 or len(listed) < 2 or getattr(_here, "working", False):
            return [fn(item) for item in listed]
        # A few pieces for each worker: small problems cost less than handing them over.
        size = math.ceil(len(listed) / (4 * workers))
        pieces = [listed[start : start + size] for start in range(0, len(listed), size)]
        done = _executor(workers, self.processes, os.getpid()).map(partial(_each, fn), pieces)
        return [result for piece in done for result in piece]


def _each(fn: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [fn(item) for item in items]


@lru_cache(maxsize=8)
def _executor(workers: int, processes: bool, process: int) -> Executor:
    """One executor for each set of options; `process` keeps a fork from using its parent's threads."""
    if processes:
        # A fork of a process that runs threads may hang.
        return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_working)
    return ThreadPoolExecutor(workers, thread_name_prefix="setgrad-solver", initializer=_begin_working)


def _begin_working() -> None:
    _here.working = True


# Processes must go before the interpreter takes its modules apart.
atexit.register(_executor.cache_clear)


def gather(found: list[tuple[Array | None, Status]], theta: Tensor, dims: int = 1) -> SolverResult:
    """Points and statuses of single instances, in the order of the flat batch, as one result; no point is 0."""
    shape = theta.shape[theta.ndim - dims :]
    points = np.array([np.zeros(shape) if point is None else point for point, _ in found]).reshape(theta.shape)
    status = torch.tensor([int(end) for _, end in found], dtype=torch.long, device=theta.device)
    return SolverResult(torch.from_numpy(points).to(theta), status.reshape(theta.shape[: theta.ndim - dims]))


def to_host(values: Tensor) -> Array:
    """A tensor as an array of float64."""
    return values.detach().double().cpu().numpy()


def need(module: str) -> Any:
    """Import a module of an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependencyError(f'this solver needs {package}: pip install "setgrad[solvers]"') from error

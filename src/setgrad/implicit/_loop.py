"""The one loop that all iterative solvers run in.

It decides when a sample is done, freezes it, keeps the best iterate and records how each sample ended. Solvers only
say how to take a step. Samples never look at each other, so a sample ends the same alone and in any batch.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._status import Outcome, Status, is_status

Residual = Callable[[Tensor], Tensor]

_RUNNING = -1
# A residual this many times the first one (or 1) will not come back.
_DIVERGED = 1e10
# A residual that has not fallen to this part is no solution, however large the iterate that it is compared with.
_FALLEN = 0.9
# Stuck, a sample whose residual is this many times its best has run away rather than stopped.
_RAN_AWAY = 2.0


@final
@dataclass(frozen=True, eq=False)
class Step:
    """A new iterate with its residual, the solver's state, and which samples met a singular system."""

    y: Tensor
    residual: Tensor
    state: Any
    singular: Tensor | None = None


class Solver(abc.ABC):
    """A way to bring a residual `(*batch, n)` to zero, one step at a time."""

    @abc.abstractmethod
    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> Any:
        """State before the first step."""

    @abc.abstractmethod
    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Any) -> Step:
        """Take one step for all samples; the loop drops the steps of those that are done."""


@final
@dataclass(frozen=True)
class Limits:
    """When to stop: `tol` relative to the scale of the problem, and how often the host looks.

    `patience` steps without a better residual end a sample. Krylov methods have none: their residuals may rest a while.
    """

    tol: float
    max_steps: int
    check_every: int
    patience: int | None = None

    def __post_init__(self) -> None:
        if not self.tol > 0:
            raise OptionError(f"tol must be above 0, not {self.tol}")
        if self.max_steps < 0:
            raise OptionError(f"max_steps must be at least 0, not {self.max_steps}")
        if self.check_every < 1:
            raise OptionError(f"check_every must be at least 1, not {self.check_every}")


def iterate(
    solver: Solver,
    fn: Residual,
    y: Tensor,
    limits: Limits,
    scale: Callable[[Tensor], Tensor],
    residual: Tensor | None = None,
) -> Outcome:
    """Run a solver until every sample is done. `scale` gives the size of the problem at an iterate, `(*batch,)`.

    `residual` is that of the first iterate, where the caller knows it.
    """
    residual = fn(y) if residual is None else residual
    norm = _norm(residual)
    first, fallen = norm.clamp(min=1.0), _FALLEN * norm
    best, best_norm = y, norm
    steps = torch.zeros(norm.shape, dtype=torch.long, device=y.device)
    since = torch.zeros_like(steps)
    status = _judge(torch.full_like(steps, _RUNNING), norm, limits.tol * scale(y), first)
    state = solver.begin(fn, y, residual) if limits.max_steps else None
    for count in range(limits.max_steps):
        running = status == _RUNNING
        if count % limits.check_every == 0 and not bool(running.any()):
            break
        step = solver.step(fn, y, residual, state)
        keep = running[..., None]
        y, residual, state = torch.where(keep, step.y, y), torch.where(keep, step.residual, residual), step.state
        norm = _norm(residual)
        better = running & (norm < best_norm)
        best, best_norm = torch.where(better[..., None], y, best), torch.where(better, norm, best_norm)
        steps = steps + running
        since = torch.where(better, 0, since + running)
        if step.singular is not None:
            status = torch.where(running & step.singular, int(Status.SINGULAR), status)
        status = _judge(status, norm, torch.minimum(limits.tol * scale(y), fallen), first)
        if limits.patience is not None and count + 1 >= limits.patience:
            stuck = (status == _RUNNING) & (since >= limits.patience)
            ending = torch.where(norm > _RAN_AWAY * best_norm, int(Status.DIVERGED), int(Status.STALLED))
            status = torch.where(stuck, ending, status)
    status = torch.where(status == _RUNNING, int(Status.MAX_STEPS), status)
    done = is_status(status, Status.CONVERGED)
    return Outcome(torch.where(done[..., None], y, best), status, torch.where(done, norm, best_norm), steps)


def _judge(status: Tensor, norm: Tensor, bound: Tensor, first: Tensor) -> Tensor:
    # NaN is not below infinity.
    found = torch.where(norm > _DIVERGED * first, int(Status.DIVERGED), _RUNNING)
    found = torch.where(norm < torch.inf, found, int(Status.NONFINITE))
    found = torch.where(norm <= bound, int(Status.CONVERGED), found)
    return torch.where(status == _RUNNING, found, status)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)

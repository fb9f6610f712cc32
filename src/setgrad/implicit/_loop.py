"""The one loop that all iterative solvers run in.

It decides when a sample is done, freezes it, keeps the best iterate and records how each sample ended. Solvers only
say how to take a step. Samples never look at each other, so a sample ends the same alone and in any batch, and where
the equation can be had for some samples alone, those that are done are left out.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch import Tensor

from setgrad._status import Status, is_status
from setgrad.errors import OptionError
from setgrad.implicit._outcome import Outcome

Residual = Callable[[Tensor], Tensor]

_RUNNING = -1
# A residual this many times the first one (or 1) will not come back.
_DIVERGED = 1e10
# A residual that has not fallen to this part is no solution, however large the iterate that it is compared with.
_FALLEN = 0.9
# Once so few of the samples are left, making the equation of these alone costs less than it saves.
_FEW = 0.5
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


class EquationSolver(abc.ABC):
    """A way to bring a residual `(*batch, n)` to zero, one step at a time."""

    @abc.abstractmethod
    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> Any:
        """State before the first step."""

    @abc.abstractmethod
    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Any) -> Step:
        """Take one step for all samples; the loop drops the steps of those that are done."""

    def part(self, state: Any, rows: Tensor) -> Any:
        """The state of the samples with these numbers, where samples have one axis; NotImplemented if there is none."""
        return NotImplemented


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


@final
@dataclass(frozen=True, eq=False)
class _Run:
    """Where samples stand: the last and the best iterate, what the first residual was, and how long they have run."""

    y: Tensor
    residual: Tensor
    norm: Tensor
    first: Tensor
    fallen: Tensor
    best: Tensor
    best_norm: Tensor
    steps: Tensor
    since: Tensor
    status: Tensor

    def part(self, rows: Tensor) -> _Run:
        """Some of the samples."""
        return _Run(*(now[rows] for now in self._tensors()))

    def with_part(self, rows: Tensor, part: _Run) -> _Run:
        """All samples, with what has become of some."""
        pairs = zip(self._tensors(), part._tensors(), strict=True)
        return _Run(*(old.to(new.dtype).index_copy(0, rows, new) for old, new in pairs))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def iterate(
    solver: EquationSolver,
    fn: Residual,
    y: Tensor,
    limits: Limits,
    scale: Callable[[Tensor], Tensor],
    residual: Tensor | None = None,
    part: Callable[[Tensor], Residual | None] | None = None,
) -> Outcome:
    """Run a solver until every sample is done. `scale` gives the size of the problem at an iterate, `(*batch,)`.

    `residual` is that of the first iterate, where the caller knows it. `part` makes the residual of the samples with
    given numbers, for samples on one axis, or says None.
    """
    run = _begin(fn, y, limits, scale, residual)
    state = solver.begin(fn, y, run.residual) if limits.max_steps else None
    whole, rows = run, None
    for count in range(limits.max_steps):
        running = run.status == _RUNNING
        if count % limits.check_every == 0:
            left = int(running.sum())
            if not left:
                break
            if part is not None and left <= _FEW * len(running):
                kept = running.nonzero()[:, 0]
                left_rows = kept if rows is None else rows[kept]
                fewer, its_state = part(left_rows), solver.part(state, kept)
                if fewer is None or its_state is NotImplemented:
                    part = None
                else:
                    whole = run if rows is None else whole.with_part(rows, run)
                    fn, run, state, running, rows = fewer, run.part(kept), its_state, running[kept], left_rows
        step = solver.step(fn, run.y, run.residual, state)
        run, state = _advance(run, running, step, limits, scale, count), step.state
    run = run if rows is None else whole.with_part(rows, run)
    status = torch.where(run.status == _RUNNING, int(Status.MAX_STEPS), run.status)
    done = is_status(status, Status.CONVERGED)
    value = torch.where(done[..., None], run.y, run.best)
    return Outcome(value, status, torch.where(done, run.norm, run.best_norm), run.steps)


def _begin(fn: Residual, y: Tensor, limits: Limits, scale: Callable[[Tensor], Tensor], residual: Tensor | None) -> _Run:
    residual = fn(y) if residual is None else residual
    norm = _norm(residual)
    first = norm.clamp(min=1.0)
    steps = torch.zeros(norm.shape, dtype=torch.long, device=y.device)
    status = _judge(torch.full_like(steps, _RUNNING), norm, limits.tol * scale(y), first)
    return _Run(y, residual, norm, first, _FALLEN * norm, y, norm, steps, torch.zeros_like(steps), status)


def _advance(
    run: _Run, running: Tensor, step: Step, limits: Limits, scale: Callable[[Tensor], Tensor], count: int
) -> _Run:
    """After a step: those that are done stay as they were."""
    keep = running[..., None]
    y, residual = torch.where(keep, step.y, run.y), torch.where(keep, step.residual, run.residual)
    norm = _norm(residual)
    better = running & (norm < run.best_norm)
    best, best_norm = torch.where(better[..., None], y, run.best), torch.where(better, norm, run.best_norm)
    since, status = torch.where(better, 0, run.since + running), run.status
    if step.singular is not None:
        status = torch.where(running & step.singular, int(Status.SINGULAR), status)
    status = _judge(status, norm, torch.minimum(limits.tol * scale(y), run.fallen), run.first)
    if limits.patience is not None and count + 1 >= limits.patience:
        stuck = (status == _RUNNING) & (since >= limits.patience)
        ending = torch.where(norm > _RAN_AWAY * best_norm, int(Status.DIVERGED), int(Status.STALLED))
        status = torch.where(stuck, ending, status)
    return _Run(y, residual, norm, run.first, run.fallen, best, best_norm, run.steps + running, since, status)


def _judge(status: Tensor, norm: Tensor, bound: Tensor, first: Tensor) -> Tensor:
    # NaN is not below infinity.
    found = torch.where(norm > _DIVERGED * first, int(Status.DIVERGED), _RUNNING)
    found = torch.where(norm < torch.inf, found, int(Status.NONFINITE))
    found = torch.where(norm <= bound, int(Status.CONVERGED), found)
    return torch.where(status == _RUNNING, found, status)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)

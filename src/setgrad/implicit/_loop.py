"""The loop that runs every iterative solver.

A solver only takes steps. The loop decides when a sample is done, freezes it, keeps its best iterate and records its
status. Samples never affect each other, so a sample ends the same alone and in any batch. If the residual can be
evaluated for a subset of the samples, those that are done are left out.
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
from setgrad.implicit._solution import Outcome

# From y `(*batch, n)` to a residual of the same shape.
Residual = Callable[[Tensor], Tensor]
# From an iterate to the scale that the tolerance is relative to, `(*batch,)`.
Scale = Callable[[Tensor], Tensor]

_RUNNING = -1
# A sample diverged when its residual is this many times the first one (or 1, if that is larger).
_DIVERGENCE_FACTOR = 1e10
# The residual must fall at least to this fraction of the first one, however large y and so the tolerance become.
_REQUIRED_DECREASE = 0.9
# Continue with the running samples alone once at most this fraction is left: a new equation costs less than it saves.
_SUBSET_FRACTION = 0.5
# A sample that no longer improves DIVERGED if its residual is this many times its best, else it STALLED.
_STALL_FACTOR = 2.0


@final
@dataclass(frozen=True, eq=False)
class Step:
    """The result of one step of an `EquationSolver`.

    Attributes:
        y: The new iterate of all samples, `(*batch, n)`.
        residual: Its residual.
        state: The solver's state for the next step.
        singular: True for the samples `(*batch,)` whose linear system is singular; None if there are none.
    """

    y: Tensor
    residual: Tensor
    state: Any
    singular: Tensor | None = None


class EquationSolver(abc.ABC):
    """A method that brings a residual `(*batch, n)` to zero, one step at a time."""

    @abc.abstractmethod
    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> Any:
        """Return the state before the first step."""

    @abc.abstractmethod
    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Any) -> Step:
        """Take one step for all samples; the loop drops the steps of samples that are done."""

    def select_state(self, state: Any, rows: Tensor) -> Any:
        """Return the state of some samples of a `(b, n)` problem, or NotImplemented if the state cannot be split."""
        return NotImplemented


def check_damping(damping: float) -> None:
    """Raise an OptionError unless the damping lies in (0, 1]."""
    if not 0 < damping <= 1:
        raise OptionError(f"damping must lie in (0, 1], 1 for full steps, not {damping}")


@final
@dataclass(frozen=True)
class Limits:
    """When to stop.

    Args:
        tol: Norm of the residual at which a sample has converged, relative to the scale of the problem.
        max_steps: Largest number of steps.
        check_every: Number of steps between two looks of the host at whether all samples are done.
        patience: A sample ends after this many steps without a smaller residual. None for Krylov methods, whose
            residual may stay level for a while.
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
class _Progress:
    """The state of the loop for each sample. `tol_cap` bounds the tolerance, `divergence_norm` the residual."""

    y: Tensor
    residual: Tensor
    norm: Tensor
    divergence_norm: Tensor
    tol_cap: Tensor
    best: Tensor
    best_norm: Tensor
    steps: Tensor
    steps_since_best: Tensor
    status: Tensor

    def select(self, rows: Tensor) -> _Progress:
        """Return the state of some samples."""
        return _Progress(*(tensor[rows] for tensor in self._tensors()))

    def update(self, rows: Tensor, subset: _Progress) -> _Progress:
        """Return the state of all samples, with these rows replaced."""
        pairs = zip(self._tensors(), subset._tensors(), strict=True)
        return _Progress(*(old.to(new.dtype).index_copy(0, rows, new) for old, new in pairs))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def iterate(
    solver: EquationSolver,
    fn: Residual,
    y: Tensor,
    limits: Limits,
    scale: Scale,
    residual: Tensor | None = None,
    restrict: Callable[[Tensor], Residual | None] | None = None,
) -> Outcome:
    """Run a solver until every sample is done.

    Args:
        solver: Takes the steps.
        fn: The residual.
        y: The first iterate, `(*batch, n)`.
        limits: When to stop.
        scale: From an iterate to the scale that the tolerance is relative to.
        residual: The residual at `y`, if it is known.
        restrict: For y `(b, n)`: from row indices to the residual of these samples alone, or None if there is none.

    Returns:
        The last iterate of the samples that converged, and the best one of the others.
    """
    progress = _start(fn, y, limits, scale, residual)
    state = solver.init(fn, y, progress.residual) if limits.max_steps else None
    # Of all samples, once `progress` holds only the samples `rows`.
    all_progress, rows = progress, None
    for count in range(limits.max_steps):
        running = progress.status == _RUNNING
        if count % limits.check_every == 0:
            n_running = int(running.sum())
            if not n_running:
                break
            if restrict is not None and n_running <= _SUBSET_FRACTION * len(running):
                local = running.nonzero()[:, 0]
                subset = local if rows is None else rows[local]
                subset_fn, subset_state = restrict(subset), solver.select_state(state, local)
                if subset_fn is None or subset_state is NotImplemented:
                    restrict = None
                else:
                    all_progress = progress if rows is None else all_progress.update(rows, progress)
                    fn, progress, state = subset_fn, progress.select(local), subset_state
                    running, rows = running[local], subset
        step = solver.step(fn, progress.y, progress.residual, state)
        progress, state = _advance(progress, running, step, limits, scale, count), step.state
    progress = progress if rows is None else all_progress.update(rows, progress)
    status = torch.where(progress.status == _RUNNING, int(Status.MAX_STEPS), progress.status)
    converged = is_status(status, Status.CONVERGED)
    value = torch.where(converged[..., None], progress.y, progress.best)
    return Outcome(value, status, torch.where(converged, progress.norm, progress.best_norm), progress.steps)


def _start(fn: Residual, y: Tensor, limits: Limits, scale: Scale, residual: Tensor | None) -> _Progress:
    residual = fn(y) if residual is None else residual
    norm = _norm(residual)
    divergence_norm = _DIVERGENCE_FACTOR * norm.clamp(min=1.0)
    steps = torch.zeros(norm.shape, dtype=torch.long, device=y.device)
    status = _update_status(torch.full_like(steps, _RUNNING), norm, limits.tol * scale(y), divergence_norm)
    tol_cap = _REQUIRED_DECREASE * norm
    return _Progress(y, residual, norm, divergence_norm, tol_cap, y, norm, steps, torch.zeros_like(steps), status)


def _advance(progress: _Progress, running: Tensor, step: Step, limits: Limits, scale: Scale, count: int) -> _Progress:
    """Apply a step to the running samples and update their status."""
    keep = running[..., None]
    y, residual = torch.where(keep, step.y, progress.y), torch.where(keep, step.residual, progress.residual)
    norm = _norm(residual)
    better = running & (norm < progress.best_norm)
    best = torch.where(better[..., None], y, progress.best)
    best_norm = torch.where(better, norm, progress.best_norm)
    steps_since_best, status = torch.where(better, 0, progress.steps_since_best + running), progress.status
    if step.singular is not None:
        status = torch.where(running & step.singular, int(Status.SINGULAR), status)
    tol = torch.minimum(limits.tol * scale(y), progress.tol_cap)
    status = _update_status(status, norm, tol, progress.divergence_norm)
    if limits.patience is not None and count + 1 >= limits.patience:
        stuck = (status == _RUNNING) & (steps_since_best >= limits.patience)
        ending = torch.where(norm > _STALL_FACTOR * best_norm, int(Status.DIVERGED), int(Status.STALLED))
        status = torch.where(stuck, ending, status)
    return _Progress(
        y,
        residual,
        norm,
        progress.divergence_norm,
        progress.tol_cap,
        best,
        best_norm,
        progress.steps + running,
        steps_since_best,
        status,
    )


def _update_status(status: Tensor, norm: Tensor, tol: Tensor, divergence_norm: Tensor) -> Tensor:
    new = torch.where(norm > divergence_norm, int(Status.DIVERGED), _RUNNING)
    # NaN does not compare as below infinity.
    new = torch.where(norm < torch.inf, new, int(Status.NONFINITE))
    new = torch.where(norm <= tol, int(Status.CONVERGED), new)
    return torch.where(status == _RUNNING, new, status)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)

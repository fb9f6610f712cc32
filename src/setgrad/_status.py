"""How each sample of a batch ended, and what to do about failures: one vocabulary for every solver."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import SetgradError, unknown_name

POLICIES = ("raise", "warn", "mask")


@final
class Status(enum.IntEnum):
    """Outcome of one sample. Every failure has a remedy.

    `CONVERGED` is another name of `SOLVED`, for iterations.

    Examples:
        >>> Status.CONVERGED is Status.SOLVED
        True
        >>> Status.TIME_LIMIT.remedy
        'raise time_limit, or use a heuristic solver'
    """

    SOLVED = 0
    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2
    NONFINITE = 3
    STALLED = 4
    SINGULAR = 5
    INFEASIBLE = 6
    UNBOUNDED = 7
    TIME_LIMIT = 8
    FRACTIONAL = 9
    NOT_FOUND = 10

    @property
    def remedy(self) -> str:
        """What to try."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.SOLVED: "nothing to do",
    Status.MAX_STEPS: "raise max_steps or tol, or try a faster solver such as Anderson() or Newton()",
    Status.DIVERGED: "start nearer to a solution, damp the iteration (AdaptivePicard(), Picard(damping=0.1)), or use "
    "Newton(), for an arg min LBFGS()",
    Status.NONFINITE: "look for NaN or infinity in the inputs, lower the learning rate, or bound the inputs (tanh, "
    "clamp)",
    Status.STALLED: "the residual stopped falling short of the tolerance: compute in float64, bring the unknowns to "
    "similar sizes, or raise tol where the call has one",
    Status.SINGULAR: "the Jacobian cannot be inverted there: the solution may not be isolated; add a small "
    "regularisation or start elsewhere",
    Status.INFEASIBLE: "no point satisfies all constraints: relax one, or drop these samples",
    Status.UNBOUNDED: "the objective has no best value: bound every variable, or add a constraint",
    Status.TIME_LIMIT: "raise time_limit, or use a heuristic solver",
    Status.FRACTIONAL: "the solver returned numbers between its integers: make it round, or solve the integer program",
    Status.NOT_FOUND: "time ran out before any point was found: raise time_limit, or use a heuristic solver",
}


@final
@dataclass(frozen=True)
class FailureSummary:
    """The failures of a batch: how many of how many samples, counts by status, the first one, the common remedy."""

    failed: int
    total: int
    counts: str
    first: int
    remedy: str


def is_status(statuses: Tensor, status: Status) -> Tensor:
    """Return a mask of the samples that have this status."""
    # With the member itself, `torch.compile` would turn the comparison into one bool.
    return statuses == int(status)


def has_answer(statuses: Tensor) -> Tensor:
    """Return a mask of the samples with a usable value; at a time limit it is the best point found so far."""
    return is_status(statuses, Status.SOLVED) | is_status(statuses, Status.TIME_LIMIT)


def check_policy(policy: str) -> None:
    """Raise an OptionError for an unknown `on_failure`."""
    if policy not in POLICIES:
        raise unknown_name("on_failure", policy, POLICIES)


def summarise_failures(statuses: Tensor) -> FailureSummary:
    """Count the failures of a batch that has at least one."""
    flat = statuses.reshape(-1).long().cpu()
    failed = ~is_status(flat, Status.SOLVED)
    counts = torch.bincount(flat[failed], minlength=len(Status)).tolist()
    listed = ", ".join(f"{count} {Status(value).name}" for value, count in enumerate(counts) if count)
    common = Status(max(range(len(counts)), key=counts.__getitem__))
    return FailureSummary(int(failed.sum()), len(flat), listed, int(failed.nonzero()[0]), common.remedy)


def handle_failures(statuses: Tensor, policy: str, error: type[SetgradError], describe: Callable[[], str]) -> None:
    """Raise or warn, as the policy says, if a sample failed. With "mask" the host does not wait for the device.

    Args:
        statuses: Status of each sample.
        policy: "raise", "warn" or "mask".
        error: What to raise.
        describe: Makes the message.

    Raises:
        SetgradError: Of the given class, if a sample failed and the policy is "raise".
        OptionError: If the policy is unknown.
    """
    check_policy(policy)
    if policy == "mask" or not bool(statuses.any()):
        return
    if policy == "raise":
        raise error(describe())
    warnings.warn(describe(), RuntimeWarning, stacklevel=3)

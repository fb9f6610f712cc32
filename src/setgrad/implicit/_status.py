"""How a solve ended, for each sample, and what to do about it."""

from __future__ import annotations

import enum
import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import ConvergenceError, unknown_name

POLICIES = ("raise", "warn", "mask")


@final
class Status(enum.IntEnum):
    """Outcome of one sample. Every member but the first has a remedy."""

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2
    NONFINITE = 3
    STALLED = 4
    SINGULAR = 5
    INFEASIBLE = 6
    UNBOUNDED = 7

    @property
    def remedy(self) -> str:
        """What to try."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.CONVERGED: "nothing to do",
    Status.MAX_STEPS: "raise max_steps or tol, or try a faster solver such as Anderson() or Newton()",
    Status.DIVERGED: "start nearer to a solution, damp the iteration (AdaptivePicard(), Picard(damping=0.1)), or use "
    "Newton(), for an arg min LBFGS()",
    Status.NONFINITE: "look for NaN or infinity in the inputs, or start nearer to a solution",
    Status.STALLED: "the residual stopped falling short of the tolerance: compute in float64, bring the unknowns to "
    "similar sizes, or raise tol where the call has one",
    Status.SINGULAR: "the Jacobian cannot be inverted there: the solution may not be isolated; add a small "
    "regularisation or start elsewhere",
    Status.INFEASIBLE: "no point satisfies all constraints: relax one, or give them slack variables with a cost",
    Status.UNBOUNDED: "the objective falls without end: add a constraint, or a small multiple of the identity to Q",
}


def is_status(found: Tensor, status: Status) -> Tensor:
    """Which samples ended so."""
    # With the member itself, `torch.compile` would make one bool of the comparison.
    return found == int(status)


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """What a loop leaves behind: the best value, and status, residual norm and number of steps of each sample."""

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor


def settle(outcome: Outcome, policy: str, what: str, remedy: str | None = None) -> None:
    """Raise or warn, as the policy says, if a sample failed. `remedy` replaces that of the status."""
    if policy not in POLICIES:
        raise unknown_name("on_failure", policy, POLICIES)
    if policy == "mask" or bool(is_status(outcome.status, Status.CONVERGED).all()):
        return
    message = describe_failure(outcome, what, remedy)
    if policy == "raise":
        raise ConvergenceError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def describe_failure(outcome: Outcome, what: str, remedy: str | None = None) -> str:
    """One sentence with counts, the worst sample and the remedy for the most frequent failure."""
    status = outcome.status.reshape(-1)
    failed = ~is_status(status, Status.CONVERGED)
    counts = torch.bincount(status[failed].long().cpu(), minlength=len(Status)).tolist()
    named = ", ".join(f"{count} {Status(i).name}" for i, count in enumerate(counts) if count)
    # NaN is worse than any number.
    norms = outcome.residual.reshape(-1).nan_to_num(torch.inf, torch.inf).masked_fill(~failed, -torch.inf)
    worst = int(norms.argmax())
    norm, steps = float(outcome.residual.reshape(-1)[worst]), int(outcome.steps.reshape(-1)[worst])
    common = Status(max(range(len(counts)), key=lambda i: counts[i]))
    return (
        f"{what}: {int(failed.sum())} of {len(status)} samples failed ({named}); the worst is sample {worst} with "
        f"residual {norm:.3g} after {steps} steps. "
        f"Remedy: {remedy or common.remedy}; or on_failure='mask' to go on without the failed samples"
    )

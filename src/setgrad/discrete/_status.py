"""How a discrete problem ended, for each instance, and what to do about it."""

from __future__ import annotations

import enum
import warnings
from typing import final

import torch
from torch import Tensor

from setgrad.errors import SolverError, unknown_name

POLICIES = ("raise", "warn", "mask")


@final
class Status(enum.IntEnum):
    """Outcome of one instance. Every member but the first has a remedy."""

    SOLVED = 0
    NONFINITE = 1
    INFEASIBLE = 2
    TIME_LIMIT = 3
    FRACTIONAL = 4
    UNBOUNDED = 5
    NOT_FOUND = 6

    @property
    def remedy(self) -> str:
        """What to try."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.SOLVED: "nothing to do",
    Status.NONFINITE: "theta holds NaN or infinity: look for a rate that is too high, or bound theta (tanh, clamp)",
    Status.INFEASIBLE: "no point satisfies all constraints: relax one, or drop these instances",
    Status.TIME_LIMIT: "raise time_limit, or use a heuristic solver",
    Status.FRACTIONAL: "the solver returned numbers between its integers: make it round, or solve the integer program",
    Status.UNBOUNDED: "the product has no best value: bound every variable",
    Status.NOT_FOUND: "time ran out before any point was found: raise time_limit, or use a heuristic solver",
}


def answered(status: Tensor) -> Tensor:
    """Which instances have an answer; one that ran out of time has the best point found so far."""
    return (status == Status.SOLVED) | (status == Status.TIME_LIMIT)


def settle(status: Tensor, policy: str, what: str) -> None:
    """Raise or warn, as the policy says, if an instance failed. With "mask" the host does not wait for the device."""
    # SOLVED is 0.
    if policy == "mask" or not bool(status.any()):
        return
    message = describe_failure(status, what)
    if policy == "raise":
        raise SolverError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_policy(policy: str) -> None:
    """Refuse an unknown policy."""
    if policy not in POLICIES:
        raise unknown_name("on_failure", policy, POLICIES)


def describe_failure(status: Tensor, what: str) -> str:
    """One sentence with counts, the first instance and the remedy for the most frequent failure."""
    flat = status.reshape(-1).cpu()
    failed = flat != Status.SOLVED
    counts = torch.bincount(flat[failed].long(), minlength=len(Status)).tolist()
    named = ", ".join(f"{count} {Status(i).name}" for i, count in enumerate(counts) if count)
    most = Status(max(range(len(counts)), key=counts.__getitem__))
    first = int(failed.nonzero()[0])
    return (
        f"{what}: {int(failed.sum())} of {flat.numel()} instances were not solved ({named}; the first is number "
        f'{first}); {most.remedy}. on_failure="mask" lets them pass: as zeros without gradient, or where time ran out '
        "with the best point found so far"
    )

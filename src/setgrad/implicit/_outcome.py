"""What an iteration returns for each sample, and the message for samples that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status, handle_failures, is_status, summarise_failures
from setgrad.errors import ConvergenceError


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """The best value found, with status, residual norm and number of steps of each sample."""

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor


def check_outcome(outcome: Outcome, policy: str, what: str, remedy: str | None = None) -> None:
    """Raise or warn, as the policy says, if a sample failed. `remedy` replaces that of the status."""
    handle_failures(outcome.status, policy, ConvergenceError, lambda: describe_failure(outcome, what, remedy))


def describe_failure(outcome: Outcome, what: str, remedy: str | None = None) -> str:
    """Write one message with counts, the worst sample and the remedy for the most frequent failure."""
    summary = summarise_failures(outcome.status)
    failed = ~is_status(outcome.status.reshape(-1), Status.CONVERGED)
    # NaN is worse than any number.
    norms = outcome.residual.reshape(-1).nan_to_num(torch.inf, torch.inf).masked_fill(~failed, -torch.inf)
    worst = int(norms.argmax())
    norm, steps = float(outcome.residual.reshape(-1)[worst]), int(outcome.steps.reshape(-1)[worst])
    return (
        f"{what}: {summary.failed} of {summary.total} samples failed ({summary.counts}); the worst is sample {worst} "
        f"with residual {norm:.3g} after {steps} steps. "
        f"Remedy: {remedy or summary.remedy}; or on_failure='mask' to continue without the failed samples"
    )

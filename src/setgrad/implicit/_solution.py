"""The result of a solve, for each sample, and the message about samples that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status, handle_failures, is_status, summarise_failures
from setgrad.errors import ConvergenceError


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an iteration or a linear solve, for each sample.

    Args:
        value: The solution, or the best iterate of a sample that failed, `(*batch, n)`.
        status: A `Status` as an integer, `(*batch,)`.
        residual: Norm of the residual at `value`, `(*batch,)`.
        steps: Number of steps, `(*batch,)`.
    """

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor


@final
class AdjointRecord:
    """What `Solution` and the backward pass share.

    `last_outcome` is the result of the last linear solve. `all_converged` is True once the statuses were read and no
    sample had failed, so that the backward pass need not wait for a GPU to read them again.
    """

    def __init__(self) -> None:
        self.last_outcome: Outcome | None = None
        self.all_converged = False


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """The solution of a batch of equations, which carries the gradient, and how each sample ended.

    Args:
        value: The solution, `(*batch, n)`; for a sample that failed, its best iterate.
        status: A `Status` as an integer, `(*batch,)`.
        residual: Norm of the residual at `value`, `(*batch,)`.
        steps: Number of steps, `(*batch,)`.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> solution = fixed_point(lambda y: 0.5 * y + 1, torch.zeros(2, 1))
        >>> solution.converged.tolist()
        [True, True]
        >>> solution.unwrap().round().tolist()
        [[2.0], [2.0]]
    """

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    _record: AdjointRecord = field(default_factory=AdjointRecord, repr=False)

    @property
    def adjoint(self) -> Outcome | None:
        """Result of the last linear solve, in the backward pass or in forward mode; None before the first."""
        return self._record.last_outcome

    @property
    def converged(self) -> Tensor:
        """Mask of the samples that were solved, `(*batch,)`."""
        return is_status(self.status, Status.CONVERGED)

    def unwrap(self) -> Tensor:
        """Return the value.

        Raises:
            ConvergenceError: If a sample failed.
        """
        check_outcome(Outcome(self.value, self.status, self.residual, self.steps), "raise", "the solution")
        self._record.all_converged = True
        return self.value


def check_outcome(outcome: Outcome, policy: str, what: str, remedy: str | None = None) -> None:
    """Raise a ConvergenceError or warn, as the policy says, if a sample failed.

    Args:
        outcome: The result of a solve.
        policy: "raise", "warn" or "mask".
        what: What was solved, for the message.
        remedy: What to try, for the message; by default the remedy of the most frequent status.
    """
    handle_failures(outcome.status, policy, ConvergenceError, lambda: _describe_failures(outcome, what, remedy))


def _describe_failures(outcome: Outcome, what: str, remedy: str | None) -> str:
    summary = summarise_failures(outcome.status)
    failed = ~is_status(outcome.status.reshape(-1), Status.CONVERGED)
    # NaN is worse than any number.
    norms = outcome.residual.reshape(-1).nan_to_num(torch.inf, torch.inf).masked_fill(~failed, -torch.inf)
    worst = int(norms.argmax())
    worst_norm, steps = float(outcome.residual.reshape(-1)[worst]), int(outcome.steps.reshape(-1)[worst])
    return (
        f"{what}: {summary.failed} of {summary.total} samples failed ({summary.counts}); the worst is sample {worst} "
        f"with residual {worst_norm:.3g} after {steps} steps. "
        f"Remedy: {remedy or summary.remedy}; or on_failure='mask' to continue without the failed samples"
    )

"""What every solver is: a batched map from theta to the best point z, with a status for each instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status, check_policy, handle_failures, has_answer, summarise_failures
from setgrad.errors import OptionError, ShapeError, SolverError, unknown_name

SENSES = ("max", "min")


@final
@dataclass(frozen=True, eq=False)
class SolverResult:
    """Points of theta's shape, and the status of each instance (its shape: the leading axes of theta)."""

    value: Tensor
    status: Tensor


@final
@dataclass
class Counter:
    """How much work a solver has done. A call solves a whole batch; `instances` counts the problems in it."""

    calls: int = 0
    instances: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.calls = self.instances = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinatorialSolver(ABC):
    """A batched map from theta to the point z of a finite set with the best product <theta, z>.

    The last `dims` axes of theta make one instance, and z has the shape and dtype of theta. All axes before them are
    batch: parameters of a solver (weights, graphs) may have batch axes too, which broadcast against those of theta from
    the right, so that estimators can put samples in front. An instance has the same answer alone and in any batch;
    which of equally good points that is, each solver says for itself. No gradient passes: an estimator gives one.

    Args:
        sense: "max" for the largest product, "min" for the smallest.
        on_failure: What to do about instances that were not solved: "raise", "warn", or "mask": z is 0 where there is
            no answer, and estimators give no gradient; where time ran out it is the best point found so far.

    Attributes:
        counter: Calls and instances so far.
    """

    sense: str = "max"
    on_failure: str = "raise"
    counter: Counter = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sense not in SENSES:
            raise unknown_name("sense", self.sense, SENSES)
        if self.dims < 1:
            raise OptionError(f"dims must be 1 or more, got {self.dims}; give single numbers an axis: theta[..., None]")
        check_policy(self.on_failure)

    @property
    def dims(self) -> int:
        """How many axes at the end of theta make one instance."""
        return 1

    @abstractmethod
    def solve(self, theta: Tensor) -> Tensor | SolverResult:
        """Maximise <theta, z> for finite theta of shape (*batch, *instance), whatever the sense: that was seen to.

        There is one instance or more, and half-precision theta comes as float32. Points alone mean that all instances
        are solved.
        """

    def run(self, theta: Tensor) -> SolverResult:
        """Solve a batch; the result says which instances have no answer, and their points are 0."""
        self.check(theta)
        return self._best(theta if self.sense == "max" else -theta.detach())

    def maximise(self, theta: Tensor) -> SolverResult:
        """The same for theta whose largest product is wanted, whatever the sense: minus the costs of a solver of costs.

        Estimators think so of all solvers, and need not turn theta round and back.
        """
        self.check(theta)
        return self._best(theta)

    @torch.no_grad()
    def _best(self, theta: Tensor) -> SolverResult:
        batch = theta.shape[: theta.ndim - self.dims]
        self.counter.calls += 1
        self.counter.instances += batch.numel()
        if not batch.numel():
            return SolverResult(torch.zeros_like(theta), torch.zeros(batch, dtype=torch.long, device=theta.device))
        # With "raise" the host waits for the outcome anyway: one look at theta spares the masks where all is well. A
        # sum with NaN or infinity in it is never finite; one that overflows only costs the second look.
        sound = self.on_failure == "raise" and bool(theta.sum().isfinite())
        finite = None if sound else theta.isfinite().flatten(len(batch)).all(-1)
        known = theta if finite is None else torch.where(_spread(finite, self.dims), theta, 0)
        if known.element_size() < 4:
            known = known.float()  # sums of half-precision numbers would choose for the solver
        found = self.solve(known)
        value, status = (found.value, found.status) if isinstance(found, SolverResult) else (found, None)
        name = type(self).__name__
        if value.shape != theta.shape:
            raise SolverError(
                f"{name} returned points of shape {tuple(value.shape)} for theta of shape {tuple(theta.shape)}; "
                "both must be the same"
            )
        if status is None:
            status = torch.zeros(batch, dtype=torch.long, device=theta.device)
            if finite is None:
                return SolverResult(self._narrowed(value, theta), status)
        if status.shape != batch:
            raise SolverError(
                f"{name} returned statuses of shape {tuple(status.shape)} for a batch of shape {tuple(batch)}; there "
                "must be one for each instance"
            )
        status = status.to(theta.device)
        status = status if finite is None else torch.where(finite, status, Status.NONFINITE)
        handle_failures(status, self.on_failure, SolverError, lambda: _describe_failure(status, name))
        value = self._narrowed(value, theta)
        if finite is None:
            # With "raise" all instances have an answer by now.
            return SolverResult(value, status)
        return SolverResult(torch.where(_spread(has_answer(status), self.dims), value, 0), status)

    def _narrowed(self, value: Tensor, theta: Tensor) -> Tensor:
        """Points in the type of theta; whole numbers that half precision would round are refused."""
        narrow = value.to(theta)
        # A host that need not wait for the device with "mask" does not wait for this either.
        if theta.element_size() < 4 and not (theta.is_cuda and self.on_failure == "mask"):
            lost = (narrow.to(value) != value) & (value == value.round())
            if bool(lost.any()):
                raise SolverError(
                    f"{type(self).__name__} found whole numbers that {theta.dtype} cannot hold; give theta as float32"
                )
        return narrow

    def __call__(self, theta: Tensor) -> Tensor:
        """The points alone."""
        return self.run(theta).value

    def check(self, theta: Tensor) -> None:
        """Refuse a theta that this solver cannot take. Solvers with more demands add theirs."""
        name = type(self).__name__
        if not isinstance(theta, Tensor):
            raise ShapeError(f"{name} takes theta as a tensor, not as {type(theta).__name__}; use torch.as_tensor")
        if not theta.is_floating_point():
            raise ShapeError(f"{name} takes theta of floats, not {theta.dtype}; use theta.float()")
        if theta.ndim < self.dims or 0 in theta.shape[theta.ndim - self.dims :]:
            raise ShapeError(
                f"{name} takes theta whose last {self.dims} axes make one instance that is not empty, got shape "
                f"{tuple(theta.shape)}"
            )


def _describe_failure(status: Tensor, name: str) -> str:
    """Write one message with counts, the first instance and the remedy for the most frequent failure."""
    summary = summarise_failures(status)
    return (
        f"{name}: {summary.failed} of {summary.total} instances were not solved ({summary.counts}; the first is number "
        f'{summary.first}); {summary.remedy}. on_failure="mask" returns zeros without gradient for them, or at a time '
        "limit the best point found so far"
    )


def _spread(flags: Tensor, dims: int) -> Tensor:
    """Give flags of instances the axes of an instance."""
    return flags.reshape(*flags.shape, *(1,) * dims)

"""The base class of all solvers: a batched map from theta to the best point z, with a status for each instance."""

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
    """The solutions of a batch.

    Attributes:
        value: The points z, in the shape of theta.
        status: The `Status` of each instance, in the shape of theta's batch axes.
    """

    value: Tensor
    status: Tensor

    @property
    def has_answer(self) -> Tensor:
        """A mask of the instances with a usable point, in the shape of `status`."""
        return has_answer(self.status)


@final
@dataclass
class SolverCounter:
    """Counts the work of a solver: `calls` counts batches, `instances` the problems in them."""

    calls: int = 0
    instances: int = 0

    def reset(self) -> None:
        """Set both counts to 0."""
        self.calls = self.instances = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinatorialSolver(ABC):
    """A batched map from theta to the point z of a finite set with the best product `<theta, z>`.

    The last `dims` axes of theta form one instance. All axes before them are batch axes. z has the shape and dtype of
    theta. Parameters of a solver (weights, graphs) may have batch axes too; these broadcast against the batch axes of
    theta from the right, so that an estimator can add an axis of samples in front. The solution of an instance does
    not depend on the rest of the batch. Each solver documents how it breaks ties. Solvers have no gradient: wrap one
    in an estimator to get a gradient.

    Args:
        sense: "max" for the largest product, "min" for the smallest.
        on_failure: What to do about instances that were not solved: "raise", "warn" or "mask". With "warn" and "mask",
            z is 0 where there is no answer, and estimators pass no gradient. At a time limit z is the best point found
            so far.

    Attributes:
        counter: The number of calls and instances so far.

    Raises:
        OptionError: If `sense` or `on_failure` is unknown.
    """

    sense: str = "max"
    on_failure: str = "raise"
    counter: SolverCounter = field(default_factory=SolverCounter, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sense not in SENSES:
            raise unknown_name("sense", self.sense, SENSES)
        if self.dims < 1:
            raise OptionError(f"dims must be 1 or more, got {self.dims}; give single numbers an axis: theta[..., None]")
        check_policy(self.on_failure)

    @property
    def dims(self) -> int:
        """The number of axes at the end of theta that form one instance."""
        return 1

    @abstractmethod
    def solve(self, theta: Tensor) -> Tensor | SolverResult:
        """Return the points that maximise `<theta, z>`. Subclasses implement this; users call the solver or `run`.

        Implementations always maximise: theta has already been negated for `sense="min"`.

        Args:
            theta: Finite, of shape (*batch, *instance), with at least one instance; half precision arrives as float32.

        Returns:
            The points, if all instances are solved, or a `SolverResult`.
        """

    def run(self, theta: Tensor) -> SolverResult:
        """Solve a batch and return the points together with the status of each instance.

        Raises:
            ShapeError: If the solver cannot take this theta.
            SolverError: If an instance was not solved and `on_failure` is "raise".
        """
        self.check(theta)
        return self._solve_batch(theta if self.sense == "max" else -theta.detach())

    def maximise(self, theta: Tensor) -> SolverResult:
        """Like `run`, but always maximise `<theta, z>`, whatever the sense. Estimators call this method.

        For a solver that minimises costs, theta is minus the costs.

        Raises:
            ShapeError: If the solver cannot take this theta.
            SolverError: If an instance was not solved and `on_failure` is "raise".
        """
        self.check(theta)
        return self._solve_batch(theta)

    @torch.no_grad()
    def _solve_batch(self, theta: Tensor) -> SolverResult:
        batch = theta.shape[: theta.ndim - self.dims]
        self.counter.calls += 1
        self.counter.instances += batch.numel()
        if not batch.numel():
            return SolverResult(torch.zeros_like(theta), torch.zeros(batch, dtype=torch.long, device=theta.device))
        # With "raise" the CPU waits for the outcome anyway, so one sum replaces the masks if all is finite. A sum with
        # NaN or infinity in it is never finite; an overflow only costs the second check.
        all_finite = self.on_failure == "raise" and bool(theta.sum().isfinite())
        finite = None if all_finite else theta.isfinite().flatten(len(batch)).all(-1)
        known = theta if finite is None else torch.where(expand_flags(finite, theta), theta, 0)
        if known.element_size() < 4:
            # In half precision, rounding of sums would decide which point is best.
            known = known.float()
        result = self.solve(known)
        value, status = (result.value, result.status) if isinstance(result, SolverResult) else (result, None)
        name = type(self).__name__
        if value.shape != theta.shape:
            raise SolverError(
                f"{name} returned points of shape {tuple(value.shape)} for theta of shape {tuple(theta.shape)}; "
                "both must be the same"
            )
        if status is None:
            status = torch.zeros(batch, dtype=torch.long, device=theta.device)
            if finite is None:
                return SolverResult(self._cast(value, theta), status)
        if status.shape != batch:
            raise SolverError(
                f"{name} returned statuses of shape {tuple(status.shape)} for a batch of shape {tuple(batch)}; there "
                "must be one for each instance"
            )
        status = status.to(theta.device)
        status = status if finite is None else torch.where(finite, status, Status.NONFINITE)
        handle_failures(status, self.on_failure, SolverError, lambda: _describe_failure(status, name))
        value = self._cast(value, theta)
        if finite is None:
            # With "raise", all instances have an answer at this point.
            return SolverResult(value, status)
        return SolverResult(torch.where(expand_flags(has_answer(status), theta), value, 0), status)

    def _cast(self, value: Tensor, theta: Tensor) -> Tensor:
        """Return the points in the dtype of theta; raise if half precision would round whole numbers."""
        cast = value.to(theta)
        # With "mask" the CPU does not wait for the GPU, so it does not wait for this check either.
        if theta.element_size() < 4 and not (theta.is_cuda and self.on_failure == "mask"):
            lost = (cast.to(value) != value) & (value == value.round())
            if bool(lost.any()):
                raise SolverError(
                    f"{type(self).__name__} found whole numbers that {theta.dtype} cannot hold; give theta as float32"
                )
        return cast

    def __call__(self, theta: Tensor) -> Tensor:
        """Solve a batch and return the points alone; raises as `run` does."""
        return self.run(theta).value

    def check(self, theta: Tensor) -> None:
        """Check that the solver can take theta. Subclasses add their own checks.

        Raises:
            ShapeError: If theta is not a float tensor with at least `dims` axes and one entry for each instance.
        """
        name = type(self).__name__
        if not isinstance(theta, Tensor):
            raise ShapeError(f"{name} takes theta as a tensor, not as {type(theta).__name__}; use torch.as_tensor")
        if not theta.is_floating_point():
            raise ShapeError(f"{name} takes theta of floats, not {theta.dtype}; use theta.float()")
        if theta.ndim < self.dims or 0 in theta.shape[theta.ndim - self.dims :]:
            raise ShapeError(
                f"{name} takes theta whose last {self.dims} axes form one instance that is not empty, got shape "
                f"{tuple(theta.shape)}"
            )


def expand_flags(flags: Tensor, like: Tensor) -> Tensor:
    """Append axes of length 1 to a tensor with one entry for each instance, so that it broadcasts against `like`."""
    return flags.reshape(*flags.shape, *(1,) * (like.ndim - flags.ndim))


def _describe_failure(status: Tensor, name: str) -> str:
    summary = summarise_failures(status)
    return (
        f"{name}: {summary.failed} of {summary.total} instances were not solved ({summary.counts}; the first is number "
        f'{summary.first}); {summary.remedy}. on_failure="mask" returns zeros without gradient for them, or at a time '
        "limit the best point found so far"
    )

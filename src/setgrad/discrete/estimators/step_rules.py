"""Rules by which AIMLE chooses and adapts its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from setgrad.discrete._estimator import ForwardPass
from setgrad.discrete._solver import expand_flags
from setgrad.discrete.estimators._difference import instance_norms, relative_step

_SMALLEST, _LARGEST = 1e-6, 1e6
# The fraction of the chosen entries that should change. One entry of a whole path is too few to learn from, half of
# them too coarse: on paths and k of n a fifth to a third did best; on knapsacks a single one did.
_TARGET_FRACTION = 0.25


class StepRule(ABC):
    """How `AIMLE` chooses the length of its steps, and how it adapts alpha.

    Attributes:
        initial_alpha: The first alpha, unless `AIMLE` gets another one.
        initial_average: The first value of the moving average of changed entries.
        rate: The rate of change of alpha, unless `AIMLE` gets another one.
        multiplicative: Whether alpha changes by factors, so that it must not be 0.
    """

    initial_alpha: ClassVar[float]
    initial_average: ClassVar[float] = 1.0
    rate: ClassVar[float]
    multiplicative: ClassVar[bool] = False

    @abstractmethod
    def step(self, saved: ForwardPass, grad: Tensor, alpha: Tensor, dims: int) -> tuple[Tensor, Tensor]:
        """Return the steps along the gradient, and 1/lambda."""

    @abstractmethod
    def adapt(self, alpha: Tensor, average: Tensor, target: float | Tensor, *, rate: float, weight: Tensor) -> Tensor:
        """Return the next alpha, from the moving average of changed entries and the total weight of its terms."""

    def counted(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return a mask of the instances that count in the average: those with an answer and a finite gradient."""
        return saved.has_answer & grad.isfinite().flatten(saved.status.ndim).all(-1)

    def target(self, chosen: Tensor) -> float | Tensor:
        """Return how many entries should change, for the mean number of chosen entries: 1, as published."""
        return 1.0


@final
@dataclass(frozen=True)
class PerInstanceRule(StepRule):
    """One lambda for each sample of each instance: alpha times |theta + noise| / |gradient|. The default.

    Alpha changes by a factor of at most exp(rate), which tends to 1 at the target. The moving average is corrected for
    its first value. The target is a quarter of the chosen entries, and at least 1. The gradient of an instance does not
    depend on the rest of the batch.

    Examples:
        >>> PerInstanceRule().initial_alpha
        1.0
    """

    initial_alpha: ClassVar[float] = 1.0
    initial_average: ClassVar[float] = 0.0
    rate: ClassVar[float] = 0.05
    multiplicative: ClassVar[bool] = True

    def step(self, saved: ForwardPass, grad: Tensor, alpha: Tensor, dims: int) -> tuple[Tensor, Tensor]:
        """Return steps whose length is alpha times the length of theta."""
        return relative_step(saved, grad, alpha, dims)

    def adapt(self, alpha: Tensor, average: Tensor, target: float | Tensor, *, rate: float, weight: Tensor) -> Tensor:
        """Return alpha times exp(rate) if nothing changes, alpha at the target, and less above it."""
        factor = torch.exp(rate * (1 - average / weight / target).clamp(-1, 1))
        return (alpha * factor).clamp(_SMALLEST, _LARGEST)

    def counted(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Leave out instances without a gradient as well: they cannot change, whatever alpha is."""
        return super().counted(saved, grad) & (grad != 0).flatten(saved.status.ndim).any(-1)

    def target(self, chosen: Tensor) -> float | Tensor:
        """Return a quarter of the chosen entries, and at least 1."""
        return (_TARGET_FRACTION * chosen).clamp(min=1)


class _SharedStepRule(StepRule):
    """One lambda for the whole batch, alpha times |theta| / |gradient|; alpha changes by +rate or -rate."""

    @abstractmethod
    def _ratio(self, theta_norms: Tensor, grad_norms: Tensor) -> Tensor:
        """Return |theta| / |gradient| of the batch; the largest norm of a gradient is 1, or all are 0."""

    @abstractmethod
    def _grows(self, average: Tensor, target: float | Tensor) -> Tensor:
        """Return whether alpha grows."""

    def step(self, saved: ForwardPass, grad: Tensor, alpha: Tensor, dims: int) -> tuple[Tensor, Tensor]:
        """Return the steps of the common lambda."""
        known = expand_flags(StepRule.counted(self, saved, grad), grad)
        # Another zero in both, so that an empty batch has a largest entry.
        theta_norms, grad_norms = (
            pad(instance_norms(torch.where(known, values, 0), dims).flatten(), (0, 1)) for values in (saved.clean, grad)
        )
        # Gradients are measured in units of the largest one, because lambda itself may overflow.
        largest = grad_norms.amax()
        unit = torch.where(largest > 0, largest, 1)
        length = torch.where(largest > 0, alpha * self._ratio(theta_norms, grad_norms / unit), 0)
        # At alpha = 0 nothing moves or changes: the gradient is 0, and not 0/0.
        return length * (grad / unit), torch.where(length > 0, unit / length, 0)

    def adapt(self, alpha: Tensor, average: Tensor, target: float | Tensor, *, rate: float, weight: Tensor) -> Tensor:
        """Return alpha plus or minus the rate, and at least 0."""
        return (alpha + torch.where(self._grows(average, target), rate, -rate)).clamp(min=0)


@final
@dataclass(frozen=True)
class PublishedRule(_SharedStepRule):
    """Algorithm 1 of Minervini et al., 2023, arXiv:2209.04862.

    Lambda is alpha times the mean of |theta| / |gradient| over batch and samples, so the instances of a batch influence
    each other. Alpha starts at 0.

    Examples:
        >>> PublishedRule().initial_alpha
        0.0
    """

    initial_alpha: ClassVar[float] = 0.0
    rate: ClassVar[float] = 1e-3

    def _ratio(self, theta_norms: Tensor, grad_norms: Tensor) -> Tensor:
        # A smaller gradient would make the mean infinite.
        moved = grad_norms > torch.finfo(grad_norms.dtype).tiny ** 0.75
        return torch.where(moved, theta_norms / grad_norms, 0).sum() / moved.sum().clamp(min=1)

    def _grows(self, average: Tensor, target: float | Tensor) -> Tensor:
        return average <= target


@final
@dataclass(frozen=True)
class ReferenceCodeRule(_SharedStepRule):
    """The code of Minervini et al., 2023, without its wrong factor sqrt(samples).

    Lambda is alpha times the ratio of the norms of theta and gradient over the whole batch, so the instances of a batch
    influence each other.

    Examples:
        >>> ReferenceCodeRule().rate
        0.0001
    """

    initial_alpha: ClassVar[float] = 1.0
    rate: ClassVar[float] = 1e-4

    def _ratio(self, theta_norms: Tensor, grad_norms: Tensor) -> Tensor:
        # The largest is 1, so the norm is below 1 only for a batch without any gradient.
        return instance_norms(theta_norms, 1) / torch.linalg.vector_norm(grad_norms).clamp(min=1)

    def _grows(self, average: Tensor, target: float | Tensor) -> Tensor:
        return average < target

"""Implicit maximum likelihood with adaptive steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad._autograd import in_transform
from setgrad._deprecation import deprecated_string
from setgrad.discrete._estimator import ForwardPass, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import difference_quotient, solution_difference
from setgrad.discrete.estimators.step_rules import PerInstanceRule, PublishedRule, ReferenceCodeRule, StepRule
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_floats
from setgrad.errors import OptionError

_DEFAULT = PerInstanceRule()
_RULES: dict[str, StepRule] = {"default": _DEFAULT, "paper": PublishedRule(), "reference": ReferenceCodeRule()}


@final
class AIMLE(SolverEstimator):
    """IMLE with steps of alpha times the length of theta; alpha adapts to the number of entries that a step changes.

    If fewer entries of z than `target` change, alpha grows, else it shrinks. Minervini et al., 2023, arXiv:2209.04862.

    Alpha and the moving average of changed entries are buffers: `state_dict` saves them. They change in training only,
    at each backward pass, and stay in float32 in a model of half precision. With DistributedDataParallel all processes
    use the alpha of the first, because buffers are broadcast from there. The backward pass calls the solver once.

    Args:
        solver: The map from theta to z.
        noise: Gumbel for a categorical choice, `SumOfGamma(k)` for k of n; None for a black-box solver.
        samples: The number of draws.
        central: Step to both sides, as published, or to one.
        mode: How lambda follows from alpha, and how alpha changes: `PerInstanceRule()`, `PublishedRule()` or
            `ReferenceCodeRule()`.
        target: How many entries of a sample should change, on average; None for the default of the rule.
        alpha: The first alpha; None for the default of the rule (1, 0, 1).
        rate: The rate of change of alpha; None for the default of the rule (0.05, 0.001, 0.0001).
        decay: The weight of the past in the moving average, from 0 to below 1.
        generator: Source of random numbers.

    Raises:
        OptionError: If target, alpha, rate or decay is out of range.

    Examples:
        >>> from setgrad.discrete import SumOfGamma, TopK
        >>> theta = torch.zeros(8, 10, requires_grad=True)
        >>> layer = AIMLE(TopK(3), noise=SumOfGamma(3), samples=2, generator=torch.Generator().manual_seed(0))
        >>> layer(theta)[..., 0].mean().backward()
        >>> list(layer.state_dict())
        ['alpha', 'average', 'updates']
    """

    alpha: Tensor
    average: Tensor
    updates: Tensor

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        noise: Noise | None,
        samples: int = 1,
        central: bool = True,
        mode: StepRule | str = _DEFAULT,
        target: float | None = None,
        alpha: float | None = None,
        rate: float | None = None,
        decay: float = 0.9,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        self.mode = deprecated_string("mode", mode, _RULES, removed_in="0.3.0")
        start = self.mode.initial_alpha if alpha is None else alpha
        self.rate = self.mode.rate if rate is None else rate
        if not 0 < (1.0 if target is None else target) < math.inf or not 0 < self.rate < math.inf or not 0 <= decay < 1:
            raise OptionError(
                f"AIMLE needs target > 0, rate > 0 and decay in [0, 1), got {target}, {self.rate} and {decay}"
            )
        if not 0 <= start < math.inf or (self.mode.multiplicative and start == 0):
            raise OptionError(f"alpha must be finite and 0 or more, and above 0 with PerInstanceRule(), got {start}")
        self.central = central
        self.target = target
        self.decay = decay
        self.register_buffer("alpha", torch.tensor(float(start)))
        self.register_buffer("average", torch.tensor(self.mode.initial_average))
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z for theta, with an axis of samples in front if the estimator has noise.

        Raises:
            OptionError: If theta is on another device than the layer.
        """
        check_floats(theta, "estimators take", "theta")
        if theta.device != self.alpha.device:
            raise OptionError(
                f"theta is on {theta.device} and the state of AIMLE on {self.alpha.device}: move the layer, as any "
                f"module, with layer.to({str(theta.device)!r})"
            )
        return super().forward(theta, generator=generator)

    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return the difference quotient; in training, adapt alpha."""
        grad_of_sample = saved.samples * grad
        alpha = self.alpha.to(grad_of_sample)
        step, inverse = self.mode.step(saved, grad_of_sample, alpha, self.solver.dims)
        change = solution_difference(self, saved, step, central=self.central)
        if self.training:
            self._adapt(saved, grad_of_sample, change)
        return difference_quotient(change, inverse, samples=saved.samples, central=self.central)

    def _adapt(self, saved: ForwardPass, grad: Tensor, change: Tensor) -> None:
        """Update alpha by the number of entries that changed, without waiting for the device."""
        if in_transform():
            raise OptionError(
                "AIMLE adapts its step in the backward pass, which torch.func cannot follow; put it into evaluation "
                "mode (layer.eval()), where the step is fixed, or call backward"
            )
        counted = self.mode.counted(saved, grad)
        target = self.mode.target(self._mean_nonzero(saved.z, counted)) if self.target is None else self.target
        average = torch.lerp(self.average, self._mean_nonzero(change, counted), 1 - self.decay)
        updates = self.updates + 1
        weight = 1 - self.decay ** updates.to(average)
        alpha = self.mode.adapt(self.alpha, average, target, rate=self.rate, weight=weight)
        # A batch without any counted instance, such as an empty one, changes nothing.
        for state, new in ((self.alpha, alpha), (self.average, average), (self.updates, updates)):
            state.copy_(torch.where(counted.any(), new, state))

    def _mean_nonzero(self, values: Tensor, counted: Tensor) -> Tensor:
        """Return the number of nonzero entries of an instance, averaged over the counted instances."""
        counts = (values != 0).flatten(counted.ndim).sum(-1)
        return (counts * counted).sum().to(self.average) / counted.sum().clamp(min=1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AIMLE:
        """Move with the model, but keep float32: in half precision alpha could not make its small steps."""
        before = {name: getattr(self, name) for name in ("alpha", "average")}
        super()._apply(fn, recurse)
        for name, state in before.items():
            moved = getattr(self, name)
            if moved.dtype != state.dtype:
                setattr(self, name, state.to(moved.device))
        return self

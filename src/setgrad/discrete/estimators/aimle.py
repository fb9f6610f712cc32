"""Implicit maximum likelihood with a step that adapts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from setgrad.discrete._estimator import Choice, SolverEstimator, spread
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import difference, lengths, relative_move, scaled
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_floats
from setgrad.errors import OptionError, unknown_name

# Of each mode: the first alpha, the rate of its change.
_MODES = {"default": (1.0, 0.05), "paper": (0.0, 1e-3), "reference": (1.0, 1e-4)}
_SMALLEST, _LARGEST = 1e-6, 1e6
# The part of the entries chosen that should change. One entry of a whole path is too few to learn from, half of them
# too coarse: on paths and k of n a fifth to a third did best; on knapsacks a single one did.
_SHARE = 0.25


@final
class AIMLE(SolverEstimator):
    """IMLE whose lambda follows from a share alpha of theta's length, and alpha from how many entries a step changes.

    "Adaptive perturbation-based gradient estimation for discrete latent variable models" (Minervini et al., 2023).
    If fewer entries of z than `target` change, alpha grows, else it shrinks. Three modes:

    - "default": lambda for each sample of each instance, alpha times |theta + noise| / |gradient|; alpha changes by a
      factor, at most exp(rate), which tends to 1 at the target; the moving average has no memory of its first value.
      An instance's gradient does not depend on the rest of the batch.
    - "paper": Algorithm 1. One lambda, from the mean of |theta| / |gradient| over batch and samples; alpha starts at 0
      and changes by +-rate. This couples the instances of a batch.
    - "reference": the authors' code, without its factor sqrt(samples). One lambda from the norms over the whole batch,
      which couples instances too.

    Alpha and the average are buffers: they are saved with the model, and only change in training, at each backward
    pass; they stay in single precision in a model of half. With DistributedDataParallel every process follows the
    alpha of the first, because buffers are sent from there. The way back calls the solver once.

    Args:
        solver: The map from theta to z.
        noise: Gumbel for a categorical choice, `SumOfGamma(k)` for k of n; None for a black-box solver.
        samples: How many draws.
        central: Step to both sides, as in Algorithm 1, or to one.
        mode: "default", "paper" or "reference".
        target: How many entries of a sample should change, on average. None for 1, as published; in the default mode
            for a quarter of the entries that are chosen, and 1 at least.
        alpha: The first alpha; None for the mode's own (1, 0, 1).
        rate: The rate of its change; None for the mode's own (0.05, 0.001, 0.0001).
        decay: Memory of the moving average.
        generator: Source of chance.

    Example:
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
        mode: str = "default",
        target: float | None = None,
        alpha: float | None = None,
        rate: float | None = None,
        decay: float = 0.9,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        if mode not in _MODES:
            raise unknown_name("mode", mode, _MODES)
        start = _MODES[mode][0] if alpha is None else alpha
        self.rate = _MODES[mode][1] if rate is None else rate
        if not 0 < (1.0 if target is None else target) < math.inf or not 0 < self.rate < math.inf or not 0 <= decay < 1:
            raise OptionError(
                f"AIMLE needs target > 0, rate > 0 and decay in [0, 1), got {target}, {self.rate} and {decay}"
            )
        if not 0 <= start < math.inf or (mode == "default" and start == 0):
            raise OptionError(f"alpha starts at 0 or more, and above 0 in the default mode, got {start}")
        self.central = central
        self.mode = mode
        self.target = target
        self.decay = decay
        self.register_buffer("alpha", torch.tensor(float(start)))
        self.register_buffer("average", torch.tensor(0.0 if mode == "default" else 1.0))
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Choose."""
        check_floats(theta, "estimators take", "theta")
        if theta.device != self.alpha.device:
            raise OptionError(
                f"theta is on {theta.device} and the state of AIMLE on {self.alpha.device}: move the layer, as any "
                f"module, with layer.to({str(theta.device)!r})"
            )
        return super().forward(theta, generator=generator)

    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """The difference over its step; then alpha adapts."""
        each = choice.samples * grad
        alpha = self.alpha.to(each)
        if self.mode == "default":
            move, inverse = relative_move(self, choice, each, alpha)
        else:
            move, inverse = self._shared_move(choice, each, alpha)
        change = difference(self, choice, move, central=self.central)
        if self.training:
            self._adapt(choice, each, change)
        return scaled(change, inverse / (choice.samples * (2 if self.central else 1)))

    def _shared_move(self, choice: Choice, grad: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Steps with one lambda, alpha times |theta| / |gradient| for the whole batch, and 1/lambda."""
        known = spread(choice.usable & _finite(choice, grad), grad)
        # A zero more in both, so that an empty batch has a largest entry.
        theta, size = (
            pad(lengths(torch.where(known, values, 0), self.solver.dims).flatten(), (0, 1))
            for values in (choice.clean, grad)
        )
        # Gradients are measured in units of the largest one: lambda itself may be out of the range of floats.
        largest = size.amax()
        unit = torch.where(largest > 0, largest, 1)
        size = size / unit
        if self.mode == "reference":
            # The largest is 1 now, so only a batch without any gradient has a smaller norm.
            ratio = lengths(theta, 1) / torch.linalg.vector_norm(size).clamp(min=1)
        else:
            # Any smaller gradient would make the mean infinite.
            moved = size > torch.finfo(size.dtype).tiny ** 0.75
            ratio = torch.where(moved, theta / size, 0).sum() / moved.sum().clamp(min=1)
        share = torch.where(largest > 0, alpha * ratio, 0)
        # At alpha = 0 nothing moves and nothing changes: the gradient is 0, and not 0/0.
        return share * (grad / unit), torch.where(share > 0, unit / share, 0)

    def _adapt(self, choice: Choice, grad: Tensor, change: Tensor) -> None:
        """Let alpha follow the number of entries that changed. No value leaves the device."""
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            raise OptionError(
                "AIMLE learns its step in the backward pass, which torch.func cannot follow; put it into evaluation "
                "mode (layer.eval()), where the step is fixed, or call backward"
            )
        first = choice.usable.ndim
        says = choice.usable & _finite(choice, grad)
        if self.mode == "default":
            # An instance without a gradient cannot change, whatever alpha is, so it has no say.
            says = says & (grad != 0).flatten(first).any(-1)
        mean, target = self._entries(change, says), self._goal(choice, says)
        average, updates = torch.lerp(self.average, mean, 1 - self.decay), self.updates + 1
        if self.mode == "default":
            level = average / (1 - self.decay ** updates.to(average))
            factor = torch.exp(self.rate * (1 - level / target).clamp(-1, 1))
            alpha = (self.alpha * factor).clamp(_SMALLEST, _LARGEST)
        else:
            up = average < target if self.mode == "reference" else average <= target
            alpha = (self.alpha + torch.where(up, self.rate, -self.rate)).clamp(min=0)
        # A batch in which nobody has a say, such as an empty one, leaves everything as it was.
        for state, new in ((self.alpha, alpha), (self.average, average), (self.updates, updates)):
            state.copy_(torch.where(says.any(), new, state))

    def _goal(self, choice: Choice, says: Tensor) -> float | Tensor:
        """How many entries should change."""
        if self.target is not None:
            return self.target
        return (_SHARE * self._entries(choice.z, says)).clamp(min=1) if self.mode == "default" else 1.0

    def _entries(self, values: Tensor, says: Tensor) -> Tensor:
        """How many entries of an instance are not 0, on average over those that have a say."""
        counts = (values != 0).flatten(says.ndim).sum(-1)
        return (counts * says).sum().to(self.average) / says.sum().clamp(min=1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AIMLE:
        """Move with the model, but stay in single precision: in half, alpha could not make its small steps."""
        before = {name: getattr(self, name) for name in ("alpha", "average")}
        super()._apply(fn, recurse)
        for name, state in before.items():
            moved = getattr(self, name)
            if moved.dtype != state.dtype:
                setattr(self, name, state.to(moved.device))
        return self


def _finite(choice: Choice, grad: Tensor) -> Tensor:
    """Which instances have a gradient of numbers."""
    return grad.isfinite().flatten(choice.usable.ndim).all(-1)

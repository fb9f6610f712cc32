"""The base classes of all estimators: layers with a discrete output and a useful gradient.

The backward pass of an estimator maps the gradient of the loss at z to a gradient at theta, like the backward pass of
any layer. No Jacobian is formed, and the map may be nonlinear in the incoming gradient (Blackbox, IMLE).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from setgrad._autograd import first_order_only, in_transform
from setgrad._status import has_answer
from setgrad.discrete._solver import CombinatorialSolver, SolverResult, expand_flags
from setgrad.discrete.noise import Noise, scheduled_temperatures
from setgrad.discrete.solvers._parameters import check_counts, check_floats
from setgrad.errors import OptionError

Forward = TypeVar("Forward", bound=Callable[..., Any])

_FIRST_ORDER = (
    "estimators of gradients through hard choices have first derivatives only, and a second one was requested; leave "
    "out create_graph=True, or relax the choice (GumbelSoftmax, SoftSub, RelaxedTopK or RelaxedSpanningTree, with "
    "hard=False)"
)


class GradientEstimator(nn.Module, ABC):
    """A layer from theta to z.

    Without noise z has the shape of theta. With noise it has an axis of samples in front, (S, *theta.shape), also for
    one sample. The gradient is scaled for a loss that is the MEAN over that axis.
    """

    @abstractmethod
    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z for theta. A generator passed here is used instead of the estimator's own."""


@final
@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The tensors of a forward pass that the backward pass needs, always in terms of a maximisation.

    Attributes:
        theta: The solver's input, including noise.
        clean: Theta before the noise, without an axis of samples.
        z: The solver's output.
        status: The status of each instance.
    """

    theta: Tensor
    clean: Tensor
    z: Tensor
    status: Tensor

    @property
    def has_answer(self) -> Tensor:
        """A mask of the instances with a usable point."""
        return has_answer(self.status)

    @property
    def samples(self) -> int:
        """The number of samples on the first axis; 1 if there is no such axis."""
        return self.theta.shape[0] if self.theta.ndim > self.clean.ndim else 1


class NoisyLayer(nn.Module, ABC):
    """A layer that adds noise to theta. Scheduled temperatures of the noise are part of its `state_dict`."""

    def __init__(self, *, noise: Noise | None, samples: int, generator: torch.Generator | None) -> None:
        super().__init__()
        check_counts(1, samples=samples)
        if noise is None and samples > 1:
            raise OptionError(f"without noise all {samples} samples would be the same; give noise, or samples=1")
        if scheduled := scheduled_temperatures(noise):
            self.temperatures = nn.ModuleList(scheduled)
        self.noise = noise
        self.samples = samples
        self.generator = generator

    def perturb(self, theta: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return theta with an axis of samples and noise, if the layer has noise, in float32 or float64."""
        theta = at_least_float32(theta)
        return theta if self.noise is None else theta + self.draw_noise(self.noise, theta, generator)

    def draw_noise(self, noise: Noise, theta: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return noise for all samples of theta."""
        return noise.sample(
            (self.samples, *theta.shape),
            dtype=theta.dtype,
            device=theta.device,
            generator=generator or self.generator,
        )


class SolverLayer(NoisyLayer):
    """A layer that solves for perturbed theta.

    Args:
        solver: The map from theta to z.
        noise: Added to theta; None for no noise. `Tempered(noise, 0.5)` scales it.
        samples: The number of draws of the noise.
        generator: Source of random numbers; torch's global one if None.
    """

    def __init__(
        self, solver: CombinatorialSolver, *, noise: Noise | None, samples: int, generator: torch.Generator | None
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        if not isinstance(solver, CombinatorialSolver):
            raise OptionError(
                f"solver must be a CombinatorialSolver, not {solver!r}; wrap a function in CallableSolver(function)"
            )
        self.solver = solver

    def extra_repr(self) -> str:
        """Return the solver, the noise and the number of samples, for print(model)."""
        return f"{self.solver}, noise={self.noise}, samples={self.samples}"


class SolverEstimator(SolverLayer, GradientEstimator):
    """An estimator around a solver. Subclasses implement `pullback`, the gradient from z to theta.

    A forward pass calls the solver once. Instances without an answer (`on_failure="mask"`) get no gradient.
    """

    @abstractmethod
    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Map the gradient at z to the gradient at `saved.theta`, both in terms of a maximisation."""

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z for theta, with an axis of samples in front if the estimator has noise."""
        clean = as_maximisation(at_least_float32(theta), self.solver)
        return self.solve_with_gradient(self.perturb(clean, generator), clean).to(theta.dtype)

    def solve_with_gradient(self, theta: Tensor, clean: Tensor) -> Tensor:
        """Return z for theta of a maximisation, with the gradient of this estimator."""
        if torch.compiler.is_compiling() or in_transform():
            z, _ = _SolveTransformable.apply(theta, clean.detach(), self)
        else:
            z = _SolveEager.apply(theta, clean.detach(), self)
        return z

    def solve(self, theta: Tensor) -> SolverResult:
        """Solve for theta of a maximisation, without a gradient."""
        return self.solver.maximise(theta)


def cache_signature(function: Forward) -> Forward:
    """Store the signature of a Function's forward on it: torch asks for it in every call and would compute it again."""
    vars(function)["__signature__"] = inspect.signature(function)
    return function


@final
class _SolveTransformable(torch.autograd.Function):
    """The solver in the forward pass, `pullback` in the backward pass; works with `torch.func` and `torch.compile`."""

    @staticmethod
    @cache_signature
    def forward(theta: Tensor, clean: Tensor, estimator: SolverEstimator) -> tuple[Tensor, Tensor]:
        result = estimator.solve(theta)
        return result.value, result.status

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SolverEstimator], output: tuple[Tensor, Tensor]) -> None:
        theta, clean, ctx.estimator = inputs
        ctx.mark_non_differentiable(output[1])
        # Gradients of None instead of zeros, which would be allocated for the status in every pass.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(theta, clean, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
        return None if grad is None else _pull_back(ctx, grad), None, None


@final
class _SolveEager(torch.autograd.Function):
    """The same in the older form of a Function: `torch.func` cannot take it, but a call takes half the time."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, clean: Tensor, estimator: SolverEstimator) -> Tensor:
        result = estimator.solve(theta)
        ctx.estimator = estimator
        ctx.save_for_backward(theta, clean, result.value, result.status)
        return result.value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _pull_back(ctx, grad), None, None


def _pull_back(ctx: Any, grad: Tensor) -> Tensor:
    saved = ForwardPass(*ctx.saved_tensors)
    with torch.no_grad():
        gradient = ctx.estimator.pullback(saved, grad)
        if can_fail(ctx.estimator.solver):
            gradient = torch.where(expand_flags(saved.has_answer, gradient), gradient, 0)
    return without_second_derivative(gradient, saved.theta, grad)


@final
class _ReplaceGradient(torch.autograd.Function):
    @staticmethod
    @cache_signature
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        return hard.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, without_second_derivative(grad, ctx.saved_tensors[0], grad)


def replace_gradient(hard: Tensor, soft: Tensor) -> Tensor:
    """Return exactly the values of `hard` with the gradient of `soft`. A second derivative raises."""
    value: Tensor = _ReplaceGradient.apply(hard, soft)
    return value


def without_second_derivative(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Return a gradient that raises when it is differentiated with respect to itself or its sources."""
    return first_order_only(gradient.detach(), *sources, message=_FIRST_ORDER)


def as_maximisation(theta: Tensor, solver: CombinatorialSolver) -> Tensor:
    """Return theta, negated for a solver that minimises; autograd undoes the sign in the backward pass."""
    return theta if solver.sense == "max" else -theta


def can_fail(solver: CombinatorialSolver) -> bool:
    """Return whether results of the solver may contain instances without an answer, which must be masked."""
    return solver.on_failure != "raise"


def apply_where_finite(function: Callable[[Tensor], Tensor], theta: Tensor, dims: int) -> Tensor:
    """Apply a function to the finite instances; an instance with NaN or infinity becomes NaN and gets no gradient."""
    finite = expand_flags(theta.isfinite().flatten(theta.ndim - dims).all(-1), theta)
    return torch.where(finite, function(torch.where(finite, theta, 0)), torch.nan)


def at_least_float32(theta: Tensor) -> Tensor:
    """Return half-precision theta in single precision; there, noise rounds to ties, and norms overflow.

    Raises:
        ShapeError: If theta is not a float tensor. Integers would truncate a mean of several z.
    """
    check_floats(theta, "estimators take", "theta")
    return theta.float() if theta.element_size() < 4 else theta

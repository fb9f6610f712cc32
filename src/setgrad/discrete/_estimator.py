"""What every estimator is: a layer whose output is discrete and whose gradient is not 0.

The backward pass of an estimator is a product with a vector, as for every layer: it turns the gradient of the loss
with respect to z into one with respect to theta. Nowhere is a Jacobian formed, so that the answer may depend on the
incoming gradient in a way that is not linear (Blackbox, IMLE).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from setgrad._autograd import first_order_only
from setgrad._status import has_answer
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.noise import Noise, temperatures
from setgrad.discrete.solvers._parameters import check_counts, check_floats
from setgrad.errors import OptionError

Rule = TypeVar("Rule", bound=Callable[..., Any])

_FIRST_ORDER = (
    "estimators of gradients through hard choices give first derivatives, and a second one was asked for; leave out "
    "create_graph=True, or relax the choice (GumbelSoftmax, SoftSub, RelaxedTopK with hard=False)"
)


class GradientEstimator(nn.Module, ABC):
    """A layer from theta to z.

    Without noise z has the shape of theta. With noise it has an axis of samples in front, (S, *theta.shape), also for
    one sample, and gradients are right for a loss that is the MEAN over that axis.
    """

    @abstractmethod
    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Choose z; a generator given here goes before that of the estimator."""


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """What the backward pass knows. All of it speaks of a maximisation, whatever the sense of the solver.

    Attributes:
        theta: What the solver saw, noise included.
        clean: Theta before the noise, without an axis of samples.
        z: What it has_answer.
        status: How it ended, for each instance.
    """

    theta: Tensor
    clean: Tensor
    z: Tensor
    status: Tensor

    @property
    def usable(self) -> Tensor:
        """Which instances have an answer."""
        return has_answer(self.status)

    @property
    def samples(self) -> int:
        """The number of samples on the first axis; 1 if there is none."""
        return self.theta.shape[0] if self.theta.ndim > self.clean.ndim else 1


class Noisy(nn.Module, ABC):
    """A layer that puts noise on theta. Scheduled temperatures of the noise are saved and loaded with it."""

    def __init__(self, *, noise: Noise | None, samples: int, generator: torch.Generator | None) -> None:
        super().__init__()
        check_counts(1, samples=samples)
        if noise is None and samples > 1:
            raise OptionError(f"without noise all {samples} samples would be the same; give noise, or samples=1")
        if found := temperatures(noise):
            self.temperatures = nn.ModuleList(found)
        self.noise = noise
        self.samples = samples
        self.generator = generator

    def perturb(self, theta: Tensor, generator: torch.Generator | None) -> Tensor:
        """Put an axis of samples in front of theta and noise on it, if there is any, in single precision at least."""
        theta = wide(theta)
        if self.noise is None:
            return theta
        return theta + self.noise.sample(
            (self.samples, *theta.shape),
            dtype=theta.dtype,
            device=theta.device,
            generator=generator or self.generator,
        )


class SolverEstimator(Noisy, GradientEstimator):
    """An estimator around a solver. It says how to pull a gradient back from z to theta; the rest is here.

    A forward pass calls the solver once. Instances without an answer ("mask") get no gradient.

    Args:
        solver: The map from theta to z.
        noise: Added to theta; None for none. A temperature is `Tempered(noise, 0.5)`.
        samples: How many draws of the noise.
        generator: Source of chance; torch's global one if None.
    """

    def __init__(
        self, solver: CombinatorialSolver, *, noise: Noise | None, samples: int, generator: torch.Generator | None
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        self.solver = check_solver(solver)

    @abstractmethod
    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """From the gradient at z to the gradient at `choice.theta`, both for a maximisation."""

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Choose."""
        clean = orient(wide(theta), self.solver)
        return self.choose(self.perturb(clean, generator), clean).to(theta.dtype)

    def choose(self, theta: Tensor, clean: Tensor) -> Tensor:
        """Solve for oriented theta, with the gradient of this estimator."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            z, _ = _Choose.apply(theta, clean.detach(), self)
        else:
            z = _ChoosePlainly.apply(theta, clean.detach(), self)
        return z

    def solve(self, theta: Tensor) -> SolverResult:
        """Solve for oriented theta, without a gradient."""
        return self.solver.maximise(theta)

    def extra_repr(self) -> str:
        """The parts, for print(model)."""
        return f"{self.solver}, noise={self.noise}, samples={self.samples}"


def check_solver(solver: CombinatorialSolver) -> CombinatorialSolver:
    """Refuse what is no solver, such as a function."""
    if not isinstance(solver, CombinatorialSolver):
        raise OptionError(
            f"solver must be a CombinatorialSolver, not {solver!r}; a function becomes one by Custom(function)"
        )
    return solver


def known_signature(function: Rule) -> Rule:
    """Keep the signature of the forward of a Function: torch asks for it in every call, and works it out anew."""
    vars(function)["__signature__"] = inspect.signature(function)
    return function


@final
class _Choose(torch.autograd.Function):
    """The solver forwards, the estimator's rule backwards."""

    @staticmethod
    @known_signature
    def forward(theta: Tensor, clean: Tensor, estimator: SolverEstimator) -> tuple[Tensor, Tensor]:
        solved = estimator.solve(theta)
        return solved.value, solved.status

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SolverEstimator], output: tuple[Tensor, Tensor]) -> None:
        theta, clean, ctx.estimator = inputs
        ctx.mark_non_differentiable(output[1])
        # None instead of zeros, which would be made for the status in every pass.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(theta, clean, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
        return None if grad is None else _pulled(ctx, grad), None, None


@final
class _ChoosePlainly(torch.autograd.Function):
    """The same in the older form, which `torch.func` cannot take, and which is called in half the time."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, clean: Tensor, estimator: SolverEstimator) -> Tensor:
        solved = estimator.solve(theta)
        ctx.estimator = estimator
        ctx.save_for_backward(theta, clean, solved.value, solved.status)
        return solved.value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _pulled(ctx, grad), None, None


def _pulled(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient at theta, from that at z and what the forward pass kept."""
    choice = Choice(*ctx.saved_tensors)
    with torch.no_grad():
        pulled = ctx.estimator.pull(choice, grad)
        if may_fail(ctx.estimator.solver):
            pulled = torch.where(spread(choice.usable, pulled), pulled, 0)
    return last(pulled, choice.theta, grad)


@final
class _Replace(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    @known_signature
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        return hard.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, last(grad, ctx.saved_tensors[0], grad)


def last(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Return a gradient that raises when it is differentiated again, with respect to whatever the sources come from."""
    return first_order_only(gradient.detach(), *sources, message=_FIRST_ORDER)


def replace(hard: Tensor, soft: Tensor) -> Tensor:
    """Hard values, exactly, with the gradient of soft ones of the same shape. A second derivative raises."""
    value: Tensor = _Replace.apply(hard, soft)
    return value


def orient(theta: Tensor, solver: CombinatorialSolver) -> Tensor:
    """Make it a maximisation. The only place that knows the sense: autograd turns the sign of a gradient back."""
    return theta if solver.sense == "max" else -theta


def may_fail(solver: CombinatorialSolver) -> bool:
    """Whether a solution that was not refused can be without an answer; else there is nothing to mask."""
    return solver.on_failure != "raise"


def usable(solved: SolverResult) -> Tensor:
    """Which instances have an answer."""
    return has_answer(solved.status)


def spread(flags: Tensor, like: Tensor) -> Tensor:
    """Give values of instances the axes of an instance."""
    return flags.reshape(*flags.shape, *(1,) * (like.ndim - flags.ndim))


def where_finite(function: Callable[[Tensor], Tensor], theta: Tensor, dims: int) -> Tensor:
    """Apply a function of whole instances. One with NaN or infinity becomes NaN, and no gradient comes out of it."""
    finite = spread(theta.isfinite().flatten(theta.ndim - dims).all(-1), theta)
    return torch.where(finite, function(torch.where(finite, theta, 0)), torch.nan)


def wide(theta: Tensor) -> Tensor:
    """Half precision as single: there, noise on theta rounds to ties, and norms of theta overflow.

    Theta of every estimator with a solver comes by here, so what is no tensor of floats is refused here: a mean of
    several z would be cut to the whole numbers that theta is made of. The others have `check_choice`.
    """
    check_floats(theta, "estimators take", "theta")
    return theta.float() if theta.element_size() < 4 else theta

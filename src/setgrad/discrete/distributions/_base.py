"""The base class of distributions over discrete points, and checks of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from setgrad._autograd import has_tangent
from setgrad.discrete.distributions._log_space import MIN_LOGIT, subtract_largest
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers._parameters import check_counts, check_floats
from setgrad.errors import DataError, DerivativeError, OptionError, ShapeError


class Distribution(ABC):
    """A distribution over the points z that a solver can return, with probability proportional to exp(score of z).

    Logits have the shape (*batch, *instance), and points the shape (samples, *batch, *instance). A logit of minus
    infinity excludes its entry, and so does one below -1e25, the mask value of many models; NaN and plus infinity
    raise a DataError. Half precision is computed in single precision. Gradients pass to the logits, never to points.
    Distributions are immutable.
    """

    logits: Tensor

    @abstractmethod
    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return independent exact samples, of shape (samples, *batch, *instance), without gradient."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-probability of points whose last axes are those of the logits.

        Points that the distribution cannot produce have minus infinity, and no gradient.

        Raises:
            ShapeError: If the points do not have the shape of an instance.
        """

    @property
    @abstractmethod
    def marginals(self) -> Tensor:
        """The mean of z, in the shape of the logits."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy of each instance, in nats."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Return KL(self || other) of each instance; infinity where `other` excludes points that self can draw."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """A most probable point, in the shape of the logits, without gradient; ties go to the lower index."""


def check_logits(logits: Tensor, dims: int, name: str) -> Tensor:
    """Return logits in float32 or float64; raise an error if they are not valid."""
    return _check(logits, dims, name)[0]


def check_item_logits(logits: Tensor, k: int, name: str) -> Tensor:
    """Return checked logits for a choice of k items on the last axis; raise an OptionError if too few are allowed."""
    check_counts(0, k=k)
    logits, has_excluded = _check(logits, 1, name)
    allowed = int((logits > -torch.inf).sum(-1).min()) if has_excluded else logits.shape[-1]
    if k > allowed:
        raise OptionError(
            f"{name} cannot choose {k} of {logits.shape[-1]} items: an instance has {allowed} that are not excluded by "
            f"minus infinity; {'exclude fewer' if k == 1 else 'lower k, or exclude fewer'}"
        )
    return logits


def _check(logits: Tensor, dims: int, name: str) -> tuple[Tensor, bool]:
    """Return checked logits in float32 or float64, and whether they exclude any entry."""
    check_floats(logits, f"{name} takes", "logits")
    if logits.ndim < dims or 0 in logits.shape[logits.ndim - dims :]:
        raise ShapeError(
            f"{name} takes logits whose last {dims} axes form one instance that is not empty, got {tuple(logits.shape)}"
        )
    # Gradients may be needed later from a distribution that was created without recording.
    with torch.enable_grad():
        logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if not logits.numel():
            return logits, False
        # One check, for which the CPU waits once, is enough for valid logits. NaN propagates to both ends.
        low, high = logits.detach().aminmax()
        if bool((low >= MIN_LOGIT) & (high < torch.inf)):
            return logits, False
        if bool((logits.isnan() | (logits == torch.inf)).any()):
            raise DataError(
                f"{name} got logits with NaN or plus infinity; lower the learning rate, or bound the logits "
                "(minus infinity is allowed, and excludes an entry)"
            )
        return torch.where(logits >= MIN_LOGIT, logits, -torch.inf), True


def check_points(z: Tensor, logits: Tensor, dims: int, name: str) -> Tensor:
    """Return points in the dtype of the logits, without gradient; raise a ShapeError if they do not fit."""
    instance = logits.shape[logits.ndim - dims :]
    if z.ndim < dims or z.shape[z.ndim - dims :] != instance:
        raise ShapeError(f"{name} has instances of shape {tuple(instance)}, but the points have shape {tuple(z.shape)}")
    return z.detach().to(logits)


def clamp_probabilities(probabilities: Tensor) -> Tensor:
    """Return probabilities clamped to [0, 1], against rounding errors, with unchanged derivatives."""
    known = probabilities.detach()
    return probabilities + (known.clamp(0, 1) - known)


# torch.compile would break the graph in this function, and lose parts of the second derivative.
@torch._disable_dynamo
def gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return the gradient of a function of each instance, in every grad mode; differentiable if autograd records."""
    # `requires_grad` does not show tangents, and the copy below would lose them.
    if has_tangent(logits):
        raise DerivativeError(
            "forward mode cannot follow marginals, entropy and divergence of this distribution; use reverse mode: "
            "backward() or torch.autograd.grad"
        )
    differentiable = torch.is_grad_enabled() and logits.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        logits = logits if differentiable else logits.detach().clone().requires_grad_()
        (result,) = torch.autograd.grad(function(logits).sum(), logits, create_graph=differentiable)
    return result


def sample_gumbel_logits(logits: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return logits with Gumbel noise in double precision, (samples, *logits.shape), without gradient."""
    check_counts(0, samples=samples)
    logits = subtract_largest(logits.detach().double())
    noise = Gumbel().sample((samples, *logits.shape), dtype=logits.dtype, device=logits.device, generator=generator)
    return logits + noise

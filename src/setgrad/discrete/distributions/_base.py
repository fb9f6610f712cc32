"""What every distribution over discrete points is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from torch.autograd import forward_ad

from setgrad.discrete.distributions._logs import DEEPEST
from setgrad.discrete.solvers._parameters import check_counts, check_floats
from setgrad.errors import DataError, DerivativeError, OptionError, ShapeError


class Distribution(ABC):
    """A law over the points z that a solver can return, with probability in proportion to exp(score of z).

    Logits have shape (*batch, *instance), and points the shape (samples, *batch, *instance). A logit of minus infinity
    excludes its entry, and so does one below -1e25, the mask of many models; NaN and plus infinity are refused. Half
    precision is worked in single precision. Gradients pass to the logits, never to points. Distributions are values:
    nothing in them changes.
    """

    logits: Tensor

    @abstractmethod
    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent points from exactly this law: shape (samples, *batch, *instance), no gradient."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Logarithm of the probability of points whose last axes are those of the logits.

        What the law cannot produce has minus infinity, and no gradient.
        """

    @property
    @abstractmethod
    def marginals(self) -> Tensor:
        """The mean of z, in the shape of the logits."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy of each instance, in nats."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """The divergence KL(self || other) of each instance; infinity where `other` excludes what self can draw."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """A point of the largest probability, in the shape of the logits; ties go to the lower index. No gradient."""


def check_logits(logits: Tensor, dims: int, name: str) -> Tensor:
    """Refuse logits without a meaning; give them back in single precision at least."""
    return _examine(logits, dims, name)[0]


def check_choice(logits: Tensor, k: int, name: str) -> Tensor:
    """`check_logits` for a choice of k items along the last axis: refuse instances in which fewer are left as well."""
    check_counts(0, k=k)
    logits, excluding = _examine(logits, 1, name)
    least = int((logits > -torch.inf).sum(-1).min()) if excluding else logits.shape[-1]
    if k > least:
        raise OptionError(
            f"{name} cannot choose {k} of {logits.shape[-1]} items: an instance has {least} that are not excluded by "
            f"minus infinity; {'exclude fewer' if k == 1 else 'lower k, or exclude fewer'}"
        )
    return logits


def _examine(logits: Tensor, dims: int, name: str) -> tuple[Tensor, bool]:
    """Logits as `check_logits` gives them, and whether they exclude any entry."""
    check_floats(logits, f"{name} takes", "logits")
    if logits.ndim < dims or 0 in logits.shape[logits.ndim - dims :]:
        raise ShapeError(
            f"{name} takes logits whose last {dims} axes make one instance that is not empty, got {tuple(logits.shape)}"
        )
    # Gradients may be wanted later of a law that was made without recording.
    with torch.enable_grad():
        logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if not logits.numel():
            return logits, False
        # One look, for which the host waits once, is enough where all is well. NaN spoils both ends.
        low, high = logits.detach().aminmax()
        if bool((low >= DEEPEST) & (high < torch.inf)):
            return logits, False
        if bool((logits.isnan() | (logits == torch.inf)).any()):
            raise DataError(
                f"{name} got logits with NaN or plus infinity; look for a rate that is too high, or bound the logits "
                "(minus infinity is allowed, and excludes an entry)"
            )
        return torch.where(logits >= DEEPEST, logits, -torch.inf), True


def check_points(z: Tensor, logits: Tensor, dims: int, name: str) -> Tensor:
    """Refuse points that do not fit the logits; give them back in the dtype of the logits, without gradient."""
    instance = logits.shape[logits.ndim - dims :]
    if z.ndim < dims or z.shape[z.ndim - dims :] != instance:
        raise ShapeError(f"{name} has instances of shape {tuple(instance)}, and the points have {tuple(z.shape)}")
    return z.detach().to(logits)


def within_bounds(chances: Tensor) -> Tensor:
    """Probabilities from 0 to 1, which rounding may have left, with all derivatives as they were."""
    known = chances.detach()
    return chances + (known.clamp(0, 1) - known)


# torch.compile would differentiate a graph that is cut here, and lose parts of the second derivative.
@torch._disable_dynamo
def gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Gradient of a function of each instance, in every grad mode; where autograd records, it has a gradient too."""
    # Of tangents `requires_grad` says nothing, and the copy below would lose them.
    if forward_ad.unpack_dual(logits).tangent is not None:
        raise DerivativeError(
            "forward mode cannot follow marginals, entropy and divergence of this distribution; use reverse mode: "
            "backward() or torch.autograd.grad"
        )
    differentiable = torch.is_grad_enabled() and logits.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        logits = logits if differentiable else logits.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(function(logits).sum(), logits, create_graph=differentiable)
    return found

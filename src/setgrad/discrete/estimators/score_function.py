"""Score-function estimators: unbiased gradients of a mean loss, for losses that need no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from setgrad.discrete._estimator import replace_gradient
from setgrad.discrete.distributions._base import Distribution
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.errors import OptionError, ShapeError


def reinforce(losses: Tensor, log_prob: Tensor, *, baseline: Tensor | float = 0.0) -> Tensor:
    """Return a surrogate loss: its value is the mean of the losses, its gradient is the score-function estimate.

    The distribution gets the mean of (loss - baseline) times the gradient of the log-probability; this gradient cannot
    be differentiated again. Everything else that the losses depend on gets their usual gradient.

    Args:
        losses: The loss of each sample: (S, *batch).
        log_prob: Log-probabilities of the samples, of the same shape.
        baseline: Subtracted from the losses. It may depend on anything but the sample that it is subtracted for.

    Returns:
        The surrogate loss, of shape (*batch).

    Raises:
        ShapeError: If the shapes differ.

    Examples:
        >>> log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
        >>> reinforce(torch.tensor([3.0, 5.0]), log_prob).backward()
        >>> log_prob.grad
        tensor([1.5000, 2.5000])
    """
    if losses.shape != log_prob.shape or not losses.ndim:
        raise ShapeError(
            f"losses have shape {tuple(losses.shape)} and log-probabilities {tuple(log_prob.shape)}; both must be "
            "(samples, *batch)"
        )
    # The value 0 with the gradient of log_prob. A second derivative would miss the change of the distribution itself,
    # so it raises; second derivatives with respect to the parameters of the losses work.
    score = replace_gradient(torch.zeros_like(log_prob), log_prob)
    level = baseline.detach() if isinstance(baseline, Tensor) else baseline
    return (losses + (losses - level) * score).mean(0)


def rloo(losses: Tensor, log_prob: Tensor) -> Tensor:
    """Return the surrogate loss of `reinforce`, with the mean loss of all other samples as the baseline of each sample.

    Args:
        losses: The loss of each sample: (S, *batch), with 2 or more samples.
        log_prob: Log-probabilities of the samples, of the same shape.

    Returns:
        The surrogate loss, of shape (*batch).

    Raises:
        OptionError: If there is only one sample.
        ShapeError: If the shapes differ.

    Examples:
        >>> from setgrad.discrete import KSubset
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> q = KSubset(logits, k=2)
        >>> z = q.sample(8, generator=torch.Generator().manual_seed(0))
        >>> rloo(z[:, 0], q.log_prob(z)).backward()
        >>> bool(logits.grad[0] > 0)
        True
    """
    return reinforce(losses, log_prob, baseline=leave_one_out(losses.detach()))


def leave_one_out(values: Tensor) -> Tensor:
    """Return for each entry of the first axis the mean of all other entries."""
    if values.shape[0] < 2:
        raise OptionError("the mean of all other samples needs 2 samples or more; raise samples, or use reinforce")
    return (values.sum(0) - values) / (values.shape[0] - 1)


@final
class ScoreFunction(nn.Module):
    """Draw samples, compute their losses, and return a loss with the score-function gradient.

    Args:
        family: A function from theta to a distribution.
        samples: The number of draws; 2 or more with a baseline.
        baseline: Subtract the mean loss of the other samples: no bias, less variance.
        generator: Source of random numbers.

    Examples:
        >>> from setgrad.discrete import KSubset
        >>> generator = torch.Generator().manual_seed(0)
        >>> layer = ScoreFunction(lambda theta: KSubset(theta, 2), samples=4, generator=generator)
        >>> theta = torch.zeros(3, 5, requires_grad=True)
        >>> layer(theta, lambda z: z[..., 0]).mean().backward()
        >>> theta.grad.shape
        torch.Size([3, 5])
    """

    def __init__(
        self,
        family: Callable[[Tensor], Distribution],
        *,
        samples: int,
        baseline: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_counts(1 + baseline, samples=samples)
        self.family = family
        self.samples = samples
        self.baseline = baseline
        self.generator = generator

    def forward(
        self, theta: Tensor, loss: Callable[[Tensor], Tensor], *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the surrogate loss.

        Args:
            theta: Parameters of the distribution, (*batch, *instance).
            loss: From samples (S, *batch, *instance) to losses (S, *batch).
            generator: Used instead of the estimator's own generator.

        Returns:
            The surrogate loss, of shape (*batch).
        """
        q = self.family(theta)
        z = q.sample(self.samples, generator=generator or self.generator)
        losses, log_prob = loss(z), q.log_prob(z)
        return rloo(losses, log_prob) if self.baseline else reinforce(losses, log_prob)

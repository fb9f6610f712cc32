"""Score-function estimates for k-subsets, with control variates."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from setgrad._autograd import in_transform
from setgrad.discrete.distributions.k_subset import KSubset
from setgrad.discrete.estimators.score_function import leave_one_out, reinforce, rloo
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.errors import OptionError, ShapeError


@final
class SFESS(nn.Module):
    """Exact samples of k items of n, and an unbiased gradient of their mean loss.

    Wijk et al., 2024, arXiv:2407.16058, with another control variate: if the loss has a derivative, its linear part is
    taken out of the score function, and the gradient of that part is computed exactly, from the marginals. The slope
    for each sample is the mean derivative at the OTHER samples, so the estimate stays unbiased. For a linear loss the
    variance is 0.

    Args:
        k: The number of items.
        samples: The number of draws; 2 or more.
        linear: Take the linear part out. Turn it off for losses without a derivative.
        generator: Source of random numbers.

    Examples:
        >>> theta = torch.zeros(3, 5, requires_grad=True)
        >>> layer = SFESS(2, samples=4, generator=torch.Generator().manual_seed(0))
        >>> layer(theta, lambda z: z[..., 0]).sum().backward()
        >>> theta.grad[0]
        tensor([ 0.2400, -0.0600, -0.0600, -0.0600, -0.0600])
    """

    def __init__(self, k: int, *, samples: int, linear: bool = True, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_counts(k=k)
        check_counts(2, samples=samples)
        self.k = k
        self.samples = samples
        self.linear = linear
        self.generator = generator

    def forward(
        self, theta: Tensor, loss: Callable[[Tensor], Tensor], *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the surrogate loss.

        Args:
            theta: Logits of the items, (*batch, n).
            loss: From samples (S, *batch, n) to losses (S, *batch).
            generator: Used instead of the estimator's own generator.

        Returns:
            The surrogate loss, of shape (*batch).

        Raises:
            ShapeError: If there is not one loss for each sample.
            OptionError: If the loss has no derivative, or a transform of torch.func is active, and `linear` is True.
        """
        q = KSubset(theta, self.k)
        z = q.sample(self.samples, generator=generator or self.generator).to(theta.dtype)
        if not self.linear or not torch.is_grad_enabled():
            return rloo(loss(z), q.log_prob(z))
        if in_transform():
            raise OptionError(
                "SFESS differentiates the loss itself, which torch.func cannot follow; use backward(), "
                "or SFESS(linear=False)"
            )
        losses = loss(z.requires_grad_())
        if losses.shape != z.shape[:-1]:
            raise ShapeError(f"losses must have shape {tuple(z.shape[:-1])}, one for each sample, got {losses.shape}")
        if not losses.requires_grad:
            raise OptionError("the loss has no derivative with respect to z; use SFESS(linear=False)")
        (slopes,) = torch.autograd.grad(losses.sum(), z, retain_graph=True, allow_unused=True)
        z = z.detach()
        if slopes is None:
            return rloo(losses, q.log_prob(z))
        other_slopes = leave_one_out(slopes)
        # <other_slopes, z> is subtracted from the loss of a sample and from its baseline over the other samples.
        baseline = leave_one_out(losses.detach()) + (other_slopes * (z - leave_one_out(z))).sum(-1)
        means = q.marginals.to(theta.dtype)
        exact = (slopes.mean(0) * (means - means.detach())).sum(-1)
        return reinforce(losses, q.log_prob(z).to(losses.dtype), baseline=baseline) + exact

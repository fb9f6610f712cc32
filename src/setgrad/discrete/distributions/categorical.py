"""One of n items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete.distributions._base import Distribution, check_choice, check_points
from setgrad.discrete.distributions._logs import floored, from_largest
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import ArgMax
from setgrad.errors import ShapeError


@final
@dataclass(frozen=True, eq=False)
class Categorical(Distribution):
    """The law softmax(logits) over points z with a single one.

    Args:
        logits: (*batch, n).

    Example:
        >>> one = Categorical(torch.tensor([0.0, 0.0, -torch.inf]))
        >>> one.marginals
        tensor([0.5000, 0.5000, 0.0000])
        >>> one.entropy()
        tensor(0.6931)
    """

    logits: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_choice(self.logits, 1, "Categorical"))

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """The largest of logits with Gumbel noise."""
        check_counts(0, samples=samples)
        logits = from_largest(self.logits.detach().double())
        noise = Gumbel().sample((samples, *logits.shape), dtype=logits.dtype, device=logits.device, generator=generator)
        return ArgMax().solve(logits + noise).to(self.logits.dtype)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-probability of the item that is 1."""
        z = check_points(z, self.logits, 1, "Categorical")
        valid = ((z == 0) | ((z == 1) & (self.logits > -torch.inf))).all(-1) & (z.sum(-1) == 1)
        return torch.where(valid, torch.where(z == 1, self._logs, 0).sum(-1), -torch.inf)

    @property
    def log_partition(self) -> Tensor:
        """Logarithm of the sum of the weights."""
        return floored(self.logits).logsumexp(-1)

    @property
    def marginals(self) -> Tensor:
        """Probabilities of the items."""
        return self._logs.exp()

    def entropy(self) -> Tensor:
        """Mean of minus the log-probability."""
        return -(self.marginals * self._logs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """Mean difference of log-probabilities."""
        if other.logits.shape[-1] != self.logits.shape[-1]:
            raise ShapeError(
                f"no divergence between choices of {self.logits.shape[-1]} and of {other.logits.shape[-1]} items"
            )
        impossible = ((self.logits > -torch.inf) & (other.logits == -torch.inf)).any(-1)
        value = (self.marginals * (self._logs - other._logs)).sum(-1)
        return torch.where(impossible, torch.inf, value)

    @property
    def mode(self) -> Tensor:
        """The largest logit."""
        return ArgMax().solve(self.logits.detach())

    @property
    def _logs(self) -> Tensor:
        """Log-probabilities, with a finite floor for excluded items."""
        return floored(self.logits).log_softmax(-1)

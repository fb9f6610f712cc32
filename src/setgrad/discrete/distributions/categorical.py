"""One of n items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete.distributions._base import (
    Distribution,
    check_item_logits,
    check_points,
    sample_gumbel_logits,
)
from setgrad.discrete.distributions._log_space import floor_logits
from setgrad.discrete.solvers.top_k import ArgMax
from setgrad.errors import ShapeError


@final
@dataclass(frozen=True, eq=False)
class Categorical(Distribution):
    """The distribution softmax(logits) over one-hot points z.

    Args:
        logits: (*batch, n).

    Raises:
        OptionError: If all items of an instance are excluded.
        DataError: If the logits contain NaN or plus infinity.

    Examples:
        >>> one = Categorical(torch.tensor([0.0, 0.0, -torch.inf]))
        >>> one.marginals
        tensor([0.5000, 0.5000, 0.0000])
        >>> one.entropy()
        tensor(0.6931)
    """

    logits: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_item_logits(self.logits, 1, "Categorical"))

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples, (samples, *batch, n): the largest logits with Gumbel noise."""
        return ArgMax().solve(sample_gumbel_logits(self.logits, samples, generator)).to(self.logits.dtype)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-probability of the item that is 1."""
        z = check_points(z, self.logits, 1, "Categorical")
        valid = ((z == 0) | ((z == 1) & (self.logits > -torch.inf))).all(-1) & (z.sum(-1) == 1)
        return torch.where(valid, torch.where(z == 1, self._log_probs, 0).sum(-1), -torch.inf)

    @property
    def log_partition(self) -> Tensor:
        """The logarithm of the sum of exp(logits)."""
        return floor_logits(self.logits).logsumexp(-1)

    @property
    def marginals(self) -> Tensor:
        """The probability of each item."""
        return self._log_probs.exp()

    def entropy(self) -> Tensor:
        """Return the entropy of each instance, in nats."""
        return -(self.marginals * self._log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """Return KL(self || other) of each instance.

        Raises:
            ShapeError: If the numbers of items differ.
        """
        if other.logits.shape[-1] != self.logits.shape[-1]:
            raise ShapeError(
                f"no KL divergence between choices of {self.logits.shape[-1]} and of {other.logits.shape[-1]} "
                "items; both numbers must be the same"
            )
        impossible = ((self.logits > -torch.inf) & (other.logits == -torch.inf)).any(-1)
        value = (self.marginals * (self._log_probs - other._log_probs)).sum(-1)
        return torch.where(impossible, torch.inf, value)

    @property
    def mode(self) -> Tensor:
        """The item with the largest logit, as a one-hot point."""
        return ArgMax().solve(self.logits.detach())

    @property
    def _log_probs(self) -> Tensor:
        """Log-probabilities, with a finite value for excluded items."""
        return floor_logits(self.logits).log_softmax(-1)

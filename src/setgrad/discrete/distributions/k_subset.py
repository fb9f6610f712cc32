"""Exactly k of n items, with probability proportional to the product of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from setgrad.discrete.distributions._base import (
    Distribution,
    check_item_logits,
    check_points,
    clamp_probabilities,
    gradient,
)
from setgrad.discrete.distributions._count_tree import count_tree, sample_counts
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError

# Bisection steps for the tilt. The tilt need not be exact: the results are exact for any tilt.
_BISECTIONS = 30
# Log-odds at which a probability rounds to 1, with space for the logarithm of n.
_CERTAIN = 100.0


@final
@dataclass(frozen=True, eq=False)
class KSubset(Distribution):
    """The distribution `p(z) = exp(<logits, z>) / Z` over all z of zeros and exactly k ones.

    It is the distribution of independent Bernoulli variables, conditioned on k ones. A common shift of the logits does
    not change it, and the shift (`tilt`) that makes k the expected number keeps every quantity in the range of floats.
    Memory grows with n log k and time with n k; for k above n / 2, the n - k items that are not chosen are counted
    instead. Adding Gumbel noise and taking the k largest entries samples ANOTHER distribution of sets, that of drawing
    without replacement (`PlackettLuce`).

    Args:
        logits: (*batch, n).
        k: The number of ones, from 0 to the number of items that are not excluded.

    Raises:
        OptionError: If k is out of range.
        DataError: If the logits contain NaN or plus infinity.

    Examples:
        >>> subset = KSubset(torch.tensor([0.0, 0.0, 1.0, -torch.inf]), k=2)
        >>> subset.marginals
        tensor([0.5777, 0.5777, 0.8446, 0.0000])
        >>> subset.sample(3, generator=torch.Generator().manual_seed(0)).sum(-1)
        tensor([2., 2., 2.])
    """

    logits: Tensor
    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_item_logits(self.logits, self.k, "KSubset"))

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples, (samples, *batch, n), by splitting k between halves of the items, recursively."""
        check_counts(0, samples=samples)
        counted = sample_counts(self._tree, self._number, samples, generator).to(self.logits.dtype)
        return 1 - counted if self._inverted else counted

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-probability of the Bernoulli variables minus that of k ones."""
        z = check_points(z, self.logits, 1, "KSubset")
        valid = (((z == 0) | (z == 1)) & ((z == 0) | self._allowed)).all(-1) & (z.sum(-1) == self.k)
        log_odds = self._shifted(self.logits)
        each = torch.where(self._allowed, logsigmoid(torch.where(z == 1, log_odds, -log_odds)), 0)
        return torch.where(valid, each.sum(-1) - self._log_prob_count(log_odds), -torch.inf)

    @property
    def log_partition(self) -> Tensor:
        """Log Z of each instance: the log of the elementary symmetric polynomial of the weights."""
        return self._shifted_log_partition(self.logits) - self.k * self.tilt

    @property
    def marginals(self) -> Tensor:
        """The probability of each item: the gradient of the log-partition."""
        return clamp_probabilities(gradient(self._shifted_log_partition, self.logits))

    def entropy(self) -> Tensor:
        """Return the entropy of each instance, computed item by item so that large scores do not cancel."""
        log_odds, means = self._shifted(self.logits), self.marginals
        each = means * logsigmoid(log_odds) + (1 - means) * logsigmoid(-log_odds)
        return self._log_prob_count(log_odds) - torch.where(self._allowed, each, 0).sum(-1)

    def kl(self, other: KSubset) -> Tensor:
        """Return KL(self || other) of each instance.

        Raises:
            OptionError: If n or k differ.
        """
        if other.k != self.k or other.logits.shape[-1:] != self.logits.shape[-1:]:
            raise OptionError(
                f"no KL divergence between {self.k} of {self.logits.shape[-1]} and {other.k} of "
                f"{other.logits.shape[-1]} items: both must be the same"
            )
        means = self.marginals
        scores = (means * (self._shifted(self.logits) - other._shifted(other.logits))).sum(-1)
        # Every allowed item is part of a subset with positive probability.
        impossible = (self._allowed & ~other._allowed).any(-1) & (self.k > 0)
        return torch.where(
            impossible,
            torch.inf,
            scores - self._shifted_log_partition(self.logits) + other._shifted_log_partition(other.logits),
        )

    @property
    def mode(self) -> Tensor:
        """Ones at the k largest logits."""
        return TopK(self.k).solve(self.logits.detach())

    @cached_property
    def tilt(self) -> Tensor:
        """The shift of the logits, without gradient, for which the expected number of ones is k."""
        with torch.no_grad():
            allowed, items = self._allowed, self._allowed.sum(-1).to(self.logits.dtype)
            # With k = 0 or all items the shift would be infinite; a quarter of an item more or less works as well.
            goal = (items - 0.25).clamp(0.25, max(self.k, 0.25))
            known = torch.where(allowed, self.logits, -torch.inf)
            best = known.topk(min(self.k + 1, known.shape[-1])).values
            # At `low` the sum is too small even if all items before the k-th count fully and all others equal the k-th.
            first = max(self.k, 1)
            last, rest = best[..., first - 1], goal - (first - 1)
            low = torch.log(rest) - torch.log(items - first + 1 - rest) - last
            # At `high` the k + 1 best items alone are enough. If the last of them has a far lower logit, the others are
            # certain long before that, and a large shift would cost the digits of the logits.
            count = items.clamp(max=self.k + 1)
            high = torch.log(goal) - torch.log(count - goal) - torch.where(items > self.k, best[..., -1], last)
            high = torch.minimum(high, low + _CERTAIN)
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                enough = torch.sigmoid(known + middle[..., None]).sum(-1) >= goal
                low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
            # Without any item (k = 0 of none) both bounds are infinite.
            return torch.where(items > 0, (low + high) / 2, 0)

    @property
    def _inverted(self) -> bool:
        """Whether to count the items that are not chosen, because they are fewer."""
        return 2 * self.k > self.logits.shape[-1]

    @property
    def _number(self) -> int:
        return self.logits.shape[-1] - self.k if self._inverted else self.k

    @property
    def _allowed(self) -> Tensor:
        return self.logits.detach() > -torch.inf

    @cached_property
    def _tree(self) -> list[Tensor]:
        """Distributions of the counts in double precision, for sampling; cached because samples need no graph."""
        with torch.no_grad():
            log_odds = self._shifted(self.logits).double()
            return count_tree(*self._probabilities(log_odds), self._number)

    def _shifted(self, logits: Tensor) -> Tensor:
        """Return the log-odds of the Bernoulli variables; 0, and no gradient, for excluded items."""
        return torch.where(self._allowed, torch.where(self._allowed, logits, 0) + self.tilt[..., None], 0)

    def _probabilities(self, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities that an item is not counted, and that it is."""
        out, chosen = torch.sigmoid(-log_odds), torch.sigmoid(log_odds)
        out, chosen = torch.where(self._allowed, out, 1), torch.where(self._allowed, chosen, 0)
        return (chosen, out) if self._inverted else (out, chosen)

    def _log_prob_count(self, log_odds: Tensor) -> Tensor:
        """Return the log-probability of k ones."""
        return count_tree(*self._probabilities(log_odds), self._number)[-1][self._number, ..., 0].log()

    def _shifted_log_partition(self, logits: Tensor) -> Tensor:
        """Return the log-partition of the shifted logits."""
        log_odds = self._shifted(logits)
        return self._log_prob_count(log_odds) - torch.where(self._allowed, logsigmoid(-log_odds), 0).sum(-1)

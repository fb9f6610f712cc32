"""Exactly k of n items, with probability in proportion to the product of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from setgrad.discrete.distributions._base import (
    Distribution,
    check_choice,
    check_points,
    gradient,
    within_bounds,
)
from setgrad.discrete.distributions._counts import count_tree, sample_counts
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError

# Halvings of the range in which the tilt lies. The tilt need not be exact: the results are, for any tilt.
_HALVINGS = 30
# Log-odds at which a coin is sure to come up, with room for the logarithm of n.
_SURE = 100.0


@final
@dataclass(frozen=True, eq=False)
class KSubset(Distribution):
    """The law p(z) = exp(<logits, z>) / Z over all z of zeros and exactly k ones.

    It is the law of independent coins, given that k of them come up. All logits may be shifted together without
    changing it, and the shift (`tilt`) that makes k the expected number keeps every quantity in the range of floats.
    Memory grows with n log k and time with n k; for k above n / 2, the n - k items that are out are counted instead.
    Adding Gumbel noise and taking the k largest samples ANOTHER law of sets, that of drawing without replacement
    (`PlackettLuce`).

    Args:
        logits: (*batch, n).
        k: Number of ones, from 0 to the number of items that are not excluded.

    Example:
        >>> subset = KSubset(torch.tensor([0.0, 0.0, 1.0, -torch.inf]), k=2)
        >>> subset.marginals
        tensor([0.5777, 0.5777, 0.8446, 0.0000])
        >>> subset.sample(3, generator=torch.Generator().manual_seed(0)).sum(-1)
        tensor([2., 2., 2.])
    """

    logits: Tensor
    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_choice(self.logits, self.k, "KSubset"))

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Share k between the halves of the set, then between their halves, and so on."""
        check_counts(0, samples=samples)
        counted = sample_counts(self._tree, self._number, samples, generator).to(self.logits.dtype)
        return 1 - counted if self._inverted else counted

    def log_prob(self, z: Tensor) -> Tensor:
        """Probability of the coins, divided by the probability that k come up."""
        z = check_points(z, self.logits, 1, "KSubset")
        valid = (((z == 0) | (z == 1)) & ((z == 0) | self._allowed)).all(-1) & (z.sum(-1) == self.k)
        coins = self._shifted(self.logits)
        each = torch.where(self._allowed, logsigmoid(torch.where(z == 1, coins, -coins)), 0)
        return torch.where(valid, each.sum(-1) - self._log_chance(coins), -torch.inf)

    @property
    def log_partition(self) -> Tensor:
        """Logarithm of Z, for each instance: log of the elementary symmetric polynomial of the weights."""
        return self._log_mass(self.logits) - self.k * self.tilt

    @property
    def marginals(self) -> Tensor:
        """Probability of each item: the gradient of the log-partition."""
        return within_bounds(gradient(self._log_mass, self.logits))

    def entropy(self) -> Tensor:
        """Log-partition minus the mean score, item by item so that large scores do not meet."""
        coins, means = self._shifted(self.logits), self.marginals
        each = means * logsigmoid(coins) + (1 - means) * logsigmoid(-coins)
        return self._log_chance(coins) - torch.where(self._allowed, each, 0).sum(-1)

    def kl(self, other: KSubset) -> Tensor:
        """Mean difference of scores, and difference of log-partitions."""
        if other.k != self.k or other.logits.shape[-1:] != self.logits.shape[-1:]:
            raise OptionError(
                f"no divergence between {self.k} of {self.logits.shape[-1]} and {other.k} of {other.logits.shape[-1]} "
                "items: both must choose as many from as many"
            )
        means = self.marginals
        scores = (means * (self._shifted(self.logits) - other._shifted(other.logits))).sum(-1)
        # Every allowed item is in some subset.
        impossible = (self._allowed & ~other._allowed).any(-1) & (self.k > 0)
        return torch.where(impossible, torch.inf, scores - self._log_mass(self.logits) + other._log_mass(other.logits))

    @property
    def mode(self) -> Tensor:
        """The k largest logits."""
        return TopK(self.k).solve(self.logits.detach())

    @cached_property
    def tilt(self) -> Tensor:
        """The shift of the logits, without gradient, that makes k the expected number of coins that come up."""
        with torch.no_grad():
            allowed, items = self._allowed, self._allowed.sum(-1).to(self.logits.dtype)
            # With k = 0 or all items the shift would be infinite; a quarter of an item more or less does as well.
            goal = (items - 0.25).clamp(0.25, max(self.k, 0.25))
            known = torch.where(allowed, self.logits, -torch.inf)
            best = known.topk(min(self.k + 1, known.shape[-1])).values
            # At `low` there are too few even if all items before the k-th come up and all others are as good as it.
            first = max(self.k, 1)
            last, rest = best[..., first - 1], goal - (first - 1)
            low = torch.log(rest) - torch.log(items - first + 1 - rest) - last
            # At `high` the k + 1 best items alone are enough. Where the last of them lies far behind, the k others are
            # sure long before that, and a large shift would cost the digits of the logits.
            most = items.clamp(max=self.k + 1)
            high = torch.log(goal) - torch.log(most - goal) - torch.where(items > self.k, best[..., -1], last)
            high = torch.minimum(high, low + _SURE)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                enough = torch.sigmoid(known + middle[..., None]).sum(-1) >= goal
                low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
            # Without any item (k = 0 of none) both ends are infinite.
            return torch.where(items > 0, (low + high) / 2, 0)

    @property
    def _inverted(self) -> bool:
        """Whether to count the items that are out, because they are fewer."""
        return 2 * self.k > self.logits.shape[-1]

    @property
    def _number(self) -> int:
        return self.logits.shape[-1] - self.k if self._inverted else self.k

    @property
    def _allowed(self) -> Tensor:
        return self.logits.detach() > -torch.inf

    @cached_property
    def _tree(self) -> list[Tensor]:
        """Laws of the numbers in double precision, for sampling; kept because samples need no graph."""
        with torch.no_grad():
            coins = self._shifted(self.logits).double()
            return count_tree(*self._chances(coins), self._number)

    def _shifted(self, logits: Tensor) -> Tensor:
        """Log-odds of the coins; 0, and no gradient, for excluded items."""
        return torch.where(self._allowed, torch.where(self._allowed, logits, 0) + self.tilt[..., None], 0)

    def _chances(self, coins: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities that an item is not counted, and that it is."""
        out, chosen = torch.sigmoid(-coins), torch.sigmoid(coins)
        out, chosen = torch.where(self._allowed, out, 1), torch.where(self._allowed, chosen, 0)
        return (chosen, out) if self._inverted else (out, chosen)

    def _log_chance(self, coins: Tensor) -> Tensor:
        """Log-probability that k coins come up."""
        return count_tree(*self._chances(coins), self._number)[-1][self._number, ..., 0].log()

    def _log_mass(self, logits: Tensor) -> Tensor:
        """Log-partition of the shifted logits."""
        coins = self._shifted(logits)
        return self._log_chance(coins) - torch.where(self._allowed, logsigmoid(-coins), 0).sum(-1)

"""Rankings by drawing items one after the other without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete.distributions._base import Distribution, check_logits, check_points, sample_gumbel_logits
from setgrad.discrete.distributions._log_space import floor_logits, log_suffix_sums, subtract_largest
from setgrad.discrete.distributions._prefixes import prefixes
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.ranking import Ranking
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class PlackettLuce(Distribution):
    """The Plackett-Luce distribution of ranks: each place is drawn by a softmax over the remaining items.

    A point z contains the rank of every item, 1 for the first, as in `Ranking`. With `length`, only that many places
    are filled, and all other items have the rank length + 1.

    Ranking the logits with Gumbel noise samples this distribution exactly. The SET of the first k items has another
    distribution, a sum over their k! orders. It is not the distribution `KSubset` with the same logits, where the
    probability of a set is proportional to the product of its weights.

    Sampling, `log_prob` and `mode` work for any n; `marginals` too if all places are filled (memory of n^2). Entropy,
    divergence, and the marginals of a part of the places have no closed form: they sum over sets, up to 14 items.

    Args:
        logits: (*batch, n).
        length: The number of places to fill; None for all. It is at most the number of items that are not excluded.

    Raises:
        OptionError: If length is out of range.
        DataError: If the logits contain NaN or plus infinity.

    Examples:
        >>> ranks = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
        >>> ranks.mode
        tensor([3., 1., 2.])
        >>> ranks.log_prob(ranks.mode).exp()
        tensor(0.4863)
        >>> PlackettLuce(torch.tensor([0.0, 2.0, 1.0]), length=1).mode
        tensor([2., 1., 2.])
    """

    logits: Tensor
    length: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_logits(self.logits, 1, "PlackettLuce"))
        check_counts(length=self.places)
        allowed = self.logits > -torch.inf
        fewest = int(allowed.sum(-1).min()) if allowed.numel() else self.logits.shape[-1]
        if not 0 <= self.places <= fewest:
            raise OptionError(
                f"PlackettLuce cannot fill {self.places} places: an instance has {fewest} items that are not excluded "
                "by a logit of minus infinity; give a length from 0 to that number"
            )

    @property
    def places(self) -> int:
        """The number of places that are filled."""
        return self.logits.shape[-1] if self.length is None else self.length

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples of ranks, (samples, *batch, n)."""
        return self._ranks(sample_gumbel_logits(self.logits, samples, generator)).to(self.logits.dtype)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-probability of ranks: for each place, the item there against all remaining ones."""
        z = check_points(z, self.logits, 1, "PlackettLuce")
        n, places = z.shape[-1], self.places
        ordered, order = z.sort(-1)
        expected = torch.arange(1, n + 1, dtype=z.dtype, device=z.device).clamp(max=places + 1)
        shape = torch.broadcast_shapes(z.shape, self.logits.shape)
        logits = floor_logits(subtract_largest(self.logits)).expand(shape).gather(-1, order.expand(shape))
        excluded = (self.logits == -torch.inf) & (z <= places)
        valid = (ordered == expected).all(-1) & ~excluded.any(-1)
        each = (logits - log_suffix_sums(logits))[..., :places]
        return torch.where(valid, torch.where(valid[..., None], each, 0).sum(-1), -torch.inf)

    @property
    def marginals(self) -> Tensor:
        """The mean rank of each item."""
        logits = floor_logits(self.logits)
        if self.places >= logits.shape[-1] - 1:
            # An item comes after another with probability sigmoid(difference); the item itself counts 1/2.
            return 0.5 + torch.sigmoid(logits[..., None, :] - logits[..., :, None]).sum(-1)
        # Without places the mean does not depend on the logits, but autograd needs a path.
        mean = 0 * logits + (self.places + 1)
        for place, (masses, _, following) in enumerate(prefixes(logits, self.places)):
            mean = mean - (self.places - place) * (masses[..., None] * following.exp()).sum(-2)
        return mean

    def entropy(self) -> Tensor:
        """Return the sum over places of the mean entropy of the next item."""
        logits = floor_logits(self.logits)
        total = 0 * logits.sum(-1)
        for masses, _, following in prefixes(logits, self.places):
            total = total - (masses * (following.exp() * following).sum(-1)).sum(-1)
        return total

    def kl(self, other: PlackettLuce) -> Tensor:
        """Return the sum over places of the mean divergence of the next item.

        Raises:
            OptionError: If the numbers of items or places differ.
        """
        if other.places != self.places or other.logits.shape[-1] != self.logits.shape[-1]:
            raise OptionError(
                f"no KL divergence between {self.places} of {self.logits.shape[-1]} places and {other.places} of "
                f"{other.logits.shape[-1]}: both must be the same"
            )
        impossible = ((self.logits > -torch.inf) & (other.logits == -torch.inf)).any(-1) & (self.places > 0)
        total = torch.zeros_like(impossible, dtype=self.logits.dtype)
        pairs = zip(
            prefixes(floor_logits(self.logits), self.places),
            prefixes(floor_logits(other.logits), self.places),
            strict=True,
        )
        for (masses, _, own), (_, _, others) in pairs:
            total = total + (masses * (own.exp() * (own - others)).sum(-1)).sum(-1)
        return torch.where(impossible, torch.inf, total)

    @property
    def mode(self) -> Tensor:
        """The ranks of the logits in descending order."""
        return self._ranks(self.logits.detach())

    def _ranks(self, scores: Tensor) -> Tensor:
        return Ranking().solve(-scores).clamp(max=self.places + 1)

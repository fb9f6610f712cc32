"""A distribution over subsets with correlated items: a Gaussian copula with a low-rank correlation.

Item i is in where `logit psi_i + logit Phi(g_i) > 0`. The normal variables are `g_i = d_i e_i + w_i . z`, where e_i
belongs to the item and z to the whole set. Because `d_i^2 + |w_i|^2 = 1`, Phi(g_i) is uniform, and the item is in with
probability psi_i, whatever the correlation `w_i . w_j` is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.special import log_ndtr, ndtri

from setgrad._autograd import has_tangent, is_tracked
from setgrad.encoders import ItemEncoder
from setgrad.errors import OptionError
from setgrad.functions import NoiseSource
from setgrad.inference.recognition import Draw, Recognition, bernoulli_entropy, straight_through
from setgrad.sets import Sets, segment_matmul, segment_sum

# Smallest weight of the item's own variable. Without it, the bit of an item given z would have no derivative.
_MIN_OWN = 1e-3
# Beyond this logit, the probability underflows in float64 and its normal quantile is infinite.
_MAX_LOGIT = 600.0


@final
class CopulaRecognition(Recognition):
    """A distribution in which items are correlated through shared normal variables: EquiVSet-copula.

    The entropy of this distribution has no closed form. By default the loss uses a lower estimate that grows with the
    number of samples, from the entropy of S given z to the true entropy, so that the loss stays a bound. The few
    samples of a training step are too few for it; `entropy_draws` adds others, for which F is not evaluated.

    Args:
        encoder: Item encoder of the network.
        hidden: Units of the hidden layers.
        rank: Number of shared normal variables.
        tau: Temperature of the relaxation that passes gradients back.
        entropy_draws: Draws of z that serve the estimate of the entropy alone, beside those of the subsets.
        marginal_entropy: Whether to use the sum of the entropies of the items, as published. It is never smaller than
            the true entropy, so that correlation costs nothing, and the loss is no longer a bound.
        free_variance: Whether to leave out the unit variance too, as published. The network can then draw the same
            subset every time while psi, which is no longer the probability of the item, stays near 1/2.

    Raises:
        OptionError: If the rank is below 1, a hidden layer has no units, tau is not positive, `entropy_draws` is
            negative, or `free_variance` is used without `marginal_entropy`.

    Examples:
        >>> import setgrad as sg
        >>> network = CopulaRecognition(sg.encoders.MLPItems(2, 8), hidden=(16,), rank=2)
        >>> sets = sg.Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0]]])
        >>> F = sg.functions.DeepSetFunction(2, phi="mlp", dim=8, hidden=(16,))
        >>> network.loss(F.bind(sets), sg.functions.FreshNoise(0), samples=5).shape
        torch.Size([])
        >>> [matrix.shape for matrix in network.correlation(sets)]
        [torch.Size([2, 2]), torch.Size([1, 1])]
    """

    def __init__(
        self,
        encoder: ItemEncoder,
        hidden: Sequence[int] = (500, 500),
        rank: int = 5,
        *,
        tau: float = 0.1,
        entropy_draws: int = 0,
        marginal_entropy: bool = False,
        free_variance: bool = False,
    ) -> None:
        if rank < 1:
            raise OptionError(
                f"a copula needs a rank of at least 1, not {rank}; use IndependentRecognition without one"
            )
        if entropy_draws < 0:
            raise OptionError(f"a copula needs 0 or more entropy_draws, not {entropy_draws}")
        if free_variance and not marginal_entropy:
            raise OptionError(
                "with free_variance=True psi is not the probability of an item, so the entropy cannot be computed from "
                "it: use marginal_entropy=True too, as published"
            )
        super().__init__(encoder, hidden, 2 + rank, tau)
        self.rank, self.marginal_entropy, self.free_variance = rank, marginal_entropy, free_variance
        self.entropy_draws = 0 if marginal_entropy else entropy_draws

    def draw(self, sets: Sets, noise: NoiseSource, samples: int) -> Draw:
        """Return random subsets: a score is the logit plus the logit of a correlated uniform variable."""
        outputs = self.outputs(sets)
        # Under autocast the outputs have half precision, in which the normal distribution is not available.
        logits, own, shared = self._split(outputs.to(torch.promote_types(outputs.dtype, torch.float32)))
        # One call for all numbers, because a frozen source repeats the same ones at every call.
        count = samples + self.entropy_draws
        normals = noise.normal(sets.layout, samples + self.rank * count).to(logits.dtype)
        first, rest = normals.split([samples, self.rank * count])
        # A sum over the set is a normal variable of the set that depends on neither order nor batch.
        size = sets.lengths.clamp(min=1).to(logits.dtype).sqrt()
        common = (segment_sum(rest.T, sets) / size[:, None]).index_select(0, sets.layout.ids)
        shift = torch.einsum("tr,trm->mt", shared, common.unflatten(1, (self.rank, count)))
        normal = own * first + shift[:samples]
        scores = (logits + log_ndtr(normal) - log_ndtr(-normal)).to(outputs.dtype)
        if self.marginal_entropy:
            return Draw(scores, segment_sum(bernoulli_entropy(logits), sets))
        # Given z, the item is in with probability Phi((quantile of psi + w . z) / d), independently of the others.
        conditional = (_normal_quantile(logits) + shift) / own
        return Draw(scores, _entropy_bound(conditional, straight_through(scores, self.tau), sets))

    def correlation(self, sets: Sets) -> list[Tensor]:
        """Return the correlation matrix `(n, n)` of the normal variables g of each set.

        With `free_variance` it is their covariance matrix.
        """
        _, own, shared = self._split(self.outputs(sets))
        factors = sets.with_values(torch.cat([own[:, None], shared], 1)).to_list()
        return [rows[:, 1:] @ rows[:, 1:].T + torch.diag(rows[:, 0].square()) for rows in factors]

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits `(total,)`, weights d `(total,)` and w `(total, rank)`; (d, w) has unit length."""
        own, shared = softplus(outputs[:, 1]), torch.tanh(outputs[:, 2:])
        if self.free_variance:
            return outputs[:, 0], own, shared
        own = own + _MIN_OWN
        scale = (own.square() + shared.square().sum(1)).rsqrt()
        return outputs[:, 0], own * scale, shared * scale[:, None]


def _normal_quantile(logits: Tensor) -> Tensor:
    """Return the quantile of the standard normal distribution at the probability with this logit."""
    # The smaller of psi and 1 - psi keeps all its digits. In float64, because far quantiles underflow in float32.
    sign = torch.where(logits < 0, -1.0, 1.0).to(logits.dtype)
    return (-sign * ndtri(torch.sigmoid(-(sign * logits).double().clamp(max=_MAX_LOGIT)))).to(logits.dtype)


def _entropy_bound(quantiles: Tensor, bits: Tensor, sets: Sets) -> Tensor:
    """Return a lower estimate of the entropy of S, `(b,)`.

    H(S) = H(S | z) + I(S, z). The first term is exact for each z. The second compares the probability of a subset under
    its z with the mean over all drawn z, including its own, which makes it too small rather than too large. It needs
    m k numbers for each item, which is cheap for the few subsets of a training step.

    Args:
        quantiles: Given z, the items are in with the probabilities Phi(quantiles), `(k, total)`.
        bits: Bits drawn with the first m of these probabilities, `(m, total)`.
        sets: The sets.
    """
    log_in, log_out, hard = log_ndtr(quantiles), log_ndtr(-quantiles), bits.detach()
    conditional = segment_sum(-(log_in.exp() * log_in + log_out.exp() * log_out).mean(0), sets)
    # Log-probability of subset l under z number k, (l, b, k). Each bit selects one of two terms, so nothing cancels.
    pairs = segment_matmul(hard, log_in.T, sets) + segment_matmul(1 - hard, log_out.T, sets)
    information = pairs.diagonal(dim1=0, dim2=2).T - pairs.logsumexp(2) + math.log(len(quantiles))
    if is_tracked(bits) or has_tangent(bits):
        # The mixture is not a linear function of the bits, so the effect of a bit is computed by flipping it.
        with torch.no_grad():
            flip, log_odds = 1 - 2 * hard, (log_in - log_out).T
            flipped = pairs.index_select(1, sets.layout.ids) + flip[..., None] * log_odds
            of_mixture = flip * (flipped.logsumexp(2) - pairs.logsumexp(2).index_select(1, sets.layout.ids))
            slope = log_odds.T[: len(bits)] - of_mixture
        information = information + segment_sum((slope * (bits - hard)).T, sets).T
    return conditional + information.mean(0)

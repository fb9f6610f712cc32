"""Subsets whose items come and go together: a Gaussian copula with a low-rank correlation.

Item i is in where `logit psi_i + logit Phi(g_i) > 0`. The normals are `g_i = d_i e_i + w_i . z`, with e_i the item's
own and z shared by the set. Because `d_i^2 + |w_i|^2 = 1`, Phi(g_i) is uniform and the item is in with probability
psi_i, whatever the correlation `w_i . w_j` does.
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

# An item always keeps some randomness of its own; without any, its bit given z would have no derivative.
_OWN = 1e-3
# Beyond this logit the probability is near the smallest number of float64, and its normal quantile near infinity.
_FAR = 600.0


@final
class CopulaRecognition(Recognition):
    """Items are correlated through `rank` common causes: EquiVSet-copula.

    The entropy of such a q has no closed form. By default the loss uses a lower estimate that grows with the number of
    samples, from the entropy of S given z to the true one, so that the loss stays a bound. `marginal_entropy=True` uses
    the sum over the items, as published: never smaller than the true one, so that correlation costs nothing and the
    "bound" may lie above what it should bound.

    `free_variance=True` leaves out the unit variance too, as published. Then q may draw the same subset every time, and
    psi, which is no longer the probability of anything, pays for none of it and stays near 1/2.

    Example:
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
        marginal_entropy: bool = False,
        free_variance: bool = False,
    ) -> None:
        if rank < 1:
            raise OptionError(f"a copula needs a rank of at least 1, not {rank}; without one it is independent")
        if free_variance and not marginal_entropy:
            raise OptionError(
                "with free_variance=True psi is not the probability of an item, and the entropy of q cannot be told "
                "from it: use marginal_entropy=True too, as published"
            )
        super().__init__(encoder, hidden, 2 + rank, tau)
        self.rank, self.marginal_entropy, self.free_variance = rank, marginal_entropy, free_variance

    def draw(self, sets: Sets, noise: NoiseSource, samples: int) -> Draw:
        """Logit plus the logit of a correlated uniform number."""
        outputs = self.outputs(sets)
        # The normal distribution has no half precision, which autocast gives.
        logits, own, shared = self._split(outputs.to(torch.promote_types(outputs.dtype, torch.float32)))
        # One call for all numbers, because a fixed source gives the same ones to every call.
        normals = noise.normal(sets.layout, (1 + self.rank) * samples).to(logits.dtype)
        first, rest = normals.split([samples, self.rank * samples])
        # A sum over the set is a normal number of the set, and knows neither order nor batch.
        size = sets.lengths.clamp(min=1).to(logits.dtype).sqrt()
        common = (segment_sum(rest.T, sets) / size[:, None]).index_select(0, sets.layout.ids)
        pull = torch.einsum("tr,trm->mt", shared, common.unflatten(1, (self.rank, samples)))
        normal = own * first + pull
        scores = (logits + log_ndtr(normal) - log_ndtr(-normal)).to(outputs.dtype)
        if self.marginal_entropy:
            return Draw(scores, segment_sum(bernoulli_entropy(logits), sets))
        # Given z, the item is in with probability Phi((quantile of psi + w . z) / d), independently of the others.
        given = (_normal_quantile(logits) + pull) / own
        return Draw(scores, _entropy_bound(given, straight_through(scores, self.tau), sets))

    def correlation(self, sets: Sets) -> list[Tensor]:
        """Correlation matrix of the normals g of each set, `(n, n)`; with `free_variance` their covariance."""
        _, own, shared = self._split(self.outputs(sets))
        factors = sets.with_values(torch.cat([own[:, None], shared], 1)).to_list()
        return [part[:, 1:] @ part[:, 1:].T + torch.diag(part[:, 0].square()) for part in factors]

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits `(total,)`, own weights d `(total,)` and shared weights w `(total, rank)`, of unit length together."""
        own, shared = softplus(outputs[:, 1]), torch.tanh(outputs[:, 2:])
        if self.free_variance:
            return outputs[:, 0], own, shared
        own = own + _OWN
        scale = (own.square() + shared.square().sum(1)).rsqrt()
        return outputs[:, 0], own * scale, shared * scale[:, None]


def _normal_quantile(logits: Tensor) -> Tensor:
    """The number that a standard normal variable stays below with the probability of this logit."""
    # The smaller of psi and 1 - psi has all its digits; float32 has no room for the ones far out.
    sign = torch.where(logits < 0, -1.0, 1.0).to(logits.dtype)
    return (-sign * ndtri(torch.sigmoid(-(sign * logits).double().clamp(max=_FAR)))).to(logits.dtype)


def _entropy_bound(given: Tensor, bits: Tensor, sets: Sets) -> Tensor:
    """Lower estimate of the entropy of S, `(b,)`: probabilities Phi(given) and the bits drawn with them, `(m, total)`.

    H(S) = H(S | z) + I(S, z). The first term is exact for each z. The second compares how likely a subset is under its
    own z with the mean over all z that were drawn, its own included, which makes it too small rather than too large.
    It takes m^2 numbers for each item, which is little for the few samples of a training step.
    """
    yes, no, whole = log_ndtr(given), log_ndtr(-given), bits.detach()
    conditional = segment_sum(-(yes.exp() * yes + no.exp() * no).mean(0), sets)
    # Log-probability of subset l under z number k, (l, b, k). Each bit picks one of two terms, so nothing cancels.
    pairs = segment_matmul(whole, yes.T, sets) + segment_matmul(1 - whole, no.T, sets)
    shared = pairs.diagonal(dim1=0, dim2=2).T - pairs.logsumexp(2) + math.log(len(bits))
    if is_tracked(bits) or has_tangent(bits):
        # The mixture is no linear function of the bits, so what a bit is worth is found by flipping it.
        with torch.no_grad():
            flip, worth = 1 - 2 * whole, (yes - no).T
            moved = pairs.index_select(1, sets.layout.ids) + flip[..., None] * worth
            mixed = flip * (moved.logsumexp(2) - pairs.logsumexp(2).index_select(1, sets.layout.ids))
            slope = worth.T - mixed
        shared = shared + segment_sum((slope * (bits - whole)).T, sets).T
    return conditional + shared.mean(0)

"""Recognition networks: they predict psi from the items, so that mean field starts near its solution and not at 1/2.

A recognition network is a distribution q over subsets, trained to maximise

    E_q F(S) + H(q)  <=  log of the sum of exp F(S) over all subsets

while F is fixed. F is evaluated on whole subsets drawn from q. The draw has no derivative, so the backward pass
replaces the step "score > 0" by a steep sigmoid of the score (a straight-through estimator with temperature tau).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from setgrad._autograd import has_tangent, is_tracked, is_transformed
from setgrad.encoders import ItemEncoder
from setgrad.errors import OptionError
from setgrad.functions import BoundSetFunction, NoiseSource
from setgrad.sets import Sets, segment_sum


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """Random subsets drawn from q.

    Attributes:
        scores: Scores `(m, total)`, differentiable in the weights of the network. An item is in where its score is
            positive.
        entropy: Entropy of q for each set, `(b,)`, or an estimate of it.
    """

    scores: Tensor
    entropy: Tensor


class Recognition(nn.Module, abc.ABC):
    """A network from the items of each set to a distribution over its subsets.

    Args:
        encoder: Item encoder of the network.
        hidden: Units of the hidden layers of the perceptron that reads the encoded items.
        outputs: Number of outputs for each item; the first is the logit of its probability.
        tau: Temperature of the relaxation that passes gradients back.

    Raises:
        OptionError: If a hidden layer has no units, or tau is not positive.
    """

    def __init__(self, encoder: ItemEncoder, hidden: Sequence[int], outputs: int, tau: float) -> None:
        super().__init__()
        if hidden and min(hidden) < 1:
            raise OptionError(f"hidden layers need at least 1 unit each, not {tuple(hidden)}")
        if not tau > 0:
            raise OptionError(f"the temperature tau must be positive, not {tau}")
        self.encoder, self.tau = encoder, tau
        layers: list[nn.Module] = []
        for before, after in pairwise((encoder.out_dim, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else encoder.out_dim, outputs))

    @abc.abstractmethod
    def draw(self, sets: Sets, noise: NoiseSource, samples: int) -> Draw:
        """Return `samples` random subsets of each set."""

    def start(self, sets: Sets) -> Tensor:
        """Return the logits `(total,)` of the probabilities that mean field starts from.

        They have a graph. Published training steps of F cut it: call this under `torch.no_grad()`.
        """
        return self.outputs(sets)[:, 0]

    def loss(self, bound: BoundSetFunction, noise: NoiseSource, samples: int) -> Tensor:
        """Return minus the objective E_q F(S) + H(q), estimated and averaged over the sets.

        Only this network gets a gradient. The graph of F is left intact, so the same bound function can be used for the
        training step of F afterwards.

        Args:
            bound: F, bound to the sets.
            noise: Source of the random numbers.
            samples: Number of subsets to draw from each set.

        Raises:
            OptionError: If F does not take relaxed masks, there is no sample, or the loss is differentiated in forward
                mode or by a transform of `torch.func`.
        """
        if not bound.relaxed:
            raise OptionError(
                f"{type(bound).__name__} takes whole subsets only and has no derivative with respect to its masks, "
                "which a recognition network needs; use a set function with relaxed masks, such as DeepSetFunction"
            )
        if samples < 1:
            raise OptionError(f"a recognition network needs at least 1 sample, not {samples}")
        # The items may have a graph of their own, as learned vectors of categories do.
        sets = bound.sets.with_values(bound.sets.values.detach())
        draw = self.draw(sets, noise, samples)
        value = _mean_value(bound, straight_through(draw.scores, self.tau))
        return -(value + draw.entropy).sum() / max(1, len(bound.sets))

    def outputs(self, sets: Sets) -> Tensor:
        """Return the outputs of the network for each item, `(total, outputs)`."""
        return self.head(self.encoder(sets))


@final
class IndependentRecognition(Recognition):
    """A distribution in which items are independent: EquiVSet-ind.

    The published network reads each item alone, as with `LinearItems` and the default `hidden`. With `ContextItems` it
    reads the other items of V too.

    Args:
        encoder: Item encoder of the network.
        hidden: Units of the hidden layers.
        tau: Temperature of the relaxation that passes gradients back.

    Raises:
        OptionError: If a hidden layer has no units, or tau is not positive.

    Examples:
        >>> import setgrad as sg
        >>> network = IndependentRecognition(sg.encoders.MLPItems(2, 8), hidden=(16,))
        >>> sets = sg.Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0]]])
        >>> network.start(sets).shape
        torch.Size([3])
        >>> F = sg.functions.DeepSetFunction(2, phi="mlp", dim=8, hidden=(16,))
        >>> network.loss(F.bind(sets), sg.functions.FreshNoise(0), samples=5).backward()
        >>> [p.grad for p in F.parameters() if p.grad is not None]
        []
    """

    def __init__(self, encoder: ItemEncoder, hidden: Sequence[int] = (500, 500), *, tau: float = 0.1) -> None:
        super().__init__(encoder, hidden, 1, tau)

    def draw(self, sets: Sets, noise: NoiseSource, samples: int) -> Draw:
        """Return random subsets: a score is the logit plus logistic noise, positive with probability psi exactly."""
        logits = self.start(sets)
        # In float64 and half a unit away from 0 and 1, so that the noise is finite.
        logistic = torch.logit(noise.uniform(sets.layout, samples).double(), eps=2**-25)
        return Draw(logits + logistic.to(logits.dtype), segment_sum(bernoulli_entropy(logits), sets))


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of one bit from its logit, without the logarithm of 0 or cancellation.

    Examples:
        >>> bernoulli_entropy(torch.tensor([0.0, 20.0])).tolist()
        [0.6931..., 4.3...e-08]
    """
    size = logits.abs()
    return softplus(-size) + size * torch.sigmoid(-size)


def straight_through(scores: Tensor, tau: float) -> Tensor:
    """Return the bits `scores > 0`, exactly 0 or 1, with the derivative of a sigmoid of temperature tau."""
    soft = torch.sigmoid(scores / tau)
    return (scores.detach() > 0).to(scores.dtype) + (soft - soft.detach())


def _mean_value(bound: BoundSetFunction, bits: Tensor) -> Tensor:
    """Return the mean of F over subsets `(m, total)`, `(b,)`, differentiable with respect to the bits only."""
    masks = bits.detach()
    if has_tangent(bits) or (is_transformed(bits) and is_tracked(bits)):
        raise OptionError(
            "the loss of a recognition network has a gradient by backward or torch.autograd.grad, not in forward mode "
            "nor under the transforms of torch.func"
        )
    if not (torch.is_grad_enabled() and bits.requires_grad):
        return bound.value(masks).mean(0)
    masks.requires_grad_()
    value = bound.value(masks)
    # Only the gradient of the masks is computed, none of F. The term with 0 is for functions that ignore their masks.
    (slope,) = torch.autograd.grad(value.sum() + 0 * masks.sum(), masks)
    return value.detach().mean(0) + segment_sum((slope * (bits - bits.detach())).mean(0), bound.sets)

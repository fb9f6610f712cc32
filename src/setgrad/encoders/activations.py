"""How an item's logits with the slots become its weights: the five activations of UMBC (paper 001, table 15).

A weight depends on the item and the slots alone, never on the other items: that is what lets a set be read in pieces.
The normalisation over the set is a sum, kept in the state. Activations give logarithms: weights of a slot that likes no
item are too small for a float, and their quotients are not.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class Activation(abc.ABC):
    """From logits `(total, heads, slots)` to the logarithms of weights, of the same shape.

    `bounded` says that weights are at most 1, so that their plain sum is one too.
    """

    bounded: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, logits: Tensor) -> Tensor:
        """Logarithms of the weights."""


@final
@dataclass(frozen=True)
class Softmax(Activation):
    """Exponentials: over the whole set, the attention that everybody knows."""

    bounded = False

    def __call__(self, logits: Tensor) -> Tensor:
        """The exponents as they are."""
        return logits


@final
@dataclass(frozen=True)
class Sigmoid(Activation):
    """Every slot takes from an item what it likes."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Weights between 0 and 1."""
        return logsigmoid(logits)


@final
@dataclass(frozen=True)
class SlotSigmoid(Activation):
    """Sigmoids that share an item among the slots, as in the slot set encoder."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The sum of the weights over the slots is 1."""
        return torch.log_softmax(logsigmoid(logits), -1)


@final
@dataclass(frozen=True)
class SlotSoftmax(Activation):
    """Slots compete for every item, as in slot attention."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The sum of the weights over the slots is 1."""
        return torch.log_softmax(logits, -1)


@final
@dataclass(frozen=True)
class SlotExp(Activation):
    """Exponentials relative to the item's favourite slot, which gets 1."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Weights between 0 and 1."""
        return logits - logits.amax(-1, keepdim=True)


ACTIVATIONS: dict[str, Activation] = {
    "softmax": Softmax(),
    "sigmoid": Sigmoid(),
    "slot-sigmoid": SlotSigmoid(),
    "slot-softmax": SlotSoftmax(),
    "slot-exp": SlotExp(),
}

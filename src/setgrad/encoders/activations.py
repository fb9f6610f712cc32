"""How an item's logits with the slots become its weights: the five activations of UMBC (paper 001, table 15).

A weight depends on the item and the slots alone, never on the other items: that is what lets a set be read in pieces.
The normalisation over the set is a sum, kept in the state.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor


class Activation(abc.ABC):
    """From logits `(total, heads, slots)` to weights of the same shape.

    `unbounded` says that weights are exponentials, to be kept relative to the largest exponent of the set.
    """

    unbounded: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, logits: Tensor) -> Tensor:
        """Weights; where `unbounded`, their logarithms."""


@final
@dataclass(frozen=True)
class Softmax(Activation):
    """Exponentials: over the whole set, the attention that everybody knows."""

    unbounded = True

    def __call__(self, logits: Tensor) -> Tensor:
        """The exponents as they are."""
        return logits


@final
@dataclass(frozen=True)
class Sigmoid(Activation):
    """Every slot takes from an item what it likes."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Between 0 and 1."""
        return torch.sigmoid(logits)


@final
@dataclass(frozen=True)
class SlotSigmoid(Activation):
    """Sigmoids that share an item among the slots, as in the slot set encoder."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The sum over the slots is 1."""
        # In logarithms, or the quotient of two sigmoids far below 0 would be 0 / 0.
        return torch.softmax(torch.nn.functional.logsigmoid(logits), -1)


@final
@dataclass(frozen=True)
class SlotSoftmax(Activation):
    """Slots compete for every item, as in slot attention."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The sum over the slots is 1."""
        return torch.softmax(logits, -1)


@final
@dataclass(frozen=True)
class SlotExp(Activation):
    """Exponentials relative to the item's favourite slot, which gets 1."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Between 0 and 1."""
        return (logits - logits.amax(-1, keepdim=True)).exp()


ACTIVATIONS: dict[str, Activation] = {
    "softmax": Softmax(),
    "sigmoid": Sigmoid(),
    "slot-sigmoid": SlotSigmoid(),
    "slot-softmax": SlotSoftmax(),
    "slot-exp": SlotExp(),
}

"""Activations of slot attention: how the logits of an item with the slots become attention weights.

These are the five activations of UMBC (Willette et al., 2023, arXiv:2208.12401, table 15). A weight depends on the item
and the slots only, never on the other items; this is why a set can be read in chunks. The normalisation over the set is
a sum that the state keeps. Activations return logarithms: the weights of a slot that matches no item underflow, their
quotients do not.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from setgrad.errors import OptionError


class Activation(abc.ABC):
    """Maps logits `(total, heads, slots)` to the logarithms of attention weights, of the same shape.

    Attributes:
        bounded: Whether weights are at most 1, so that they can be summed without normalisation.
    """

    bounded: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the weights."""


@final
@dataclass(frozen=True)
class Softmax(Activation):
    """Exponentials; normalised over the set, they are the usual softmax attention."""

    bounded = False

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits, which are the logarithms of their exponentials."""
        return logits


@final
@dataclass(frozen=True)
class Sigmoid(Activation):
    """The sigmoid of each logit: every slot weighs an item independently of the other slots."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logarithms of weights between 0 and 1."""
        return logsigmoid(logits)


@final
@dataclass(frozen=True)
class SlotSigmoid(Activation):
    """Sigmoids normalised over the slots, as in the slot set encoder (Bruno et al., 2021, arXiv:2103.01615)."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logarithms of weights whose sum over the slots is 1."""
        return torch.log_softmax(logsigmoid(logits), -1)


@final
@dataclass(frozen=True)
class SlotSoftmax(Activation):
    """A softmax over the slots: slots compete for each item, as in slot attention."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logarithms of weights whose sum over the slots is 1."""
        return torch.log_softmax(logits, -1)


@final
@dataclass(frozen=True)
class SlotExp(Activation):
    """Exponentials relative to the largest logit of the item: the best slot has weight 1."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logarithms of weights between 0 and 1."""
        return logits - logits.amax(-1, keepdim=True)


# The strings that `activation=` took before it took objects.
ACTIVATIONS: dict[str, Activation] = {
    "softmax": Softmax(),
    "sigmoid": Sigmoid(),
    "slot-sigmoid": SlotSigmoid(),
    "slot-softmax": SlotSoftmax(),
    "slot-exp": SlotExp(),
}


def check_activation(activation: object) -> None:
    """Raise an OptionError for anything that is not an Activation."""
    if not isinstance(activation, Activation):
        choices = ", ".join(map(repr, ACTIVATIONS.values()))
        raise OptionError(f"activation must be one of {choices} or another Activation, not {activation!r}")

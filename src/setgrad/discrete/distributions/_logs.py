"""Sums in logarithms whose derivatives of every order are finite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

# Stands for minus infinity: exp gives exactly 0, and differences of two such numbers are not NaN.
FLOOR = -1e30
# Logits below this exclude their entry: they would come near to FLOOR.
DEEPEST = -1e25


def floored(logits: Tensor) -> Tensor:
    """Logits with FLOOR, and no gradient, in place of minus infinity."""
    return torch.where(logits > -torch.inf, logits, FLOOR)


def from_largest(logits: Tensor) -> Tensor:
    """Logits minus the largest of each row, a constant for autograd: laws do not feel it, and digits stay."""
    largest = logits.detach().amax(-1, keepdim=True)
    return logits - torch.where(largest > -torch.inf, largest, 0)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)). That of torch has second derivatives of NaN where the terms are far apart."""
    # `where` and not maximum: at ties, maximum would halve gradients, which is wrong for the second derivative.
    first = a >= b
    high, low = torch.where(first, a, b), torch.where(first, b, a)
    return high - logsigmoid(high - low)


def log_suffix_sums(logs: Tensor) -> Tensor:
    """out[j] = log of the sum over i >= j of exp(logs[i]): windows that double, so no table of n by n."""
    shift = 1
    while shift < logs.shape[-1]:
        logs = log_add(logs, pad(logs[..., shift:], (0, shift), value=FLOOR))
        shift *= 2
    return logs

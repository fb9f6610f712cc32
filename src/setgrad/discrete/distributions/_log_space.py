"""Sums in log space whose derivatives of every order are finite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

# Replaces minus infinity: exp gives exactly 0, and differences of two such numbers are not NaN.
FLOOR = -1e30
# Logits below this exclude their entry: they would be too close to FLOOR.
MIN_LOGIT = -1e25


def floor_logits(logits: Tensor) -> Tensor:
    """Return logits with FLOOR, and no gradient, instead of minus infinity."""
    return torch.where(logits > -torch.inf, logits, FLOOR)


def subtract_largest(logits: Tensor) -> Tensor:
    """Return logits minus the largest of each row, a constant for autograd; probabilities do not change."""
    largest = logits.detach().amax(-1, keepdim=True)
    return logits - torch.where(largest > -torch.inf, largest, 0)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """Return log(exp(a) + exp(b)). torch.logaddexp has NaN second derivatives where the terms are far apart."""
    # Not torch.maximum: at ties it would halve gradients, which is wrong for the second derivative.
    first = a >= b
    high, low = torch.where(first, a, b), torch.where(first, b, a)
    return high - logsigmoid(high - low)


def log_suffix_sums(logs: Tensor) -> Tensor:
    """Return out[j] = log of the sum over i >= j of exp(logs[i]), by windows that double in length."""
    shift = 1
    while shift < logs.shape[-1]:
        logs = log_add(logs, pad(logs[..., shift:], (0, shift), value=FLOOR))
        shift *= 2
    return logs

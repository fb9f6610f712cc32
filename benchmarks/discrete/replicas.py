"""Small networks trained side by side in one stack of weights, because one alone would not use a GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn


@final
class Replicas(nn.Module):
    """One multilayer perceptron for each seed, with ReLUs between layers; they share nothing.

    The weights of each replica are drawn with its seed, by the rule of `nn.Linear`.

    Examples:
        >>> Replicas((4, 8, 2), seeds=(0, 1, 2))(torch.zeros(3, 5, 4)).shape
        torch.Size([3, 5, 2])
    """

    def __init__(self, widths: tuple[int, ...], seeds: tuple[int, ...]) -> None:
        super().__init__()
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        weights, biases = [], []
        for rows, columns in pairwise(widths):
            bound = rows**-0.5
            weights.append(torch.stack([(2 * torch.rand(rows, columns, generator=d) - 1) * bound for d in draws]))
            biases.append(torch.stack([(2 * torch.rand(1, columns, generator=d) - 1) * bound for d in draws]))
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (replicas, rows, outputs) of rows (replicas, rows, features)."""
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if number == 0 else x.relu(), weight)
        return x


def make_adam(module: nn.Module, rate: float, *, decay: float = 0.0) -> torch.optim.Optimizer:
    """Return Adam, fused on a GPU. It treats every number separately, so replicas do not interact."""
    parameters = list(module.parameters())
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=parameters[0].is_cuda)

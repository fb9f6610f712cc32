"""Sets for the tests of set encoders, pieces of them, and the gradient of a code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.sets import Sets

DIM = 3
SIZES = [7, 0, 1, 12]


def draw(sizes: list[int] = SIZES, seed: int = 0, dtype: torch.dtype = torch.float64) -> Sets:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(sizes), DIM, generator=generator, dtype=torch.float64)
    return Sets.from_lengths(values.to(dtype), sizes)


def split(sets: Sets, cuts: list[list[int]]) -> list[Sets]:
    """Chunks from the lengths of the pieces of each set."""
    parts = [x.split(lengths) for x, lengths in zip(sets.to_list(), cuts, strict=True)]
    return [Sets.from_list(list(pieces)) for pieces in zip(*parts, strict=True)]


def gradients(encoder: nn.Module, value: Tensor) -> list[Tensor]:
    """Of a fixed combination of the numbers of a code, by every parameter; 0 where it is not reached."""
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)
    found = torch.autograd.grad((value * weights).sum(), list(encoder.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(encoder.parameters(), found, strict=True)]


class Orders:
    """Stands for a NumPy generator that draws given permutations, one after another."""

    def __init__(self, orders: Sequence[Sequence[int]]) -> None:
        self.left = list(orders)

    def permutation(self, count: int) -> np.ndarray:
        order = self.left.pop(0)
        assert len(order) == count
        return np.array(order, dtype=np.int64)

"""Sets and chunks for the tests of set encoders, the gradient of a code, and generators that draw known orders."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from setgrad.sets import Sets

DIM = 3
SIZES = [7, 0, 1, 12]
# Lengths of three chunks of each of these sets.
CUTS = [[3, 0, 4], [0, 0, 0], [0, 1, 0], [5, 5, 2]]


def random_sets(sizes: Sequence[int] = SIZES, seed: int = 0, dtype: torch.dtype = torch.float64) -> Sets:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(sizes), DIM, generator=generator, dtype=torch.float64)
    return Sets.from_lengths(values.to(dtype), sizes)


def split_sets(sets: Sets, cuts: list[list[int]] = CUTS) -> list[Sets]:
    """Return chunks, from the lengths of the chunks of each set."""
    parts = [x.split(lengths) for x, lengths in zip(sets.to_list(), cuts, strict=True)]
    return [Sets.from_list(list(chunk)) for chunk in zip(*parts, strict=True)]


def gradients(encoder: nn.Module, code: Tensor) -> list[Tensor]:
    """Return the gradient of a fixed linear combination of a code for every parameter; 0 where there is none."""
    weights = torch.linspace(-1, 1, code.numel(), dtype=code.dtype).reshape(code.shape).to(code.device)
    result = torch.autograd.grad((code * weights).sum(), list(encoder.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(encoder.parameters(), result, strict=True)]


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def generator_drawing(orders: Sequence[Sequence[int]]) -> torch.Generator:
    """Return a generator from which `torch.randperm` draws these permutations, one after another."""
    return torch.Generator().manual_seed(_seed_drawing(tuple(map(tuple, orders))))


@functools.cache
def _seed_drawing(orders: tuple[tuple[int, ...], ...]) -> int:
    for seed in itertools.count():
        generator = torch.Generator().manual_seed(seed)
        if all(tuple(torch.randperm(len(order), generator=generator).tolist()) == order for order in orders):
            return seed
    raise AssertionError

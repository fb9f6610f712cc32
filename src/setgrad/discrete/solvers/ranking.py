"""Ranks of entries: a solver over permutations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.errors import ShapeError


@final
@dataclass(frozen=True, eq=False)
class Ranking(CombinatorialSolver):
    """The rank of every entry, 1 to n: the permutation z of these numbers with the best product `<theta, z>`.

    The smallest product gives rank 1 to the largest entry, the usual rank in retrieval, so "min" is the default sense;
    `sense="max"` gives rank n to the largest entry. Of equal entries the lower index has the lower rank.
    Half precision can represent 256 ranks (bfloat16) or 2,048 (float16); `check` raises for more.

    Examples:
        >>> Ranking()(torch.tensor([0.1, 2.0, 0.5]))
        tensor([3., 1., 2.])
    """

    sense: str = field(default="min", kw_only=True)

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if the dtype cannot represent all ranks."""
        super().check(theta)
        largest = round(2 / torch.finfo(theta.dtype).eps)
        if theta.shape[-1] > largest:
            raise ShapeError(
                f"{theta.dtype} holds whole numbers up to {largest} only, and there are {theta.shape[-1]} ranks; use "
                "theta.float()"
            )

    def solve(self, theta: Tensor) -> Tensor:
        """Return the position of each entry in ascending order, from 1."""
        order = theta.argsort(dim=-1, stable=True)
        ranks = torch.arange(1, theta.shape[-1] + 1, dtype=theta.dtype, device=theta.device)
        return torch.empty_like(theta).scatter_(-1, order, ranks.expand_as(theta))

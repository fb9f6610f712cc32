"""Best independent sets of matroids by the greedy algorithm, for a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._parameters import as_integers, as_tensor, broadcast_parameter
from setgrad.errors import OptionError, ShapeError, SolverError


@final
@dataclass(frozen=True, eq=False)
class PartitionMatroid(CombinatorialSolver):
    """The best entries, with a maximum number of entries from each group. Equal entries go to the lower index.

    Args:
        groups: The group of each item, (*batch, n), numbered from 0.
        at_most: The maximum number of items of a group: one number for all groups, or (*batch, groups).
        bases: Fill every group up to its maximum, even with entries of 0 or less.

    Raises:
        OptionError: If groups or at_most are not whole numbers of 0 or more.
        ShapeError: If at_most has fewer numbers than there are groups.

    Examples:
        >>> PartitionMatroid([0, 0, 1, 1], at_most=1)(torch.tensor([2.0, 3.0, 1.0, -1.0]))
        tensor([0., 1., 1., 0.])
    """

    groups: Any
    at_most: Any = 1
    bases: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        groups, at_most = as_tensor(self.groups), as_tensor(self.at_most)
        if groups.is_floating_point() or groups.ndim == 0 or (groups.numel() and int(groups.min()) < 0):
            raise OptionError("groups must be whole numbers from 0, one for each item")
        as_integers("at_most", at_most[at_most != torch.inf])
        if at_most.numel() and float(at_most.min()) < 0:
            raise OptionError(f"at_most must be 0 or more, got {float(at_most.min()):g}")
        count = 1 + int(groups.max()) if groups.numel() else 1
        if at_most.ndim and at_most.shape[-1] < count:
            raise ShapeError(f"at_most has numbers for {at_most.shape[-1]} groups, but there are {count} groups")

    def solve(self, theta: Tensor) -> Tensor:
        """Choose an entry if its position within its group is below the maximum."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        groups = broadcast_parameter("groups", as_tensor(self.groups).long().to(theta.device), batch, n)
        at_most = as_tensor(self.at_most).to(theta.device)
        if at_most.ndim:
            limit = broadcast_parameter("at_most", at_most, batch, at_most.shape[-1]).gather(-1, groups)
        else:
            limit = at_most.expand_as(groups)
        order = theta.argsort(dim=-1, descending=True, stable=True)
        # Sorted by group, then by value: the position within a group is the distance from the start of the group.
        sorted_groups, by_group = groups.gather(-1, order).sort(dim=-1, stable=True)
        starts = torch.searchsorted(sorted_groups, sorted_groups.contiguous())
        within = torch.arange(n, device=theta.device) - starts
        position = torch.empty_like(within).scatter_(-1, order.gather(-1, by_group), within)
        chosen = position < limit
        return (chosen if self.bases else chosen & (theta > 0)).to(theta.dtype)


@final
@dataclass(frozen=True, eq=False)
class Matroid(CombinatorialSolver):
    """The best independent set of any matroid, defined by a function that tests for independence.

    The greedy algorithm calls it once for each item, for the whole batch. It is exact for matroids only: for other
    families of sets it finds a feasible point that need not be optimal. Equal entries go to the lower index.

    Args:
        independent: From masks `(*batch, n)` of bool to `(*batch)` of bool, with the batch axes of theta.
        bases: Also add entries of 0 or less.

    Examples:
        >>> at_most_two = lambda masks: masks.sum(-1) <= 2
        >>> Matroid(at_most_two)(torch.tensor([1.0, 3.0, -1.0, 2.0]))
        tensor([0., 1., 0., 1.])
    """

    independent: Callable[[Tensor], Tensor]
    bases: bool = False

    def solve(self, theta: Tensor) -> Tensor:
        """Add entries in descending order as long as the set stays independent.

        Raises:
            SolverError: If the function does not return one bool for each mask.
        """
        chosen = torch.zeros_like(theta, dtype=torch.bool)
        for item in theta.argsort(dim=-1, descending=True, stable=True).split(1, dim=-1):
            tried = chosen.scatter(-1, item, True)
            keep = self.independent(tried)
            if keep.shape != theta.shape[:-1] or keep.dtype != torch.bool:
                raise SolverError(
                    f"independent returned {keep.dtype} of shape {tuple(keep.shape)}; it must return bool of shape "
                    f"{tuple(theta.shape[:-1])}, one for each mask"
                )
            keep = keep[..., None]
            if not self.bases:
                keep = keep & (theta.gather(-1, item) > 0)
            chosen = torch.where(keep, tried, chosen)
        return chosen.to(theta.dtype)

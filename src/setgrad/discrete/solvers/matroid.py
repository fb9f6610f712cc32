"""Best independent sets of matroids by the greedy algorithm, the whole batch in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._parameters import as_tensor, as_whole, spread
from setgrad.errors import OptionError, ShapeError, SolverError


@final
@dataclass(frozen=True, eq=False)
class PartitionMatroid(CombinatorialSolver):
    """The best entries, with at most so many of each group. Equal entries go to the lower index.

    Args:
        groups: The group of each item, (*batch, n), numbered from 0.
        at_most: The most items of a group: one number for all, or (*batch, groups).
        bases: Fill every group as far as it goes, even with entries that are worth 0 or less.

    Example:
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
        as_whole("at_most", at_most[at_most != torch.inf])
        if at_most.numel() and float(at_most.min()) < 0:
            raise OptionError(f"at_most must be 0 or more, got {float(at_most.min()):g}")
        most = 1 + int(groups.max()) if groups.numel() else 1
        if at_most.ndim and at_most.shape[-1] < most:
            raise ShapeError(f"at_most has numbers for {at_most.shape[-1]} groups, but groups names {most}")

    def solve(self, theta: Tensor) -> Tensor:
        """Take an entry if its place within its group is below the at_most."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        groups = spread("groups", as_tensor(self.groups).long().to(theta.device), batch, n)
        at_most = as_tensor(self.at_most).to(theta.device)
        if at_most.ndim:
            room = spread("at_most", at_most, batch, at_most.shape[-1]).gather(-1, groups)
        else:
            room = at_most.expand_as(groups)
        order = theta.argsort(dim=-1, descending=True, stable=True)
        # Sorted by group, then by worth: the place within the group is the distance to where the group begins.
        sorted_groups, by_group = groups.gather(-1, order).sort(dim=-1, stable=True)
        begins = torch.searchsorted(sorted_groups, sorted_groups.contiguous())
        within = torch.arange(n, device=theta.device) - begins
        place = torch.empty_like(within).scatter_(-1, order.gather(-1, by_group), within)
        taken = place < room
        return (taken if self.bases else taken & (theta > 0)).to(theta.dtype)


@final
@dataclass(frozen=True, eq=False)
class Matroid(CombinatorialSolver):
    """The best independent set of any matroid, given by a function that knows the independent sets.

    The greedy algorithm asks it once for each item, for the whole batch at a time. It is exact for matroids only: for
    other families of sets it finds an allowed point that need not be best. Equal entries go to the lower index.

    Args:
        independent: From masks (*batch, n) of bool to (*batch) of bool, with the batch axes of theta.
        bases: Go on with entries that are worth 0 or less.

    Example:
        >>> at_most_two = lambda masks: masks.sum(-1) <= 2
        >>> Matroid(at_most_two)(torch.tensor([1.0, 3.0, -1.0, 2.0]))
        tensor([0., 1., 0., 1.])
    """

    independent: Callable[[Tensor], Tensor]
    bases: bool = False

    def solve(self, theta: Tensor) -> Tensor:
        """From the best entry down, keep what leaves the set independent."""
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

"""Solvers for one constraint beside items whose choice is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete import CombinatorialSolver, SolverResult, Status


@final
@dataclass(frozen=True, eq=False)
class BesideFixed(CombinatorialSolver):
    """The answer of a solver for the other items, together with the items that must be chosen.

    Args:
        others: A solver that never chooses items with a score below 0, under what the chosen items leave.
        chosen: The items that must be chosen, booleans `(count, n)`.
        excluded: The items that must not.
    """

    others: CombinatorialSolver
    chosen: Tensor
    excluded: Tensor

    def solve(self, theta: Tensor) -> SolverResult:
        """Hide the fixed items from the other solver."""
        chosen, excluded = self.chosen.to(theta.device), self.excluded.to(theta.device)
        result = self.others.run(theta.masked_fill(chosen | excluded, -1.0))
        both = (chosen & excluded).any(-1)
        status = torch.where(both, int(Status.INFEASIBLE), result.status)
        return SolverResult(torch.where(chosen, torch.ones_like(theta), result.value), status)


@final
@dataclass(frozen=True, eq=False)
class GroupLimits(CombinatorialSolver):
    """The best items, with a minimum and a maximum number from each group, beside items that are fixed.

    Equal items go to the lower index. Items of 0 or less are chosen only to reach a minimum.

    Args:
        groups: The group of each item, numbered from 0: `(count, n)`.
        at_least: The minimum of each group, `(count, groups)`.
        at_most: The maximum of each group, `(count, groups)`.
        chosen: The items that must be chosen, booleans `(count, n)`.
        excluded: The items that must not.
    """

    groups: Tensor
    at_least: Tensor
    at_most: Tensor
    chosen: Tensor
    excluded: Tensor

    def solve(self, theta: Tensor) -> SolverResult:
        """Choose an open item by its position among the open items of its group."""
        parts = (self.groups, self.at_least, self.at_most, self.chosen, self.excluded)
        groups, at_least, at_most, chosen, excluded = (part.to(theta.device) for part in parts)
        is_open = ~(chosen | excluded)
        taken, left = (torch.zeros_like(at_most).scatter_add(-1, groups, part.long()) for part in (chosen, is_open))
        need, free = at_least - taken, at_most - taken
        is_infeasible = ((need > left) | (free < 0) | (need > free)).any(-1) | (chosen & excluded).any(-1)

        # Fixed items come last in their group, so that they do not count among the open ones.
        order = theta.masked_fill(~is_open, -torch.inf).argsort(dim=-1, descending=True, stable=True)
        sorted_groups, by_group = groups.expand_as(theta).gather(-1, order).sort(dim=-1, stable=True)
        starts = torch.searchsorted(sorted_groups, sorted_groups.contiguous())
        within = torch.arange(theta.shape[-1], device=theta.device) - starts
        position = torch.empty_like(within).scatter_(-1, order.gather(-1, by_group), within)
        is_worth = (theta > 0) & (position < free.gather(-1, groups))
        value = chosen | (is_open & (is_worth | (position < need.gather(-1, groups))))
        status = torch.where(is_infeasible, int(Status.INFEASIBLE), int(Status.SOLVED))
        return SolverResult(value.to(theta.dtype), status.expand(theta.shape[:-1]))

"""The choice under a constraint, in agreement with the choice without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import Status
from setgrad.errors import InfeasibleError, parameter
from setgrad.selector._batch_constraint import Attempt, BatchConstraint
from setgrad.sets import Sets, segment_max

ON_FAILURE = ("raise", "skip")
# By how much an item on the wrong side of the cut is moved, as a share of the largest score of its set.
_MARGIN = 1e-6
# Sets that a warning lists.
_MOST_LISTED = 10


def choose_allowed(
    constraint: BatchConstraint,
    sets: Sets,
    *,
    scores: Tensor,
    free: Sets,
    cut: Tensor | float | None = None,
    searched: Sets | None = None,
    improve: Callable[[np.ndarray, Sets], Sets] | None = None,
    on_failure: str = "raise",
    name_of: Callable[[int], str] | None = None,
) -> Sets:
    """Return the subset that would be chosen without the constraint where it is allowed, else the best allowed one.

    The best allowed subset has the largest sum of `worths`: of all subsets, the one chosen without the constraint has
    the largest sum. So a constraint that excludes nothing changes nothing.

    Args:
        constraint: The constraint on the sets.
        sets: The sets.
        scores: A score of each item, `(total,)`.
        free: The subsets that are chosen without the constraint.
        cut: The score above which an item is worth choosing, one number or one for each set; None or NaN for half-way
            between the items inside and outside `free`.
        searched: What a search without the constraint makes of `free`, if there is a search; it is then the choice
            that stays where it is allowed.
        improve: The same search among allowed subsets: from the positions of sets and their best subsets by score to
            better ones.
        on_failure: "raise" an error if a set has no allowed subset, or "skip" these sets with a warning; they stay
            empty.
        name_of: Returns the name of a set for messages; None to number the sets.

    Returns:
        The chosen subsets, a `Sets` of booleans.

    Raises:
        InfeasibleError: If a set has no allowed subset.
    """
    wanted = free if searched is None else searched
    is_free = constraint.allows(wanted.values[None], sets)[0]
    if bool(is_free.all()):
        return wanted
    # A solver that has a row of numbers for each set takes all sets.
    is_open = np.ones(len(sets), dtype=bool) if constraint.is_plain_solver else ~is_free.cpu().numpy()
    values = sets.with_values(worths(scores, free, cut))
    places = np.flatnonzero(is_open)
    is_hopeless = constraint.take(places).is_hopeless(sets.take(places))
    hopeless, places = places[is_hopeless], places[~is_hopeless]
    part, part_values = constraint.take(places), values.take(places)
    attempt = part.attempt(part_values.values[None], part_values)
    reasons = _reasons(constraint, sets, hopeless, places, attempt)
    if reasons:
        _report(reasons, len(sets), on_failure, name_of or _name)
    else:
        part.report(attempt)
    # A solver of the user that only warns may return the best subset that it found within its time.
    has_late_answer = (attempt.statuses == Status.TIME_LIMIT) & (attempt.policies != "raise")
    solved = np.flatnonzero((attempt.statuses == Status.SOLVED) | has_late_answer)
    best = part_values.with_values(attempt.points[0]).take(solved)
    if improve is not None and len(solved):
        best = improve(places[solved], best)
    items = sets.with_values(torch.arange(sets.layout.total, device=sets.device)).take(places[solved])
    chosen = torch.zeros_like(free.values)
    chosen[items.values] = best.values
    return sets.with_values(torch.where(is_free[sets.layout.ids], wanted.values, chosen))


def worths(scores: Tensor, free: Sets, cut: Tensor | float | None = None) -> Tensor:
    """Return by how much each score is above the cut of its set, in double precision, `(total,)`.

    Without a `cut` it is half-way between the smallest score inside the subset and the largest outside. If nothing is
    chosen it is 0 or, if that is more, 1 above the largest score; if everything is chosen, 0 or 1 below the smallest.
    Chosen items are always worth more than 0 and others less: ties, and scores by which the subset is not the best one,
    are moved by a small margin. So no subset has a larger sum than the given one.

    Args:
        scores: A score of each item, `(total,)`.
        free: A subset of each set.
        cut: One number, or one for each set; NaN is none.

    Examples:
        >>> free = Sets.from_list([[True, True, False], [False, False]])
        >>> worths(torch.tensor([3.0, 2.0, 1.0, -1.0, -2.0]), free).tolist()
        [1.5, 0.5, -0.5, -1.0, -2.0]
    """
    x, chosen, ids = scores.double(), free.values, free.layout.ids
    level = find_levels(scores, free, cut)
    value = x - level[ids]
    largest = segment_max(value.abs(), free, empty=0.0)
    margin = (_MARGIN * torch.where(largest > 0, largest, 1.0))[ids]
    value = torch.where(chosen & (value <= 0), margin, value)
    return torch.where(~chosen & (value >= 0), -margin, value)


def find_levels(scores: Tensor, free: Sets, cut: Tensor | float | None = None) -> Tensor:
    """Return the score `(b,)` above which an item of a set is worth choosing; the arguments are those of `worths`."""
    x, chosen = scores.double(), free.values
    inside = -segment_max((-x).masked_fill(~chosen, -torch.inf), free)
    outside = segment_max(x.masked_fill(chosen, -torch.inf), free)
    middle = torch.where(outside == -torch.inf, (inside - 1).clamp(max=0), (inside + outside) / 2)
    middle = torch.where(inside == torch.inf, (outside + 1).clamp(min=0), middle)
    cut = torch.as_tensor(torch.nan if cut is None else cut, dtype=x.dtype, device=x.device)
    return torch.where(cut.isnan(), middle, cut)


def describe_failures(reasons: Mapping[int, str], total: int, name_of: Callable[[int], str]) -> str:
    """Return the message of the error for sets without an allowed subset.

    Args:
        reasons: Why, for each of these sets by its index.
        total: The number of all sets.
        name_of: Returns the name of a set from its index.
    """
    first, reason = next(iter(reasons.items()))
    share = f"; {len(reasons)} of {total} sets have none" if len(reasons) > 1 else ""
    return (
        f"{name_of(first)} has no allowed subset: {reason}{share}. Loosen the constraint, or leave such sets empty by "
        f"{parameter('on_failure')}='skip'"
    )


def list_failures(reasons: Mapping[int, str], total: int, name_of: Callable[[int], str]) -> str:
    """Return the message of the warning about sets that stay empty; the arguments are those of `describe_failures`."""
    listed = "; ".join(f"{name_of(index)}: {reason}" for index, reason in list(reasons.items())[:_MOST_LISTED])
    more = f"; and {len(reasons) - _MOST_LISTED} more" if len(reasons) > _MOST_LISTED else ""
    return f"{len(reasons)} of {total} sets have no allowed subset and stay empty: {listed}{more}"


def _name(index: int) -> str:
    return f"set {index} (counted from 0)"


def _reasons(
    constraint: BatchConstraint, sets: Sets, hopeless: np.ndarray, places: np.ndarray, attempt: Attempt
) -> dict[int, str]:
    """Return why sets have no answer, for those whose solver does not only warn about it, in the order of the sets."""
    failed = (attempt.statuses != Status.SOLVED) & (attempt.policies == "raise")
    statuses = dict.fromkeys(hopeless.tolist(), int(Status.INFEASIBLE))
    statuses |= dict(zip(places[failed].tolist(), attempt.statuses[failed].tolist(), strict=True))
    lengths = sets.layout.host_lengths
    return {
        int(constraint.indices[place]): constraint.reason(place, int(lengths[place]), Status(status))
        for place, status in sorted(statuses.items())
    }


def _report(reasons: dict[int, str], total: int, on_failure: str, name_of: Callable[[int], str]) -> None:
    if on_failure == "raise":
        raise InfeasibleError(describe_failures(reasons, total, name_of), reasons=reasons)
    warnings.warn(list_failures(reasons, total, name_of), RuntimeWarning, stacklevel=7)

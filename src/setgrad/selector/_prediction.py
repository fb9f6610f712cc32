"""From logits to subsets: by size, by threshold, by search on F, or under a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, OptionError, ShapeError, parameter, unknown_name
from setgrad.functions import BoundSetFunction
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._batched_inference import map_batches
from setgrad.selector._constrained_choice import ON_FAILURE, choose_allowed
from setgrad.selector._model import ChoiceModel
from setgrad.selector.constraints import AllOf, AnyConstraint, LinearConstraint, SizeRange
from setgrad.selector.constraints.all_of import as_constraint
from setgrad.selector.metrics import pick_top
from setgrad.selector.search import SEARCHES, constrained_search, greedy, local_search
from setgrad.selector.sizes import SizeRule, requested_sizes, sizes_above
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class SubsetRequest:
    """The arguments of `SubsetSelector.predict` that determine the subset.

    Raises:
        OptionError: If the arguments do not go together.
    """

    size: int | Sequence[int] | None = None
    threshold: float | None = None
    search: str | None = None
    constraint: AnyConstraint | None = None
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        if self.size is not None and self.threshold is not None:
            raise OptionError(
                f"{parameter('size')} and {parameter('threshold')} both set the number of items; give one of them"
            )
        if self.search is not None and self.search not in SEARCHES:
            raise unknown_name("search", self.search, SEARCHES)
        if self.on_failure not in ON_FAILURE:
            raise unknown_name("on_failure", self.on_failure, ON_FAILURE)
        if self.constraint is not None and self.search == "greedy":
            search = parameter("search")
            raise OptionError(
                f"{search}='greedy' does not support a constraint; leave out {search}, or use {search}='local'"
            )


def choose_subsets(
    request: SubsetRequest,
    sets: Sets,
    logits: Callable[[], Tensor],
    model: ChoiceModel,
    size_rule: SizeRule,
    min_size: int,
) -> Sets:
    """Choose a subset of each set; see `SubsetSelector.predict`.

    Args:
        request: The arguments of `predict`.
        sets: The sets.
        logits: Computes the logits of all items `(total,)`.
        model: The model in double precision, for a search.
        size_rule: The rule for the number of items.
        min_size: The smallest number of items that the rule gives.
    """

    def search(work: Callable[[BoundSetFunction, Sets, np.ndarray], Sets]) -> Sets:
        return sets.with_values(map_batches(model, sets, lambda *batch: work(*batch).values).bool())

    if request.constraint is not None:
        return _choose_constrained(request, request.constraint, sets, logits, model, size_rule, min_size)
    # Greedy search needs F only, but the logits name sets with extreme features.
    scores = logits()
    if request.search == "greedy" and request.size is None and request.threshold is None:
        return search(lambda bound, *_: greedy(bound))
    if request.threshold is not None:
        sizes = sizes_above(request.threshold, scores, sets)
    elif request.size is not None:
        sizes = requested_sizes(request.size, sets)
    else:
        sizes = size_rule.sizes_from(min_size, scores, sets)
    top = pick_top(scores, sets, sizes)
    if request.search is None:
        return top
    if request.search == "greedy":
        return search(lambda bound, _, indices: greedy(bound, sizes[torch.as_tensor(indices)].to(bound.sets.device)))
    keep_size = request.size is not None or request.threshold is not None
    return search(
        lambda bound, _, indices: local_search(bound, top.take(indices).to(bound.sets.device), keep_size=keep_size)
    )


def _choose_constrained(
    request: SubsetRequest,
    constraint: AnyConstraint,
    sets: Sets,
    logits: Callable[[], Tensor],
    model: ChoiceModel,
    size_rule: SizeRule,
    min_size: int,
) -> Sets:
    if request.size is not None:
        constraint = _with_sizes(constraint, requested_sizes(request.size, sets))
    allowed = BatchConstraint.of(constraint, sets)
    scores = logits()

    def choose_freely(search: str | None) -> Sets:
        free = replace(request, constraint=None, search=search)
        return choose_subsets(free, sets, lambda: scores, model, size_rule, min_size)

    def improve(places: np.ndarray, start: Sets) -> Sets:
        part = allowed.take(places)

        def work(bound: BoundSetFunction, batch: Sets, indices: np.ndarray) -> Tensor:
            inner = part.take(indices)
            first = start.take(indices).to(batch.device)
            return constrained_search(bound, first, lambda gains: inner.solve(gains, batch)).values

        return start.with_values(map_batches(model, sets.take(places), work).bool())

    return choose_allowed(
        allowed,
        sets,
        scores=scores,
        free=choose_freely(None),
        cut=_cut(request, size_rule),
        searched=None if request.search is None else choose_freely(request.search),
        improve=None if request.search is None else improve,
        on_failure=request.on_failure,
    )


def _cut(request: SubsetRequest, size_rule: SizeRule) -> float | None:
    """Return the logit above which an item is worth choosing in every set; None if sets differ."""
    p = request.threshold
    if p is not None:
        # Probabilities of 0 and 1 have no finite logit.
        return math.log(p / (1 - p)) if 0 < p < 1 else None
    return size_rule.level if request.size is None else None


def _with_sizes(constraint: AnyConstraint, sizes: Tensor) -> LinearConstraint:
    """Return the constraint together with the given sizes."""
    whole = as_constraint(constraint)
    if not isinstance(whole, LinearConstraint):
        raise OptionError(
            f"{parameter('size')} goes with linear constraints, such as Budget or Groups, not with "
            f"{type(whole).__name__}; leave out {parameter('size')}"
        )
    return AllOf([whole, SizeRange(sizes.tolist(), sizes.tolist())])


def check_scores(scores: Any, sets: Sets) -> Sets:
    """Return the scores if they belong to the sets.

    Raises:
        DataError: If a score is not finite.
        ShapeError: If they do not belong to the sets.
    """
    if not isinstance(scores, Sets) or scores.values.dim() != 1 or not scores.dtype.is_floating_point:
        raise ShapeError(
            f"{parameter('scores')} must be the result of decision_function, a Sets of one number for each item, not "
            f"{scores!r:.80}"
        )
    if not scores.layout.same_as(sets.layout):
        raise ShapeError(
            f"{parameter('scores')} belong to other sets; pass the result of decision_function for these sets"
        )
    wrong = ~scores.values.isfinite()
    if bool(wrong.any()):
        first = int(scores.layout.ids[wrong][0])
        raise DataError(f"the {parameter('scores')} of set {first} are not finite; pass finite numbers")
    return scores

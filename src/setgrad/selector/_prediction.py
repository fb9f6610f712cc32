"""From logits to subsets: item by item, by size, by threshold, by search on F, or under a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, OptionError, ShapeError, parameter, unknown_name
from setgrad.functions import BoundSetFunction
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._batched_inference import check_finite, map_batches
from setgrad.selector._constrained_choice import ON_FAILURE, choose_allowed, find_levels
from setgrad.selector._known import Known
from setgrad.selector._model import ChoiceModel
from setgrad.selector._quick_choice import QuickChoice
from setgrad.selector._start_weight import towards_start
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.constraints import AllOf, AnyConstraint, LinearConstraint, SizeRange
from setgrad.selector.constraints.all_of import as_constraint
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.selector.metrics import pick_top
from setgrad.selector.search import SEARCHES, Priced, best_completion, constrained_search, local_search
from setgrad.selector.sizes import SizeRule, StopBelow, requested_sizes, sizes_above
from setgrad.sets import Sets, segment_sum

DECISIONS = ("expected-jaccard",)


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
    decide: str | None = None
    recall: float | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.threshold is not None:
            raise OptionError(
                f"{parameter('size')} and {parameter('threshold')} both set the number of items; give one of them"
            )
        if self.search is not None and self.search not in SEARCHES:
            raise unknown_name("search", self.search, SEARCHES)
        if self.decide is not None and self.decide not in DECISIONS:
            raise unknown_name("decide", self.decide, DECISIONS)
        if self.on_failure not in ON_FAILURE:
            raise unknown_name("on_failure", self.on_failure, ON_FAILURE)
        if self.constraint is not None and self.search not in (None, "local"):
            search = parameter("search")
            raise OptionError(
                f"{search}={self.search!r} does not support a constraint; leave out {search}, or use {search}='local'"
            )
        ways = ("size", "threshold", "search", "constraint")
        for name in ("decide", "recall"):
            others = [other for other in (*ways, "decide", "recall") if other != name and self._is_given(other)]
            if self._is_given(name) and others:
                listed = " and ".join(parameter(other) for other in others)
                raise OptionError(f"{parameter(name)} determines the whole subset; leave out {listed}")

    @property
    def is_plain(self) -> bool:
        """Whether the subset follows from the gains alone."""
        return not any(self._is_given(name) for name in ("threshold", "search", "constraint", "recall"))

    def _is_given(self, name: str) -> bool:
        return getattr(self, name) is not None


@final
@dataclass(frozen=True, eq=False)
class Chooser:
    """Chooses a subset of each set; see `SubsetSelector.predict`.

    Attributes:
        sets: The sets.
        logits: Computes the logits of all items `(total,)`, given what is known.
        dtype: Dtype of the logits.
        model: The model in double precision, for choices on F.
        fast_model: The same model in single precision, for choices that are clear enough.
        size_rule: The rule for the number of items.
        completion_rule: The same for sets with given items.
        min_size: The smallest number of items that the rule gives.
        start_weight: The weight of the gains at the start in a choice item by item.
        known: Items that are known to be in the subsets, or out of them.
        name_of: Returns the name of a set for messages; None to number the sets.
    """

    sets: Sets
    logits: Callable[[], Tensor]
    dtype: torch.dtype
    model: ChoiceModel
    fast_model: ChoiceModel
    size_rule: SizeRule
    completion_rule: SizeRule
    min_size: int
    start_weight: float
    known: Known | None = None
    name_of: Callable[[int], str] | None = None

    def choose(self, request: SubsetRequest, *, with_logits: bool = False) -> tuple[Sets, Tensor | None]:
        """Return the chosen subsets, a `Sets` of booleans, and the logits of the items, if they were computed.

        Args:
            request: What to choose.
            with_logits: Whether the logits are wanted, so that they should be computed together with the choice.
        """
        if request.search is not None and self.start_weight:
            # A search is on F itself.
            return replace(self, start_weight=0.0).choose(request, with_logits=with_logits)
        if self._is_conditional and request.is_plain and self.fast_model.dtype != torch.float64:
            limits = None if request.size is None else self.limits(request, None)
            quick = QuickChoice(self, request, limits)
            if with_logits:
                return quick.choose_and_infer()
            return self.sets.with_values(quick.choose()), None
        # Wrong constraints raise before any inference.
        allowed = None if request.constraint is None else BatchConstraint.of(self._constraint(request), self.sets)
        top, scores, logits = self._choose_by_score(request)
        found = self._search_freely(request, top)
        if allowed is None:
            return top if found is None else found, logits
        # Known items have infinite scores, which do not move the cut. The constraint decides about them.
        levels = find_levels(scores, top, self._cuts(request))
        scores = scores if self.known is None else self.known.fill(scores, inside=0.0, outside=0.0)
        is_on_function = self._is_conditional or found is not None
        chosen = choose_allowed(
            allowed,
            self.sets,
            scores=scores,
            free=top,
            cut=levels,
            searched=found,
            improve=partial(self._improve, allowed, levels) if is_on_function else None,
            on_failure=request.on_failure,
            name_of=self.name_of,
        )
        return chosen, logits

    def _constraint(self, request: SubsetRequest) -> AnyConstraint:
        """Return the constraint together with the requested sizes and what is known."""
        constraint: Any = as_constraint(request.constraint or [])
        if request.size is not None:
            sizes = self._check_sizes(requested_sizes(request.size, self.sets)).tolist()
            constraint = AllOf([_linear(constraint, "size"), SizeRange(sizes, sizes)])
        return constraint if self.known is None else self.known.constrain(_linear(constraint, "given"))

    @property
    def _is_conditional(self) -> bool:
        return self.model.config.options.method == CONDITIONAL

    def _choose_by_score(self, request: SubsetRequest) -> tuple[Sets, Tensor, Tensor]:
        """Return the choice without a search or a constraint, the scores of the items that it follows, and the logits.

        Scores are logits or, where items are chosen one by one on F, those of the path.
        """
        if self._is_conditional and request.threshold is None:
            limits = None if request.size is None else self.limits(request, None)
            return self.follow_path(request, limits, self.min_size)
        logits = self.logits()
        filled = self.filled(logits)
        limits = sizes, _ = self.limits(request, filled)
        if request.search == "greedy":
            top, scores, _ = self.follow_path(request, limits, 0)
            return top, scores, logits
        return pick_top(filled, self.sets, sizes), filled, logits

    def follow_path(
        self, request: SubsetRequest, limits: tuple[Tensor, Tensor] | None, least: int
    ) -> tuple[Sets, Tensor, Tensor]:
        """Choose item by item on F.

        Args:
            request: The request.
            limits: The result of `limits`; None to compute it from the gains at the start, which are the logits.
            least: Number of items that join also below the cut.
        """

        def work(bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> Tensor:
            part = self.part(batch, rows)
            bound, (start, excluded) = bound.prepared(), self.known_masks(bound, rows)
            first = bound.gains(start[None])[0]
            check_finite(first, batch, lambda number: f"set {rows[number]}")
            if limits is None:
                sizes, cuts = part.limits(request, part.filled(first.to(self.dtype)))
            else:
                sizes, cuts = (x[torch.as_tensor(rows)].to(batch.device) for x in limits)
            path = choose_item_by_item(
                self.steady(bound, first),
                sizes=sizes,
                cut=cuts,
                min_size=least,
                start=start,
                excluded=excluded,
                first=first,
            )
            joined = segment_sum(path.scores > cuts[batch.layout.ids], batch).clamp(min=least).minimum(sizes)
            sizes = torch.where(cuts > -torch.inf, part._within_known(joined), sizes)
            return torch.stack([pick_top(path.scores, batch, sizes).values.double(), path.scores, first.double()], 1)

        picks, scores, logits = map_batches(self.model, self.sets, work).reshape(-1, 3).unbind(1)
        return self.sets.with_values(picks.bool()), scores, logits.to(self.dtype)

    def steady(self, bound: BoundSetFunction, first: Tensor) -> BoundSetFunction:
        """Return the function whose gains a choice follows, from F and its gains at the start."""
        return towards_start(bound, first, self.start_weight)

    def some(self, rows: np.ndarray) -> Chooser:
        """Return the chooser for some of the sets."""
        known = None if self.known is None else self.known.take(rows)
        return replace(self, sets=self.sets.take(rows), known=known)

    def part(self, batch: Sets, rows: np.ndarray) -> Chooser:
        """Return the chooser for some of the sets, on the device of the model."""
        if self.known is None:
            return replace(self, sets=batch)
        known = self.known.take(rows)
        return replace(self, sets=batch, known=Known(known.inside.to(batch.device), known.outside.to(batch.device)))

    def filled(self, logits: Tensor) -> Tensor:
        """Return the logits with those of known items replaced by infinity."""
        return logits if self.known is None else self.known.fill(logits, inside=torch.inf, outside=-torch.inf)

    def _search_freely(self, request: SubsetRequest, top: Sets) -> Sets | None:
        """Return the result of a search without a constraint that starts from the choice by score; None for none."""
        if request.search in (None, "greedy"):
            return None
        keep_size = self._is_conditional or request.size is not None or request.threshold is not None
        sizes = segment_sum(top.values, self.sets)

        def work(bound: BoundSetFunction, _: Sets, rows: np.ndarray) -> Tensor:
            inside, outside = self.known_masks(bound, rows)
            if request.search == "completion":
                return best_completion(bound, sizes[torch.as_tensor(rows)], inside, outside).values
            start = top.take(rows).to(bound.sets.device)
            return local_search(bound, start, keep_size=keep_size, fixed=inside | outside).values

        return self.sets.with_values(map_batches(self.model, self.sets, work).bool())

    def limits(self, request: SubsetRequest, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the largest number of items of each subset, and the gain below which a path on F ends, `(b,)` each.

        With a size in the request no logits are needed.
        """
        sizes, cuts = self.sets.lengths, torch.full((len(self.sets),), -torch.inf, dtype=torch.float64)
        cuts = cuts.to(self.sets.device)
        if request.size is not None:
            return self._check_sizes(requested_sizes(request.size, self.sets)), cuts
        assert logits is not None
        if request.threshold is not None:
            sizes = sizes_above(request.threshold, logits, self.sets)
        elif request.search == "greedy" and not self._is_conditional:
            # Greedy search on other functions stops where F does not grow any more.
            cuts = torch.zeros_like(cuts)
        else:
            for rule, rows in self._rules():
                if isinstance(rule, StopBelow):
                    cuts = cuts.masked_fill(rows, rule.cut)
                else:
                    sizes = torch.where(rows, rule.sizes_from(self.min_size, logits, self.sets), sizes)
        return self._within_known(sizes), cuts

    def _rules(self) -> list[tuple[SizeRule, Tensor]]:
        """Return the rules for the number of items, with whether each set `(b,)` follows it."""
        if self.known is None:
            return [(self.size_rule, torch.ones(len(self.sets), dtype=torch.bool, device=self.sets.device))]
        begun = segment_sum(self.known.inside.values, self.sets) > 0
        return [(self.size_rule, ~begun), (self.completion_rule, begun)]

    def _within_known(self, sizes: Tensor) -> Tensor:
        return sizes if self.known is None else self.known.clamp(sizes)

    def _check_sizes(self, sizes: Tensor) -> Tensor:
        if self.known is None:
            return sizes
        at_least = self.known.clamp(torch.zeros_like(sizes))
        if bool((at_least > sizes).any()):
            first = int((at_least > sizes).nonzero()[0])
            raise OptionError(
                f"{int(at_least[first])} items of set {first} (counted from 0) are given, which is more than "
                f"{parameter('size')}={int(sizes[first])}; the given items count in the size"
            )
        return self.known.clamp(sizes)

    def known_masks(self, bound: BoundSetFunction, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        sets = bound.sets
        if self.known is not None:
            return self.known.masks(rows, sets.device)
        nothing = torch.zeros(sets.layout.total, dtype=torch.bool, device=sets.device)
        return nothing, nothing

    def _improve(self, allowed: BatchConstraint, levels: Tensor, places: np.ndarray, start: Sets) -> Sets:
        """Improve allowed subsets on F less the level of a set for each item, by moves to other allowed subsets."""
        part, prices, chooser = allowed.take(places), levels[torch.as_tensor(places)], self.some(places)

        def work(bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> Tensor:
            inner, first = part.take(rows), start.take(rows).to(batch.device)
            price = prices[torch.as_tensor(rows)].to(batch.device)[batch.layout.ids]
            # Without the conditional method F has its own optimum, and its items no price.
            if self._is_conditional:
                if self.start_weight:
                    inside, _ = chooser.known_masks(bound, rows)
                    bound = self.steady(bound, bound.gains(inside[None])[0])
                bound = Priced(bound, price)
            return constrained_search(bound, first, lambda gains: inner.solve(gains, batch)).values

        return start.with_values(map_batches(self.model, self.sets.take(places), work).bool())

    def _cuts(self, request: SubsetRequest) -> Tensor:
        """Return the score `(b,)` above which an item is worth choosing; NaN where that depends on the choice."""
        p, cuts = request.threshold, torch.full((len(self.sets),), torch.nan, dtype=torch.float64)
        cuts = cuts.to(self.sets.device)
        if p is not None:
            # Probabilities of 0 and 1 have no finite logit.
            return cuts.fill_(math.log(p / (1 - p))) if 0 < p < 1 else cuts
        for rule, rows in [] if request.size is not None else self._rules():
            if rule.level is not None:
                cuts = cuts.masked_fill(rows, rule.level)
        return cuts


def _linear(constraint: Any, name: str) -> LinearConstraint:
    """Return a linear constraint, which goes with the argument of this name."""
    if not isinstance(constraint, LinearConstraint):
        raise OptionError(
            f"{parameter(name)} goes with linear constraints, such as Budget or Groups, not with "
            f"{type(constraint).__name__}; leave out {parameter(name)}"
        )
    return constraint


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

"""Choices item by item that are computed in single precision, and in double precision where a decision is close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction
from setgrad.selector._batched_inference import check_finite, is_large, map_sets
from setgrad.selector._rounds import choose_in_rounds
from setgrad.selector.item_by_item import choose_from_all, choose_item_by_item
from setgrad.sets import Sets, segment_max

if TYPE_CHECKING:
    from setgrad.selector._prediction import Chooser, SubsetRequest

# By how much gains in single precision may be wrong, relative to the largest one of a set: about a hundred times what
# they differ between batches; a tenth of it for a set that is in no batch with others.
MARGIN, MARGIN_ALONE = 2e-4, 2e-5


@final
@dataclass(frozen=True, eq=False)
class QuickChoice:
    """Chooses the items that `Chooser.follow_path` chooses.

    Results of single precision depend a little on the other sets of a batch, and on the order of the items. Where any
    decision is so close that this could matter, it is taken in double precision.

    Attributes:
        chooser: The sets and the models.
        request: What to choose.
        limits: The result of `Chooser.limits`; None to compute it from the gains at the start.
    """

    chooser: Chooser
    request: SubsetRequest
    limits: tuple[Tensor, Tensor] | None

    def choose(self) -> Tensor:
        """Return the chosen items, `(total,)`."""
        chooser = self.chooser

        def work(batch: Sets, rows: np.ndarray) -> Tensor:
            if is_large(chooser.model, batch):
                chosen, _ = self._choose_from_large(batch, rows)
                return torch.stack([chosen, torch.ones_like(chosen)], 1)
            chosen, is_sure = self._choose_in_single(batch, rows)
            return torch.stack([chosen, is_sure[batch.layout.ids]], 1)

        picks, is_sure = map_sets(chooser.fast_model, chooser.sets, work).bool().reshape(-1, 2).unbind(1)
        unsure = np.unique(chooser.sets.layout.ids[~is_sure].cpu().numpy())
        if not len(unsure):
            return picks
        items = chooser.sets.with_values(torch.arange(len(picks), device=picks.device)).take(unsure)
        chosen, _, _ = chooser.some(unsure).follow_path(self.request, self._limits_of(unsure), chooser.min_size)
        return picks.index_put((items.values,), chosen.values)

    def choose_and_infer(self) -> tuple[Sets, Tensor]:
        """Return the chosen items and the logits. The items of a set are encoded once, if that is precise enough."""
        chooser = self.chooser

        def work(batch: Sets, rows: np.ndarray) -> Tensor:
            if is_large(chooser.model, batch):
                chosen, first = self._choose_from_large(batch, rows)
            else:
                bound = chooser.model.bind(batch)
                request = self._begin(bound, batch, rows)
                first = request["first"]
                chosen = choose_quickly(chooser.steady(bound.prepared(), first), **request)
            return torch.stack([chosen.double(), first.double()], 1)

        picks, logits = map_sets(chooser.model, chooser.sets, work).reshape(-1, 2).unbind(1)
        return chooser.sets.with_values(picks.bool()), logits.to(chooser.dtype)

    def _choose_in_single(self, batch: Sets, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the choice in single precision, and for each set whether it is sure."""
        bound = self.chooser.fast_model.bind(batch).prepared()
        request = self._begin(bound, batch, rows)
        is_sure = self._has_sure_sizes(request, batch, rows, MARGIN)
        path = choose_item_by_item(self.chooser.steady(bound, request["first"]), **request, margin=MARGIN)
        # A set that is read in chunks is never in a batch with others.
        return path.subsets.values, torch.ones_like(is_sure) if bound.in_chunks else is_sure & path.is_sure

    def _choose_from_large(self, batch: Sets, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the choice from one large set, and its logits in single precision."""
        whole: Callable[[], BoundSetFunction] = cache(lambda: self.chooser.model.bind(batch).prepared())
        bound = self.chooser.fast_model.bind(batch)
        request = self._begin(bound, batch, rows)
        start, first = request["start"], request["first"]
        if not bool(self._has_sure_sizes(request, batch, rows, MARGIN_ALONE)):
            request = self._begin(whole(), batch, rows)

        def exact() -> BoundSetFunction:
            weighs_start = self.chooser.start_weight > 0
            return self.chooser.steady(whole(), whole().gains(start[None])[0] if weighs_start else first)

        chosen, _ = choose_in_rounds(
            choose_from_all,
            self.chooser.steady(bound.prepared(), first),
            size=int(request["sizes"][0]),
            cut=float(request["cut"][0]),
            min_size=request["min_size"],
            start=request["start"],
            excluded=request["excluded"],
            first=first,
            margin=MARGIN_ALONE,
            exact=cache(exact),
        )
        return chosen, first

    def _begin(self, bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> dict[str, Any]:
        """Return the arguments of `choose_item_by_item` for a batch."""
        chooser = self.chooser
        part, (start, excluded) = chooser.part(batch, rows), chooser.known_masks(bound, rows)
        first = bound.gains(start[None])[0]
        check_finite(first, batch, lambda number: f"set {rows[number]}")
        limits = self._limits_of(rows)
        if limits is None:
            limits = part.limits(self.request, part.filled(first.to(chooser.dtype)))
        sizes, cut = (limit.to(batch.device) for limit in limits)
        return {
            "sizes": sizes,
            "cut": cut,
            "min_size": chooser.min_size,
            "start": start,
            "excluded": excluded,
            "first": first,
        }

    def _has_sure_sizes(self, request: dict[str, Any], batch: Sets, rows: np.ndarray, margin: float) -> Tensor:
        """Return for each set whether gains that differ by less than the margin give the same size."""
        first, sizes = request["first"], request["sizes"]
        if self.limits is not None:
            return torch.ones_like(sizes, dtype=torch.bool)
        part = self.chooser.part(batch, rows)
        slack = (margin * segment_max(first.abs(), batch, empty=0.0).clamp(min=1.0))[batch.layout.ids]
        others = [part.limits(self.request, part.filled(x))[0] for x in (first - slack, first + slack)]
        return (others[0] == sizes) & (others[1] == sizes)

    def _limits_of(self, rows: np.ndarray) -> Any:
        """Return the limits of some sets; a request may name a size for each."""
        return None if self.limits is None else tuple(limit[torch.as_tensor(rows)] for limit in self.limits)


def choose_quickly(bound: BoundSetFunction, **request: Any) -> Tensor:
    """Return the items `(total,)` that `choose_item_by_item` chooses on a function in double precision.

    Its path is taken in single precision, and again in double precision for the sets that are not sure.

    Args:
        bound: F in double precision.
        **request: The arguments of `choose_item_by_item`, which all have values.
    """
    if bound.in_chunks:
        return choose_item_by_item(bound, **request).subsets.values
    sets = bound.sets
    single = bound.with_tensors([tensor.float() for tensor in bound.tensors()])
    path = choose_item_by_item(single, **request, margin=MARGIN)
    unsure = (~path.is_sure).nonzero()[:, 0]
    if not len(unsure):
        return path.subsets.values
    items = sets.with_values(torch.arange(sets.layout.total, device=sets.device)).take(unsure.cpu().numpy())
    part = bound.restrict(unsure, items)
    if part is None:
        return choose_item_by_item(bound, **request).subsets.values
    some = {name: request[name][unsure] for name in ("sizes", "cut")}
    some |= {name: request[name][items.values] for name in ("start", "excluded", "first")}
    again = choose_item_by_item(part, **some, min_size=request["min_size"])
    return path.subsets.values.index_put((items.values,), again.subsets.values)

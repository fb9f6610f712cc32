"""Draws of whole subsets, and the draw that is closest to all others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import FreshNoise, ItemNoise
from setgrad.inference import draw_partial_subsets
from setgrad.inference.partial import log_total
from setgrad.selector._batched_inference import BATCH_ITEMS, map_sets, padded_items, plan_batches
from setgrad.selector._known import Known
from setgrad.selector._model import ChoiceModel
from setgrad.selector._processes import ALONE, Processes
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.item_by_item import draw_item_by_item
from setgrad.sets import Choices, Sets, segment_sum

# Draws from which a subset is decided.
DRAWS = 64
# Subsets of each validation set from which the end of a draw is learned, and the largest size of its logit.
_PARTS, _WIDEST = 8, 60.0


def draw_subsets(
    model: ChoiceModel,
    sets: Sets,
    probabilities: Tensor | None,
    *,
    count: int,
    seed: int,
    stop_logit: float,
    known: Known | None = None,
) -> Tensor:
    """Draw subsets of each set, booleans `(count, total)`.

    The conditional method draws item by item. The probabilities of other methods belong to independent items.

    Args:
        model: The model in double precision.
        sets: The sets.
        probabilities: The probability of each item, given what is known, `(total,)`; the conditional method needs none.
        count: Number of draws.
        seed: Seed. The numbers follow from it and the items, so the draws of a set are the same in every batch.
        stop_logit: The logit of the end of a draw; see `fit_stop_logit`.
        known: Items that are known to be in the subsets, or out of them.
    """

    def item_by_item(batch: Sets, rows: np.ndarray) -> Tensor:
        bound = model.bind(batch).prepared()
        nothing = torch.zeros(batch.layout.total, dtype=torch.bool, device=batch.device)
        inside, outside = (nothing, nothing) if known is None else known.masks(rows, batch.device)
        start = inside.expand(count, -1)

        def noise(step: int) -> ItemNoise:
            return ItemNoise(batch, _seed(seed, step))

        return draw_item_by_item(bound, noise, start, outside, stop_logit).T

    def independent(batch: Sets, rows: np.ndarray) -> Tensor:
        assert probabilities is not None
        p = sets.with_values(probabilities).take(rows).values.to(batch.device)
        return (ItemNoise(batch, _seed(seed, 0)).uniform(batch.layout, count) < p).T

    work = item_by_item if model.config.options.method == CONDITIONAL else independent
    return map_sets(model, sets, work, max(1, BATCH_ITEMS // count)).bool().reshape(sets.layout.total, count).T


@torch.no_grad()
def fit_stop_logit(model: ChoiceModel, choices: Choices, seed: int, processes: Processes = ALONE) -> float:
    """Return the logit of the end of a draw under which the true ends of random parts are likeliest.

    At a part A the end has the odds exp(logit) against the sum of exp(gain) over the items outside A. Parts have a size
    that is uniform in 0..|S*|, as on the way of a draw to S*, and the true end is S* itself.
    """
    device, noise = model.mean.device, FreshNoise(seed)
    totals, ends = [], []
    batches = list(plan_batches(choices.sets))
    own = set(processes.own(padded_items(choices.sets, batches)).tolist())
    for number, indices in enumerate(batches):
        sets, subsets = (part.take(indices).to(device) for part in choices)
        parts = draw_partial_subsets(subsets, _PARTS, noise)
        is_open = segment_sum((~parts).T, subsets).T > 0
        ends.append((segment_sum((subsets.values & ~parts).T, subsets).T == 0)[is_open].double())
        found = torch.zeros_like(ends[-1])
        if number in own:
            found = log_total(model.bind(sets).gains(parts), parts, subsets, where=is_open)[is_open].double()
        totals.append(found)
    total, end = processes.sum(torch.cat(totals)), torch.cat(ends)
    # The derivative of the likelihood falls with the logit.
    low, high = -_WIDEST, _WIDEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((end - torch.sigmoid(middle - total)).sum()) > 0 else (low, middle)
    return (low + high) / 2


def _seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def closest_to_draws(candidates: Tensor, draws: Tensor, sets: Sets) -> Sets:
    """Return, for each set, the candidate with the largest mean Jaccard score with the draws.

    Args:
        candidates: Subsets to choose from, `(m, total)`.
        draws: Drawn subsets, `(n, total)`.
        sets: The sets.

    Examples:
        >>> sets = Sets.from_list([[[0.0], [0.0], [0.0]]])
        >>> draws = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
        >>> closest_to_draws(draws, draws, sets).values.tolist()
        [True, True, True]
    """
    chosen, drawn = (sets.with_values(x.T.double()).padded()[0] for x in (candidates, draws))
    both = chosen.mT @ drawn
    either = chosen.sum(1)[:, :, None] + drawn.sum(1)[:, None] - both
    scores = torch.where(either > 0, both / either.clamp(min=1), 1.0).mean(2)
    best = scores.argmax(1)
    return sets.with_values(candidates.gather(0, best[sets.layout.ids][None])[0])

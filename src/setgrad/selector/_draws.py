"""Draws of whole subsets, and the draw that is closest to all others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import ItemNoise
from setgrad.selector._batched_inference import BATCH_ITEMS, map_sets
from setgrad.selector._known import Known
from setgrad.selector._model import ChoiceModel
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.item_by_item import draw_item_by_item
from setgrad.sets import Sets

# Draws from which a subset is decided.
DRAWS = 64


def draw_subsets(
    model: ChoiceModel, sets: Sets, probabilities: Tensor, count: int, seed: int, known: Known | None = None
) -> Tensor:
    """Draw subsets of each set, booleans `(count, total)`.

    The conditional method draws item by item. The probabilities of other methods belong to independent items.

    Args:
        model: The model in double precision.
        sets: The sets.
        probabilities: The probability of each item, given what is known, `(total,)`.
        count: Number of draws.
        seed: Seed. The numbers follow from it and the items, so the draws of a set are the same in every batch.
        known: Items that are known to be in the subsets, or out of them.
    """

    def item_by_item(batch: Sets, rows: np.ndarray) -> Tensor:
        bound = model.bind(batch)
        nothing = torch.zeros(batch.layout.total, dtype=torch.bool, device=batch.device)
        inside, outside = (nothing, nothing) if known is None else known.masks(rows, batch.device)
        start = inside.expand(count, -1)
        return draw_item_by_item(bound, lambda step: ItemNoise(batch, _seed(seed, step)), start, outside).T

    def independent(batch: Sets, rows: np.ndarray) -> Tensor:
        p = sets.with_values(probabilities).take(rows).values.to(batch.device)
        return (ItemNoise(batch, _seed(seed, 0)).uniform(batch.layout, count) < p).T

    work = item_by_item if model.config.options.method == CONDITIONAL else independent
    return map_sets(model, sets, work, max(1, BATCH_ITEMS // count)).bool().reshape(sets.layout.total, count).T


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

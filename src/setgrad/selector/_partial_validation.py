"""Validation of a model that is trained at partial subsets: its score, and the paths that size rules are fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction, FreshNoise
from setgrad.inference import PartialSubsetLoss, draw_partial_subsets
from setgrad.selector._batched_inference import infer_logits, map_batches, plan_batches
from setgrad.selector._known import Known
from setgrad.selector._model import ChoiceModel
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.selector.metrics import jaccard
from setgrad.sets import Choices, Sets, segment_rank, subset_sizes

# Partial subsets of each validation set in the loss.
_SAMPLES = 4
# The logit of an item that is given.
_CERTAIN = 40.0


@torch.no_grad()
def validate_completion(
    model: ChoiceModel, choices: Choices, sizes: np.ndarray, loss: PartialSubsetLoss, seed: int
) -> tuple[float, float]:
    """Return the mean Jaccard score of choosing item by item, and the loss at random partial subsets.

    The score is the mean of two: from nothing, and from one random item of the true subset. Both have its size. The
    random numbers are the same in every epoch, so that scores can be compared.

    Args:
        model: The model.
        choices: The validation sets.
        sizes: Sizes of their subsets.
        loss: The loss.
        seed: Seed of the random numbers.
    """
    device, noise = model.mean.device, FreshNoise(seed)
    scores, losses, counts = [], [], []
    for indices in plan_batches(choices.sets):
        sets, subsets = (part.take(indices).to(device) for part in choices)
        bound, wanted = model.bind(sets), torch.as_tensor(sizes[indices], device=device)
        one = _draw_one(subsets, noise)
        paths = [choose_item_by_item(bound, sizes=wanted, start=start) for start in (None, one)]
        scores.append(torch.stack([jaccard(path.subsets, subsets) for path in paths]).mean(0))
        partial = draw_partial_subsets(subsets, _SAMPLES, noise)
        losses.append(loss(bound.gains(partial), partial, subsets, None))
        counts.append(len(indices))
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    return float(torch.cat(scores).mean()), float((torch.stack(losses).double().cpu() * weights).sum())


@final
@dataclass(frozen=True, eq=False)
class ValidationPaths:
    """Choices item by item: the true subsets, the logits at the start of the path, and the scores on it."""

    subsets: Sets
    logits: Tensor
    scores: Tensor


def follow_paths(
    model: ChoiceModel, choices: Choices, logits: Tensor, seed: int, *, completions: bool
) -> ValidationPaths:
    """Choose item by item, up to the size of the largest subset.

    Args:
        model: The model.
        choices: The validation sets.
        logits: The logits of their items, `(total,)`.
        seed: Seed of the given items.
        completions: Whether each set comes a second time, with one random item of its subset given.
    """
    subsets, largest = choices.subsets, int(subset_sizes(choices.subsets).max())

    def follow(known: Known | None) -> Tensor:
        def work(bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> Tensor:
            start = None if known is None else known.masks(rows, batch.device)[0]
            return choose_item_by_item(bound, sizes=batch.lengths.clamp(max=largest), start=start).scores

        return map_batches(model, choices.sets, work)

    scores = follow(None)
    if not completions:
        return ValidationPaths(subsets, logits, scores)
    one = _draw_one(subsets, FreshNoise(seed))
    known = Known(subsets.with_values(one), subsets.with_values(torch.zeros_like(one)))
    given_logits = infer_logits(model, choices.sets, samples=1, known=known)
    return ValidationPaths(
        Sets.cat([subsets, subsets]),
        # A given item is certain; a rule is fitted to finite numbers.
        torch.cat([logits, known.fill(given_logits, inside=_CERTAIN, outside=-_CERTAIN)]),
        torch.cat([scores, follow(known).clamp(max=_CERTAIN)]),
    )


def _draw_one(subsets: Sets, noise: FreshNoise) -> Tensor:
    """Return one random item of each subset, `(total,)`."""
    draw = noise.uniform(subsets.layout, 1)[0].masked_fill(~subsets.values, -1.0)
    return subsets.values & (segment_rank(draw, subsets) == 0)

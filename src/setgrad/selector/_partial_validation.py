"""Validation of a model that is trained at partial subsets: its score, and its rules for the number of items."""

from __future__ import annotations

from collections.abc import Callable

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
from setgrad.selector.sizes import SizeRule, calibrate
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


def calibrate_from_nothing(
    model: ChoiceModel,
    choices: Choices,
    logits: Tensor,
    min_size: int,
    limit: Callable[[Sets, Tensor, SizeRule], Sets] | None,
) -> tuple[SizeRule, dict[str, float]]:
    """Return the best rule for the number of items, and the scores of all; the arguments are those of `calibrate`."""
    return calibrate(logits, choices.subsets, min_size, limit, _follow_paths(model, choices, None))


def calibrate_completion(model: ChoiceModel, choices: Choices, min_size: int, seed: int) -> SizeRule:
    """Return the best rule for the number of items if one random item of the true subset is given."""
    subsets = choices.subsets
    one = subsets.with_values(_draw_one(subsets, FreshNoise(seed)))
    known = Known(one, subsets.with_values(torch.zeros_like(one.values)))
    logits = infer_logits(model, choices.sets, samples=1, known=known)
    # A given item is certain; a rule is fitted to finite numbers.
    logits = known.fill(logits, inside=_CERTAIN, outside=-_CERTAIN)
    scores = _follow_paths(model, choices, known).clamp(max=_CERTAIN)
    return calibrate(logits, subsets, min_size, None, scores)[0]


def _follow_paths(model: ChoiceModel, choices: Choices, known: Known | None) -> Tensor:
    """Return the scores `(total,)` of choosing item by item, up to twice the size of the largest subset.

    So a rule that would choose too many items shows it.
    """
    largest = 2 * int(subset_sizes(choices.subsets).max())

    def work(bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> Tensor:
        start = None if known is None else known.masks(rows, batch.device)[0]
        return choose_item_by_item(bound, sizes=batch.lengths.clamp(max=largest), start=start).scores

    return map_batches(model, choices.sets, work)


def _draw_one(subsets: Sets, noise: FreshNoise) -> Tensor:
    """Return one random item of each subset, `(total,)`."""
    draw = noise.uniform(subsets.layout, 1)[0].masked_fill(~subsets.values, -1.0)
    return subsets.values & (segment_rank(draw, subsets) == 0)

"""The validation score of a model that is trained at partial subsets."""

from __future__ import annotations

import numpy as np
import torch

from setgrad.functions import FreshNoise
from setgrad.inference import PartialSubsetLoss, draw_partial_subsets
from setgrad.selector._batched_inference import plan_batches
from setgrad.selector._model import ChoiceModel
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.selector.metrics import jaccard
from setgrad.sets import Choices, segment_rank

# Partial subsets of each validation set in the loss.
_SAMPLES = 4


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
        draw = noise.uniform(sets.layout, 1)[0].masked_fill(~subsets.values, -1.0)
        one = subsets.values & (segment_rank(draw, subsets) == 0)
        paths = [choose_item_by_item(bound, sizes=wanted, start=start) for start in (None, one)]
        scores.append(torch.stack([jaccard(path.subsets, subsets) for path in paths]).mean(0))
        partial = draw_partial_subsets(subsets, _SAMPLES, noise)
        losses.append(loss(bound.gains(partial), partial, subsets, None))
        counts.append(len(indices))
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    return float(torch.cat(scores).mean()), float((torch.stack(losses).double().cpu() * weights).sum())

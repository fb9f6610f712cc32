"""Validation of a model that is trained at partial subsets: its score, and its rules for the number of items."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction, FreshNoise
from setgrad.inference import PartialSubsetLoss, draw_partial_subsets
from setgrad.selector._batched_inference import map_batches, padded_items, plan_batches
from setgrad.selector._model import ChoiceModel
from setgrad.selector._processes import ALONE, Processes
from setgrad.selector._start_weight import START_WEIGHTS, best_start_weight, towards_start
from setgrad.selector.item_by_item import choose_item_by_item, path_steps
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Choices, Sets, segment_rank, subset_sizes

# Partial subsets of each validation set in the loss.
_SAMPLES = 4
# Steps of a path in validation, each of which adds several items: enough to tell good weights from bad ones.
_STEPS = 4
# Evaluations of gains in a validation, and in one pass of calibration. With more validation sets than that, random ones
# stand for all; never fewer than this number.
_VALIDATION_GAINS, CALIBRATION_GAINS, _LEAST_SETS = 2**18, 2**19, 100
# In validation, also as many as are this share of those of an epoch.
_VALIDATION_SHARE = 0.1
# The logit of an item that is given.
_CERTAIN = 40.0


def sets_to_validate(choices: Choices, trained: int, seed: int) -> Choices:
    """Return the sets on which each epoch is validated.

    Args:
        choices: All validation sets.
        trained: Number of gains that an epoch of training evaluates.
        seed: Seed of the choice of sets.
    """
    return take_choices(
        choices,
        _some(choices, _SAMPLES + 2 * _STEPS - 1, max(_VALIDATION_GAINS, int(_VALIDATION_SHARE * trained)), seed),
    )


def sets_to_calibrate(choices: Choices, gains: int, seed: int) -> np.ndarray:
    """Return the indices of the sets from which the rules for the number of items are learned, in ascending order.

    Args:
        choices: All validation sets.
        gains: Number of gains that one pass may evaluate, at most `CALIBRATION_GAINS` if time does not matter.
        seed: Seed of the choice of sets.
    """
    return _some(choices, path_steps(_largest_size(choices)), gains, seed)


def take_choices(choices: Choices, rows: np.ndarray) -> Choices:
    """Return some of the sets with their subsets."""
    return Choices(choices.sets.take(rows), choices.subsets.take(rows))


def _some(choices: Choices, steps: int, budget: int, seed: int) -> np.ndarray:
    """Return indices of random sets for which so many steps cost at most this number of gains, or all of them."""
    count = max(_LEAST_SETS, int(budget / max(1.0, steps * choices.sets.layout.total / len(choices))))
    if count >= len(choices):
        return np.arange(len(choices))
    return np.sort(np.random.default_rng(seed).permutation(len(choices))[:count])


def validate_completion(
    model: ChoiceModel,
    choices: Choices,
    sizes: np.ndarray,
    loss: PartialSubsetLoss,
    seed: int,
    processes: Processes = ALONE,
) -> tuple[float, float]:
    """Return the mean Jaccard score of choosing in a few steps, and the loss at random partial subsets.

    The arguments are those of `score_sets`.
    """
    scores, value = score_sets(model, choices, sizes, loss, seed, processes)
    return float(scores.mean()), value


@torch.no_grad()
def score_sets(
    model: ChoiceModel,
    choices: Choices,
    sizes: np.ndarray,
    loss: PartialSubsetLoss,
    seed: int,
    processes: Processes = ALONE,
) -> tuple[Tensor, float]:
    """Return the Jaccard score of choosing in a few steps for each set, in a fixed order, and the mean loss.

    The score is the mean of two: from nothing, and from one random item of the true subset. Both have its size. The
    random numbers are the same in every epoch, so that scores can be compared. The loss is NaN, and the scores are 0,
    if a gain is not finite.

    Args:
        model: The model.
        choices: The validation sets.
        sizes: Sizes of their subsets.
        loss: The loss.
        seed: Seed of the random numbers.
        processes: The processes that validate together, each some of the batches.
    """
    device, noise = model.mean.device, FreshNoise(seed)
    batches = list(plan_batches(choices.sets))
    own = set(processes.own(padded_items(choices.sets, batches)).tolist())
    results = []
    for number, indices in enumerate(batches):
        sets, subsets = (part.take(indices).to(device) for part in choices)
        # Every process draws all random numbers.
        one, partial = _draw_one(subsets, noise), draw_partial_subsets(subsets, _SAMPLES, noise)
        result = torch.zeros(len(indices) + 1, dtype=torch.float64, device=device)
        if number in own:
            bound, wanted = model.bind(sets).prepared(), torch.as_tensor(sizes[indices], device=device)
            gains = bound.gains(partial)
            if bool(gains.isfinite().all()):
                # The first part is empty.
                starts = ((None, gains[0]), (one, None))
                paths = [choose_item_by_item(bound, sizes=wanted, start=x, first=y, steps=_STEPS) for x, y in starts]
                result[1:] = torch.stack([jaccard(path.subsets, subsets) for path in paths]).mean(0)
                result[0] = loss(gains, partial, subsets, None)
            else:
                result[0] = torch.nan
        results.append(result)
    parts = processes.sum(torch.cat(results)).split([len(result) for result in results])
    losses, scores = torch.stack([part[0] for part in parts]).cpu(), torch.cat([part[1:] for part in parts])
    if not bool(losses.isfinite().all()):
        return torch.zeros_like(scores), math.nan
    counts = torch.tensor([len(indices) for indices in batches], dtype=torch.float64)
    return scores, float((losses * (counts / counts.sum())).sum())


def calibrate_from_nothing(
    model: ChoiceModel,
    choices: Choices,
    logits: Tensor,
    min_size: int,
    limit: Callable[[Sets, Tensor, SizeRule], Sets] | None,
) -> tuple[SizeRule, dict[str, float]]:
    """Return the best rule for the number of items, and the scores of all; the arguments are those of `calibrate`."""
    starts, ways = [torch.zeros_like(choices.subsets.values)], [(0, 0.0, _largest_sizes(choices))]
    _, (scores,) = _follow_paths(model, choices, starts, ways, ALONE)
    return calibrate(logits, choices.subsets, min_size, limit, scores)


def calibrate_choice_and_completion(
    model: ChoiceModel, choices: Choices, logits: Tensor, min_size: int, seed: int, processes: Processes = ALONE
) -> tuple[SizeRule, dict[str, float], SizeRule, float]:
    """Return the best rule for the number of items, the scores of all, and the best one where an item is given.

    The given item is a random one of the true subset. The last number is the weight of the gains at the start.
    """
    subsets, largest, sizes = choices.subsets, _largest_sizes(choices), subset_sizes(choices.subsets)
    one = _draw_one(subsets, FreshNoise(seed))
    starts = [torch.zeros_like(one), one]
    # Of the three orders from nothing the third is that of the gains there.
    ways = [(0, START_WEIGHTS[0], largest), (1, START_WEIGHTS[0], largest), (0, START_WEIGHTS[1], sizes)]
    (first, given), (path, completed, between) = _follow_paths(model, choices, starts, ways, processes)
    picks = [pick_top(scores, subsets, sizes) for scores in (path, between, first)]
    weight = best_start_weight(torch.stack([jaccard(x, subsets) for x in picks], 1))
    if weight:
        ways = [(number, weight, largest) for number in range(len(starts))]
        _, (path, completed) = _follow_paths(model, choices, starts, ways, processes)
    rule, scores = calibrate(logits, subsets, min_size, None, path)
    # A given item is certain; a rule is fitted to finite numbers.
    gains, completed = torch.where(one, _CERTAIN, given), completed.clamp(max=_CERTAIN)
    return rule, scores, calibrate(gains, subsets, min_size, None, completed)[0], weight


def _follow_paths(
    model: ChoiceModel,
    choices: Choices,
    starts: Sequence[Tensor],
    ways: Sequence[tuple[int, float, np.ndarray]],
    processes: Processes,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Choose item by item in several ways. The items of a set are encoded once for all.

    Args:
        model: The model.
        choices: The validation sets.
        starts: The items that paths start from, `(total,)` each.
        ways: For each path the number of its start, the weight of the gains there, and its largest sizes `(b,)`.
        processes: The processes that share the sets.

    Returns:
        The gains at each start, and the scores of each path, `(total,)` each.
    """
    masks = choices.subsets.with_values(torch.stack(list(starts), 1))

    def work(bound: BoundSetFunction, batch: Sets, rows: np.ndarray) -> Tensor:
        bound, begun = bound.prepared(), masks.take(rows).values.to(batch.device).T
        firsts, paths = bound.gains(begun), []
        for number, weight, largest in ways:
            function = towards_start(bound, firsts[number], weight)
            sizes = torch.as_tensor(largest[rows], device=batch.device).minimum(batch.lengths)
            path = choose_item_by_item(function, sizes=sizes, start=begun[number], first=firsts[number])
            paths.append(path.scores)
        return torch.stack([*firsts.double(), *paths], 1)

    columns = map_batches(model, choices.sets, work, processes, columns=len(starts) + len(ways)).unbind(1)
    return columns[: len(starts)], columns[len(starts) :]


def _largest_sizes(choices: Choices) -> np.ndarray:
    """Return the lengths of the paths of calibration: a rule that would choose too many items shows it."""
    return np.full(len(choices), _largest_size(choices))


def _largest_size(choices: Choices) -> int:
    """Return twice the size of the largest subset."""
    return 2 * int(subset_sizes(choices.subsets).max())


def _draw_one(subsets: Sets, noise: FreshNoise) -> Tensor:
    """Return one random item of each subset, `(total,)`."""
    draw = noise.uniform(subsets.layout, 1)[0].masked_fill(~subsets.values, -1.0)
    return subsets.values & (segment_rank(draw, subsets) == 0)

"""Logits for any number of sets, in batches that fit into memory, without a graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.functions import ItemNoise
from setgrad.functions.average import BoundAverage
from setgrad.selector._model import ChoiceModel
from setgrad.sets import Sets

# Padded items of one batch.
BATCH_ITEMS = 2**15
# Share of the sets that inference should settle on; with fewer, users hear of it.
SETTLED = 0.9


def plan_batches(sets: Sets, budget: int = BATCH_ITEMS) -> Iterator[np.ndarray]:
    """Numbers of the sets of each batch: sets of similar size together, none above the budget except alone."""
    lengths = sets.layout.host_lengths
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Sizes grow along the order, so the last set of a batch decides its padded size.
        sizes = np.maximum(lengths[order[start:]], 1) * np.arange(1, len(order) - start + 1)
        count = max(1, int(np.searchsorted(sizes, budget, side="right")))
        yield order[start : start + count]
        start += count


def map_batches(model: ChoiceModel, sets: Sets, work: Callable[[BoundAverage, Sets, np.ndarray], Tensor]) -> Tensor:
    """Call `work` on F bound to each batch, the batch and its set numbers; put the results `(items,)` back in order."""
    return in_batches(model, sets, lambda batch, numbers: work(model.bind(batch), batch, numbers))


def in_batches(
    model: ChoiceModel, sets: Sets, work: Callable[[Sets, np.ndarray], Tensor], budget: int = BATCH_ITEMS
) -> Tensor:
    """Call `work` on each batch and its set numbers, without a graph; put the results `(items,)` back in order."""
    device = model.mean.device
    out: Tensor | None = None
    with torch.no_grad():
        for numbers in plan_batches(sets, budget):
            batch = sets.take(numbers).to(device)
            result = work(batch, numbers).to(sets.device)
            if out is None:
                out = result.new_zeros(sets.layout.total)
            layout = sets.layout
            lengths = layout.host_lengths[numbers]
            starts = np.repeat(layout.host_offsets[numbers] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
            out[layout.to_device(starts + np.arange(lengths.sum()))] = result
    return out if out is not None else torch.zeros(sets.layout.total, dtype=model.dtype, device=sets.device)


def infer_logits(model: ChoiceModel, sets: Sets, *, samples: int, seed: int = 0, warn: bool = False) -> Tensor:
    """Logits of all items. The sampling noise belongs to the items, so batches and order make no difference.

    With `warn`, say so if inference did not settle on many of the sets.
    """
    settled: list[Tensor] = []

    def work(bound: BoundAverage, batch: Sets, numbers: np.ndarray) -> Tensor:
        found = model.infer(bound, ItemNoise(batch, seed), samples=samples)
        settled.append(found.settled)
        return found.logits

    logits = map_batches(model, sets, work)
    if warn and settled and (share := float(torch.cat(settled).double().mean())) < SETTLED:
        warnings.warn(
            f"inference settled on {share:.0%} of the sets, and the probabilities of the others are those of its last "
            "step; raise steps, or fit with method='unrolled'",
            RuntimeWarning,
            stacklevel=4,
        )
    return logits


def finite_logits(logits: Tensor, sets: Sets, names: Callable[[int], str] = "set {}".format) -> Tensor:
    """Pass logits on if all of them are numbers; else say which set is to blame."""
    wrong = ~logits.isfinite()
    if bool(wrong.any()):
        name = names(int(sets.layout.ids[wrong][0]))
        raise DataError(
            f"the features of {name} are too large for the model to judge it; look for values far beyond those that it "
            "was fitted on"
        )
    return logits

"""The training sets of one process of several: of each window it reads what its shares of the batches need."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import numpy as np
import torch

from setgrad.selector._examples import AbstractExamples, EpochPart, LoadedSets
from setgrad.sets import Choices, Sets


def load_own(
    examples: AbstractExamples,
    windows: Sequence[np.ndarray],
    parts: Sequence[EpochPart],
    first: int,
    own: Callable[[np.ndarray], np.ndarray],
) -> Generator[LoadedSets]:
    """Yield the windows of an epoch from one on, each with the sets of this process.

    Args:
        examples: The training sets.
        windows: The numbers of the sets of all windows.
        parts: The parts of the epoch.
        first: The first window to load.
        own: Returns the places in a batch that belong to this process.
    """
    needed = np.zeros(len(examples), dtype=bool)
    for part in parts:
        for batch in part.batches:
            needed[batch[own(batch)]] = True
    # In the order of the windows, which is that of the blocks.
    kept = [numbers[needed[numbers]] for numbers in windows[first:]]
    with closing(examples.load([numbers for numbers in kept if len(numbers)])) as loaded:
        for numbers in kept:
            yield next(loaded) if len(numbers) else _nothing(examples)


def _nothing(examples: AbstractExamples) -> LoadedSets:
    """Return no sets."""
    items = torch.zeros(0, *examples.item_shape, device=examples.device)
    sets = Sets.from_lengths(items, [])
    choices = Choices(sets, sets.with_values(torch.zeros(0, dtype=torch.bool, device=examples.device)))
    return LoadedSets(choices, None, np.empty(0, np.int64))

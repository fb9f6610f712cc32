"""Items with all that F reads of them: features relative to the set and scores of trees, computed once if possible."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.columns._relative import RelativeFeatures
from setgrad.selector._examples import AbstractExamples, Examples, LoadedSets
from setgrad.selector._model import ChoiceModel
from setgrad.selector._statistics import ItemStatistics
from setgrad.selector._tables import CONDITIONAL
from setgrad.sets import Choices

# More numbers than this, a gigabyte of them, are not kept.
_MOST_KEPT = 2**28


@final
@dataclass(frozen=True, eq=False)
class Folds:
    """The folds whose trees score the sets of a fit, -1 for all.

    Attributes:
        train: Those of the training sets, `(sets,)`.
        held_out: Those of the validation sets; None if trees did not learn from these.
    """

    train: Tensor
    held_out: Tensor | None


@torch.no_grad()
def grow_trees(
    model: ChoiceModel, train: AbstractExamples, held_out: Choices, *, learn_from_both: bool, seed: int
) -> Folds:
    """Grow the trees of a model on sets that are in memory together, and return the folds of the sets.

    Args:
        model: The model.
        train: The training sets.
        held_out: The validation sets, on the device.
        learn_from_both: Whether trees also learn from the validation sets.
        seed: The seed.
    """
    assert model.trees is not None
    (loaded,) = train.load(train.windows(seed)[:1])
    learned = [loaded.choices, held_out] if learn_from_both else [loaded.choices]
    counts = [len(choices) for choices in learned]
    starts = np.cumsum([0, *counts])
    found = model.trees.fit(
        torch.cat([sets.values.double() for sets, _ in learned]),
        None if model.relative is None else torch.cat([model.relative(sets) for sets, _ in learned]),
        torch.cat([subsets.values for _, subsets in learned]),
        torch.cat([sets.layout.ids + int(start) for (sets, _), start in zip(learned, starts[:-1], strict=True)]),
        loaded.weights,
        seed=seed,
    )
    own, others = found.tensor_split([counts[0]])
    folds = found.new_full((len(train),), -1)
    folds[torch.as_tensor(loaded.numbers, device=folds.device)] = own
    return Folds(folds, others if learn_from_both else None)


@torch.no_grad()
def prepare_sets(
    model: ChoiceModel, train: AbstractExamples, held_out: Choices, folds: Folds | None
) -> tuple[AbstractExamples, Choices]:
    """Return training and validation sets with prepared items; as they are, where that takes no work.

    Validation sets are in float64, because their predictions are computed in it.

    Args:
        model: The model.
        train: The training sets.
        held_out: The validation sets, on the device.
        folds: The folds of the trees; None for the mean over all.
    """
    width = model.config.prepared_width
    # With other methods the noise of an item follows from its numbers, so these stay as they are.
    is_worth_it = model.relative is not None and model.config.options.method == CONDITIONAL
    if model.trees is None and not (is_worth_it and train.layout.total * width <= _MOST_KEPT):
        return train, held_out
    exact = copy.deepcopy(model).double()
    sets = held_out.sets
    of_items = None if folds is None or folds.held_out is None else folds.held_out[sets.layout.ids]
    prepared: AbstractExamples = PreparedExamples(train, model, folds)
    if isinstance(train, Examples):
        (loaded,) = prepared.load(train.windows(0))
        prepared = Examples(loaded.choices, train.weights, train)
    return prepared, Choices(exact.prepare(sets, of_items), held_out.subsets)


@final
class PreparedExamples(AbstractExamples):
    """Training sets whose items are prepared when they are read.

    Args:
        examples: The training sets.
        model: Prepares the items.
        folds: The folds of the trees; None for the mean over all.
    """

    def __init__(self, examples: AbstractExamples, model: ChoiceModel, folds: Folds | None) -> None:
        self.examples, self.model, self.folds = examples, model, folds
        self.layout, self.sizes, self.unit = examples.layout, examples.sizes, examples.unit
        self.item_shape, self.device = (model.config.prepared_width,), examples.device

    @property
    def is_weighted(self) -> bool:
        """Whether items have weights."""
        return self.examples.is_weighted

    @property
    def work(self) -> int:
        """The number of sets or rows of an epoch."""
        return self.examples.work

    def effort(self, numbers: np.ndarray) -> int:
        """Return the number of sets or rows of a batch."""
        return self.examples.effort(numbers)

    def to(self, device: torch.device) -> PreparedExamples:
        """Return the same sets for another device."""
        return PreparedExamples(self.examples.to(device), self.model, self.folds)

    def statistics(self, relative: RelativeFeatures | None) -> ItemStatistics:
        """Return the statistics of the items as they were."""
        return self.examples.statistics(relative)

    def windows(self, seed: int) -> list[np.ndarray]:
        """Return the windows of the sets."""
        return self.examples.windows(seed)

    @torch.no_grad()
    def load(self, windows: Sequence[np.ndarray]) -> Generator[LoadedSets]:
        """Yield windows one after the other."""
        with closing(self.examples.load(windows)) as ready:
            for loaded in ready:
                sets, subsets = loaded.choices
                folds = None
                if self.folds is not None:
                    numbers = torch.as_tensor(loaded.numbers, device=sets.device)
                    folds = self.folds.train[numbers][sets.layout.ids]
                yield LoadedSets(Choices(self.model.prepare(sets, folds), subsets), loaded.weights, loaded.numbers)

    def signature(self) -> list[Any]:
        """Return what tells the sets from others."""
        return self.examples.signature()

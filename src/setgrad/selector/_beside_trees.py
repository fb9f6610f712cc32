"""What F has beside the score of its trees: a first term for pairs, and what training adds, where they help.

The trees know nothing of what else is chosen. Before training, a term that prefers items like the given ones gets the
columns and the weight that are best on the validation sets, or none; so it does in tables without trees. With trees F
goes back to that after training, if it is not clearly better. Then every set has a score from trees that have not seen
it, and nothing else was learned from a set. So all sets tell how many items to choose, not the validation sets alone.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from setgrad.inference import PartialSubsetLoss
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import resolved
from setgrad.selector._partial_validation import score_sets, sets_to_validate, take_choices
from setgrad.selector._prepared import Folds
from setgrad.selector._tables import PARTIAL_LOSSES
from setgrad.selector.metrics import is_clear
from setgrad.sets import Choices, Sets, subset_sizes

# Standard errors by which the validation score must rise. The best of many epochs is above the trees by chance: on a
# generated shop table of 240 sets weights that were 2.3 above in validation lost five points in test.
_CLEAR = 3.0
# Weights of the term for pairs that are tried.
_PAIR_WEIGHTS = (1.0, 3.0, 10.0, 30.0)
# Of more training sets than this, so many random ones tell how many items to choose.
_MOST_SETS = 2_000


def start_pairs(model: ChoiceModel, validation: Choices, seed: int) -> None:
    """Let the term for pairs start from likeness in one column or in all, whichever is best, or from nothing.

    Args:
        model: The model, before training: F is the score of its trees, if it has them, and the term for pairs.
        validation: The validation sets, prepared.
        seed: Seed of the validation.
    """
    if not model.config.pairs:
        return
    watched = _Watched.of(model, validation, seed)
    model.use_function(False)
    nothing, items = watched.scores(model), model.prepare(validation.sets)
    starts: list[tuple[Tensor, _Start]] = []
    for features in _features_of_columns(model):
        likeness = _mean_likeness(model, items, features)
        for weight in _PAIR_WEIGHTS:
            start = _Start(weight, features, likeness)
            start.set(model)
            starts.append((watched.scores(model), start))
    scores, start = max(starts, key=lambda entry: float(entry[0].mean()))
    if not is_clear(scores - nothing, _CLEAR):
        start = start._replace(weight=0.0)
    start.set(model)
    model.use_function(True)


def _features_of_columns(model: ChoiceModel) -> list[slice]:
    """Return the features by which pairs are compared: all, and those of each column that differs within sets."""
    return [slice(None), *(place for part, place in model.config.compared_slices() if not part.context)]


def drop_useless_training(
    model: ChoiceModel, before: dict[str, Tensor], validation: Choices, seed: int
) -> float | None:
    """Load the weights from before training, if those after it are not clearly better, and return their score.

    Args:
        model: The trained model, in evaluation mode.
        before: Its weights before training.
        validation: The validation sets, prepared.
        seed: Seed of the validation.

    Returns:
        The validation score of the weights from before; None if those after training stay.
    """
    watched, after = _Watched.of(model, validation, seed), copy.deepcopy(model.state_dict())
    trained = watched.scores(model)
    model.load_state_dict(before)
    model.use_function(False)
    untrained = watched.scores(model)
    if not is_clear(trained - untrained, _CLEAR):
        return float(untrained.mean())
    model.load_state_dict(after)
    model.use_function(True)
    return None


@torch.no_grad()
def all_sets_out_of_fold(
    model: ChoiceModel, train: AbstractExamples, validation: Choices, folds: Folds, seed: int
) -> Choices:
    """Return the validation sets and training sets, each scored by trees that have not seen it, in float64.

    Args:
        model: The model.
        train: The training sets as they were passed; of those that are read in parts, the part that trees learned from.
        validation: The validation sets, prepared.
        folds: The folds of the sets.
        seed: The seed of the fit.
    """
    (loaded,) = train.load(train.windows(seed)[:1])
    order = np.argsort(loaded.numbers, kind="stable")
    places = order[np.sort(np.random.default_rng(seed).permutation(len(order))[:_MOST_SETS])]
    sets, subsets = take_choices(loaded.choices, places)
    of_items = folds.train[torch.as_tensor(loaded.numbers[places], device=sets.device)][sets.layout.ids]
    prepared = copy.deepcopy(model).double().prepare(sets, of_items)
    return Choices(Sets.cat([validation.sets, prepared]), Sets.cat([validation.subsets, subsets]))


@final
class _Watched(NamedTuple):
    """Validation sets whose scores are compared."""

    choices: Choices
    sizes: np.ndarray
    loss: PartialSubsetLoss
    seed: int

    @staticmethod
    def of(model: ChoiceModel, validation: Choices, seed: int) -> _Watched:
        choices = sets_to_validate(validation, 0, seed)
        return _Watched(
            choices, subset_sizes(choices.subsets), PARTIAL_LOSSES[resolved(model.config.options.loss)], seed
        )

    def scores(self, model: ChoiceModel) -> Tensor:
        return score_sets(model, self.choices, self.sizes, self.loss, self.seed)[0]


@torch.no_grad()
def _mean_likeness(model: ChoiceModel, items: Sets, features: slice) -> list[float]:
    """Return the mean over the pairs of the sets of how alike they are in some features, for each member."""
    lengths = items.layout.host_lengths
    pairs = max(1, int((lengths * (lengths - 1)).sum()) // 2)
    everything = torch.ones(1, items.layout.total, dtype=torch.bool, device=items.device)
    found = []
    for member in model.each():
        assert member.pairs is not None
        member.pairs.start(1.0, features)
        own = items.with_values(items.values[:, :-1]) if member.reads_scores else items
        bound = member.pairs.bind(member.compared(own, member.featured(own)))
        found.append(float(bound.value(everything).sum()) / pairs)
    return found


@final
class _Start(NamedTuple):
    """A start of the term for pairs: one weight for some of the features; its mean over all pairs is 0."""

    weight: float
    features: slice
    likeness: list[float]

    def set(self, model: ChoiceModel) -> None:
        """Set the weights of the term."""
        for member, likeness in zip(model.each(), self.likeness, strict=True):
            assert member.pairs is not None
            member.pairs.start(self.weight, self.features, constant=-self.weight * likeness)

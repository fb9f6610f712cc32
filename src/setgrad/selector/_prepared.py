"""Training and validation sets with all that F reads of an item, computed once for all epochs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from setgrad.selector._model import ChoiceModel
from setgrad.sets import Choices


@torch.no_grad()
def prepare_choices(model: ChoiceModel, train: Choices, held_out: Choices) -> tuple[Choices, Choices]:
    """Return training and validation sets with prepared items; as they are, where that takes no work.

    Validation sets are in float64, because their predictions are computed in it.
    """
    return _prepare(model, train, held_out, (None, None))


@torch.no_grad()
def grow_trees(
    model: ChoiceModel, train: Choices, held_out: Choices, weights: Tensor | None, *, learn_from_both: bool, seed: int
) -> tuple[Choices, Choices]:
    """Grow the trees of a model, and return what `prepare_choices` does.

    A set that trees learn from has the score of trees that have not seen it.

    Args:
        model: The model.
        train: The training sets, on the device.
        held_out: The validation sets, on the device.
        weights: Weight of each training item; None for equal weights.
        learn_from_both: Whether trees also learn from the validation sets.
        seed: The seed.
    """
    assert model.trees is not None
    learned = (train, held_out) if learn_from_both else (train,)
    ids = train.sets.layout.ids
    if learn_from_both:
        ids = torch.cat([ids, held_out.sets.layout.ids + len(train)])
    scores = model.trees.fit(
        torch.cat([sets.values.double() for sets, _ in learned]),
        None if model.relative is None else torch.cat([model.relative(sets) for sets, _ in learned]),
        torch.cat([subsets.values for _, subsets in learned]),
        ids,
        weights,
        seed=seed,
    )
    own, others = scores.tensor_split([train.sets.layout.total])
    return _prepare(model, train, held_out, (own, others if learn_from_both else None))


def _prepare(
    model: ChoiceModel, train: Choices, held_out: Choices, scores: tuple[Tensor | None, Tensor | None]
) -> tuple[Choices, Choices]:
    if model.relative is None and model.trees is None:
        return train, held_out
    exact = copy.deepcopy(model).double()
    return (
        Choices(model.prepare(train.sets, scores[0]), train.subsets),
        Choices(exact.prepare(held_out.sets, scores[1]), held_out.subsets),
    )

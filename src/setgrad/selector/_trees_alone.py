"""Trees without the rest of F: used where training on top of them gained nothing on the validation sets.

Nothing then depends on the sets that F was trained on but the trees, and every set has a score from trees that have not
seen it. So all sets tell how many items to choose, not the validation sets alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from setgrad.selector._examples import Examples
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import resolved
from setgrad.selector._partial_validation import score_sets, sets_to_validate
from setgrad.selector._prepared import Folds
from setgrad.selector._tables import PARTIAL_LOSSES
from setgrad.sets import Choices, Sets, subset_sizes

# Standard errors by which training must raise the validation score. The best of many epochs is above the trees by
# chance: on generated shop tables of 240 sets such weights lost up to two points in test.
_CLEAR = 2.0


def drop_useless_training(
    model: ChoiceModel, before: dict[str, Tensor], validation: Choices, seed: int
) -> float | None:
    """Load the weights from before training, if those after it are not clearly better, and return their score.

    Args:
        model: The trained model, in evaluation mode.
        before: Its weights before training, with which F is the score of the trees.
        validation: The validation sets, prepared.
        seed: Seed of the validation.

    Returns:
        The validation score of the weights from before; None if those after training stay.
    """
    watched, loss = sets_to_validate(validation, 0, seed), PARTIAL_LOSSES[resolved(model.config.options.loss)]
    sizes, after = subset_sizes(watched.subsets), copy.deepcopy(model.state_dict())
    trained, _ = score_sets(model, watched, sizes, loss, seed)
    model.load_state_dict(before)
    alone, _ = score_sets(model, watched, sizes, loss, seed)
    gain = (trained - alone).double()
    error = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    if float(gain.mean()) <= _CLEAR * error:
        return float(alone.mean())
    model.load_state_dict(after)
    return None


@torch.no_grad()
def all_sets_out_of_fold(model: ChoiceModel, train: Examples, validation: Choices, folds: Folds) -> Choices:
    """Return the validation sets and the training sets, each scored by trees that have not seen it, in float64.

    Args:
        model: The model.
        train: The training sets as they were passed.
        validation: The validation sets, prepared.
        folds: The folds of the sets.
    """
    sets, subsets = train.choices
    prepared = copy.deepcopy(model).double().prepare(sets, folds.train[sets.layout.ids])
    return Choices(Sets.cat([validation.sets, prepared]), Sets.cat([validation.subsets, subsets]))

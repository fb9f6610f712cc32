"""The data of a fit: sample weights, and the split into training and validation sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import CombinatorialSolver
from setgrad.errors import DataError, OptionError, ShapeError, parameter
from setgrad.selector._batch_constraint import BatchConstraint, split_constraint
from setgrad.selector._choice_gradient import ChoiceGradient
from setgrad.selector._examples import AbstractExamples, Examples
from setgrad.selector._options import SelectorOptions
from setgrad.selector._processes import ALONE, Processes
from setgrad.selector.constraints import AnyConstraint, Constraint
from setgrad.sets import Choices, Sets
from setgrad.sets._sets import as_tensor


@final
@dataclass(frozen=True, eq=False)
class TrainingData:
    """The training and the validation sets.

    Attributes:
        train: The training sets.
        validation: The validation sets.
        constraints: The constraints on both; None without one.
        validation_indices: Indices of the validation sets among the sets passed to fit; None if they are separate.
        gradient: How training under the constraints is differentiated.
        processes: The processes that fit together.
    """

    train: AbstractExamples
    validation: Choices
    constraints: tuple[BatchConstraint, BatchConstraint] | None
    validation_indices: np.ndarray | None
    gradient: ChoiceGradient
    processes: Processes = ALONE

    def validation_name(self, index: int) -> str:
        """Return the name of a validation set for messages."""
        return f"validation set {index}" if self.validation_indices is None else f"set {self.validation_indices[index]}"


def prepare_data(
    sets: Any,
    subsets: Any,
    validation: Any,
    sample_weight: Any,
    constraint: AnyConstraint | None,
    gradient: ChoiceGradient,
    options: SelectorOptions,
    seed: int,
) -> TrainingData:
    """Check the arguments of a fit and split off validation sets if there are none; see `SubsetSelector.fit`.

    Raises:
        DataError: If the data cannot be used.
        OptionError: If the constraints do not fit.
        ShapeError: If shapes do not fit together.
    """
    if constraint is not None and options.loss == "negatives":
        raise OptionError(
            f"a constraint has its own loss, which reads all items; leave out {parameter('loss')}={options.loss!r}"
        )
    choices = _detach(Choices.of(sets, subsets))
    weights = _item_weights(sample_weight, choices)
    separate, validation_constraint = _separate_validation(validation)
    if not choices.sets.layout.total:
        raise DataError("there is nothing to learn from: the training sets hold no items")
    if separate is None:
        train_indices, held_out = split_sets(choices.sets.layout.host_lengths, options.validation_fraction, seed)
        train, held_choices = (
            Choices(choices.sets.take(indices), choices.subsets.take(indices)) for indices in (train_indices, held_out)
        )
        weights = None if weights is None else choices.sets.with_values(weights).take(train_indices).values
    else:
        if not separate.sets.layout.total:
            raise DataError("the validation sets hold no items")
        if separate.sets.item_shape != choices.sets.item_shape:
            raise ShapeError(
                f"training items have shape {tuple(choices.sets.item_shape)}, "
                f"validation items {tuple(separate.sets.item_shape)}"
            )
        train, held_choices, train_indices, held_out = choices, separate, np.arange(len(choices)), None
    if weights is not None and not bool((weights > 0).any()):
        raise DataError(
            f"all sets with a positive {parameter('sample_weight')} were held out for validation, and none is left to "
            f"learn from; pass {parameter('validation')}, give more sets a weight, or another "
            f"{parameter('random_state')}"
        )
    if constraint is None:
        if validation_constraint is not None:
            raise OptionError(
                f"the validation sets have a constraint, but the training sets have none; pass "
                f"{parameter('constraint')} too"
            )
        return TrainingData(Examples(train, weights), held_choices, None, held_out, gradient)
    constraints = split_constraint(constraint, validation_constraint, choices, held_choices, train_indices, held_out)
    gradient.check(constraints[0], train)
    return TrainingData(Examples(train, weights), held_choices, constraints, held_out, gradient)


def describe_trivial(lengths: np.ndarray, counts: np.ndarray) -> str | None:
    """Return what to say about sets from which nothing, or everything, was chosen; None if there are others.

    Args:
        lengths: The sizes of the sets.
        counts: The sizes of the chosen subsets.
    """
    if not counts.any():
        return "nothing was chosen from any training set, so there is nothing to learn"
    if (counts == lengths).all():
        hint = (
            "; lists of 0 and 1 were read as indices, so pass booleans if they are masks" if max(lengths) <= 2 else ""
        )
        return f"everything was chosen from every training set, so there is nothing to learn{hint}"
    return None


def check_item_shape(sets: Sets, shape: tuple[int, ...]) -> Sets:
    """Return the sets, if their items have the shape of those in fitting.

    Raises:
        ShapeError: If they have another shape.
    """
    if sets.layout.total == 0:
        # Sets without any item may not know the shape of items.
        return sets.with_values(sets.values.new_zeros(0, *shape))
    if tuple(sets.item_shape) != shape:
        # An array (rows, d) is read as sets of single numbers.
        is_rows = len(shape) == 1 and not sets.item_shape and set(sets.layout.host_lengths.tolist()) == {shape[0]}
        hint = f"; if each row is an item, pass the set of each: {parameter('groups')}" if is_rows else ""
        raise ShapeError(
            f"the selector was fitted on items of shape {shape}, these have shape {tuple(sets.item_shape)}{hint}"
        )
    return sets


def _detach(choices: Choices) -> Choices:
    """Return the choices without the autograd graph of the items: fit does not train the network that computed them."""
    items = choices.sets.values.detach()
    # Tensors from inference mode cannot be used in training, but their copies can.
    return Choices(choices.sets.with_values(items.clone() if items.is_inference() else items), choices.subsets)


def _separate_validation(validation: Any) -> tuple[Choices | None, Any]:
    """Return the validation sets that were passed to fit, and their constraint; None if missing."""
    if validation is None:
        return None, None
    try:
        sets, subsets, *rest = validation
    except (TypeError, ValueError):
        rest = [None, None]
    if len(rest) > 1 or (rest and not isinstance(rest[0], Constraint | CombinatorialSolver | list | tuple)):
        raise ShapeError(
            f"{parameter('validation')} must be a pair (sets, subsets), rows (X, y, groups), or one of these with a "
            "constraint behind"
        )
    return _detach(Choices.of(sets, subsets)), rest[0] if rest else None


def split_sets(
    lengths: np.ndarray, fraction: float, seed: int, most_items: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the training and of the validation sets, from the sizes of all.

    Args:
        lengths: The sizes of the sets.
        fraction: The share of the sets to validate on.
        seed: The seed of the choice.
        most_items: The most items that validation sets have together, if there is more than one; None for no limit.

    Raises:
        DataError: If there are fewer than two sets with items.
    """
    # Sets without items teach and validate nothing, so they are left out.
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(lengths))
    if len(order) < 2:
        raise DataError(
            "fit needs at least 2 sets with items, one to learn from and one to validate on; or pass "
            f"{parameter('validation')}"
        )
    count = min(len(order) - 1, max(1, round(fraction * len(order))))
    if most_items is not None:
        count = max(1, min(count, int(np.searchsorted(np.cumsum(lengths[order]), most_items, side="right"))))
    return np.sort(order[count:]), np.sort(order[:count])


def _item_weights(sample_weight: Any, choices: Choices) -> Tensor | None:
    if sample_weight is None:
        return None
    name = parameter("sample_weight")
    try:
        weights = sample_weight.values if isinstance(sample_weight, Sets) else as_tensor(sample_weight)
        weights = weights.detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} must hold one number for each set or each item: {error}") from None
    layout = choices.sets.layout
    if weights.shape == (len(choices),):
        weights = torch.repeat_interleave(weights, torch.as_tensor(layout.host_lengths))
    elif weights.shape != (layout.total,):
        raise ShapeError(
            f"{name} has shape {tuple(weights.shape)}; give one number for each of the {len(choices)} sets or for each "
            f"of the {layout.total} items"
        )
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool((weights > 0).any()):
        raise DataError(f"{name} must be finite and not negative, with at least one positive number")
    largest = float(weights.max())
    return normalised_weights(weights, largest, float((weights / largest).mean())).to(choices.sets.device)


def normalised_weights(weights: Tensor, largest: float, mean: float) -> Tensor:
    """Return weights with a mean of 1, in float32.

    Only ratios count: the size of the weights would otherwise matter for clipped and for tiny gradients.

    Args:
        weights: The weights, in float64.
        largest: The largest weight.
        mean: The mean of the weights over the largest one.
    """
    # Rounded, so that the order in which weights were added up does not matter.
    return (weights / largest / float(np.float32(mean))).float()

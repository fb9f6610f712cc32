"""How training under a constraint is differentiated, and what the names in `fit(gradient=..., ...)` stand for."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import AIMLE, IMLE, CombinatorialSolver, Identity, Noise, NormProjection, SolverEstimator
from setgrad.errors import OptionError, ShapeError, parameter, unknown_name
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._choice_loss import ConstrainedLoss, FenchelYoungLoss, SelectedSubsetLoss, SolverLayers
from setgrad.selector.choice_losses import CHOICE_LOSSES, ChoiceLoss, FunctionLoss, HammingDistance
from setgrad.sets import Choices

FENCHEL_YOUNG = "fenchel-young"
# Sets and draws on which a loss is tried before training. The results tell losses apart in a checkpoint.
_TRIED_SETS, _TRIED_DRAWS = 16, 2


class ChoiceGradient(abc.ABC):
    """How training under a constraint is differentiated."""

    @abc.abstractmethod
    def loss(self, constraint: BatchConstraint, samples: int, seed: int) -> ConstrainedLoss:
        """Return the loss of a batch."""

    def check(self, constraint: BatchConstraint, choices: Choices) -> list[str]:
        """Try the loss on a few training sets, and return what tells it from other losses.

        Raises:
            OptionError: If the loss has no gradient.
            ShapeError: If the loss returns the wrong shape, or belongs to other sets.
        """
        return []

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that change in training."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027, most gradients have no state
        """Continue from the tensors that `state` returned."""


@final
@dataclass(frozen=True)
class FenchelYoungGradient(ChoiceGradient):
    """The gradient of the Fenchel-Young loss."""

    def loss(self, constraint: BatchConstraint, samples: int, seed: int) -> ConstrainedLoss:
        """Return the loss of a batch."""
        return FenchelYoungLoss(constraint, samples, seed)


# From a solver, noise, the number of draws and a generator to an estimator.
MakeEstimator = Callable[[CombinatorialSolver, Noise, int, torch.Generator], SolverEstimator]


@final
@dataclass(frozen=True, eq=False)
class EstimatorGradient(ChoiceGradient, SolverLayers):
    """The gradient of a loss of the chosen subset, through an estimator of `setgrad.discrete`.

    Args:
        name: Name of the estimator.
        make: Makes the estimator.
        choice_loss: The loss.
    """

    name: str
    make: MakeEstimator
    choice_loss: ChoiceLoss
    # Shared by the estimators of all calls, because AIMLE adapts its steps in training.
    _buffers: dict[str, Tensor] = field(default_factory=dict, init=False)

    def loss(self, constraint: BatchConstraint, samples: int, seed: int) -> ConstrainedLoss:
        """Return the loss of a batch."""
        return SelectedSubsetLoss(constraint, samples, seed, self, self.choice_loss)

    def layer(
        self, solver: CombinatorialSolver, noise: Noise, samples: int, generator: torch.Generator
    ) -> SolverEstimator:
        """Return the estimator, on the device of the generator."""
        layer = self.make(solver, noise, samples, generator).to(generator.device)
        for name, buffer in list(layer.named_buffers()):
            setattr(layer, name, self._buffers.setdefault(name, buffer))
        return layer

    def check(self, constraint: BatchConstraint, choices: Choices) -> list[str]:
        """Try the loss on the first sets, at fixed random scores."""
        name, sizes = parameter("choice_loss"), choices.sets.layout.host_lengths
        if not _fits(self.choice_loss.sizes, constraint.indices, sizes):
            raise ShapeError(
                f"the numbers of {name} do not fit the sets; give one number for each item of each set that is passed "
                "to fit"
            )
        places = np.flatnonzero(sizes)[:_TRIED_SETS]
        subsets = choices.subsets.take(places)
        scores = torch.randn(subsets.layout.total, generator=torch.Generator().manual_seed(0)).to(subsets.device)
        # A copy, so that the state of this one does not change.
        trial = EstimatorGradient(self.name, self.make, self.choice_loss).loss(
            constraint.take(places), _TRIED_DRAWS, seed=0
        )
        losses: list[float] = []
        for _, value in trial.values(scores.requires_grad_(), subsets):
            if not value.requires_grad:
                raise OptionError(
                    f"{name} has no gradient; compute it from the choice by operations of torch that have one"
                )
            losses += value.tolist()
        return [self.name, *(f"{loss:.4g}" for loss in losses)]

    def state(self) -> dict[str, Tensor]:
        """Return the buffers of the estimator."""
        return dict(self._buffers)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from these buffers."""
        self._buffers.update(tensors)


# Estimators by name. The scale of the scores does not change the choice: Identity projects it away, and the steps of
# the others are relative to it, so that the scale of the loss does not matter to them. Steps to both sides solve twice
# as many problems and did not help.
ESTIMATORS: dict[str, MakeEstimator] = {
    "identity": lambda solver, noise, samples, source: Identity(solver, projection=NormProjection()),
    "imle": lambda solver, noise, samples, source: IMLE(
        solver, noise=noise, samples=samples, lam=0.3, relative=True, generator=source
    ),
    "aimle": lambda solver, noise, samples, source: AIMLE(
        solver, noise=noise, samples=samples, central=False, generator=source
    ),
}
GRADIENTS = (FENCHEL_YOUNG, *ESTIMATORS)


def make_gradient(gradient: str, choice_loss: Any, *, constrained: bool) -> ChoiceGradient:
    """Return the gradient that the arguments of fit name.

    Args:
        gradient: One of `GRADIENTS`.
        choice_loss: The name of a loss, a `ChoiceLoss`, a function of chosen and target, or None.
        constrained: Whether there is a constraint.

    Raises:
        OptionError: If the arguments are unknown or do not go together.
    """
    if gradient not in GRADIENTS:
        raise unknown_name("gradient", gradient, GRADIENTS)
    name, loss_name = parameter("gradient"), parameter("choice_loss")
    if not constrained and (gradient != FENCHEL_YOUNG or choice_loss is not None):
        raise OptionError(
            f"{name} and {loss_name} are about choices under a constraint; pass {parameter('constraint')} too, such as "
            "SizeRange(), which allows all subsets"
        )
    if gradient == FENCHEL_YOUNG:
        if choice_loss is not None:
            raise OptionError(
                f"{name}={gradient!r} is a loss by itself; leave out {loss_name}, or use {name}="
                f"{' or '.join(map(repr, ESTIMATORS))}"
            )
        return FenchelYoungGradient()
    return EstimatorGradient(gradient, ESTIMATORS[gradient], _as_choice_loss(choice_loss))


def _as_choice_loss(choice_loss: Any) -> ChoiceLoss:
    if choice_loss is None:
        return HammingDistance()
    if isinstance(choice_loss, ChoiceLoss):
        return choice_loss
    if callable(choice_loss):
        return FunctionLoss(choice_loss)
    if isinstance(choice_loss, str) and choice_loss in CHOICE_LOSSES:
        return CHOICE_LOSSES[choice_loss]
    raise unknown_name("choice_loss", choice_loss, [*CHOICE_LOSSES, "a function of chosen and target"])


def _fits(expected: np.ndarray | None, indices: np.ndarray, sizes: np.ndarray) -> bool:
    """Return whether a loss has as many numbers for each set as the set has items."""
    if expected is None or not len(indices):
        return True
    return int(indices.max()) < len(expected) and np.array_equal(expected[indices], sizes)

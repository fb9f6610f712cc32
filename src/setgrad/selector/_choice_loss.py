"""The losses of training under a constraint.

The Fenchel-Young loss compares the best feasible subsets under noise with the example. For any other loss of the chosen
subset itself, an estimator of `setgrad.discrete` gives the solver of the constraint a gradient.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import (
    Antithetic,
    CombinatorialSolver,
    FenchelYoung,
    GradientEstimator,
    Logistic,
    Noise,
    SolverResult,
)
from setgrad.errors import ShapeError, parameter
from setgrad.inference import SubsetLoss
from setgrad.selector._batch_constraint import PADDING, BatchConstraint, SolverCall
from setgrad.selector.choice_losses import ChoiceLoss
from setgrad.sets import Sets, segment_mean


class ConstrainedLoss(SubsetLoss):
    """A loss under a constraint; every set has the same weight.

    Args:
        constraint: The constraint on the sets of the batch.
        samples: Draws of the noise for each set.
        seed: Seed of the draws. Every call draws the same, so that all members learn from the same noise.
    """

    def __init__(self, constraint: BatchConstraint, samples: int, seed: int) -> None:
        self.constraint, self.samples, self.seed = constraint, samples, seed

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Return None: the loss reads the logits of all items."""
        return None

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the mean over the sets; a set has the mean weight of its items."""
        set_weights = None if weights is None else segment_mean(weights, subsets)
        # Instances with NaN have no solution and no loss; this term passes NaN on, so that training stops.
        total = 0 * logits.sum()
        for call, value in self.values(logits, subsets):
            if set_weights is not None:
                value = value * set_weights[call.sets.layout.to_device(call.places)]
            total = total + value.sum()
        return total / max(1, int((subsets.layout.host_lengths > 0).sum()))

    def values(self, logits: Tensor, subsets: Sets) -> Iterator[tuple[SolverCall, Tensor]]:
        """Yield the calls of solvers and the losses of their sets."""
        target = subsets.values.to(logits.dtype)
        generator = torch.Generator(logits.device).manual_seed(self.seed)
        for call in self.constraint.calls(subsets):
            padded, _ = call.sets.with_values(target[call.items]).padded()
            yield call, self.call_values(call, logits, padded, generator)

    @abc.abstractmethod
    def call_values(self, call: SolverCall, logits: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of each set of a call.

        Args:
            call: The call.
            logits: Logits of all items of the batch.
            target: The subsets of the examples, padded, `(count, size)`.
            generator: Source of the noise.
        """


@final
class FenchelYoungLoss(ConstrainedLoss):
    """The Fenchel-Young loss of the best feasible subset under logistic noise: the mean over the items of a set.

    It is convex in the logits. Its gradient is the share of draws in which an item is in the best feasible subset,
    minus 1 if the item was chosen. If all subsets are feasible that share is sigmoid(logit), and the loss is the
    cross-entropy of `AllItems` in expectation.
    """

    def call_values(self, call: SolverCall, logits: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """Return the perturbed loss over the number of items."""
        loss = FenchelYoung(call.solver, noise=Antithetic(Logistic()), samples=self.samples, generator=generator)
        value: Tensor = loss(call.pad(logits[None])[0], target) / call.sets.lengths
        return value


class SolverLayers(abc.ABC):
    """Makes the estimator of the gradient of a solver."""

    @abc.abstractmethod
    def layer(
        self, solver: CombinatorialSolver, noise: Noise, samples: int, generator: torch.Generator
    ) -> GradientEstimator:
        """Return the estimator, which may leave out the noise."""


@final
class SelectedSubsetLoss(ConstrainedLoss):
    """A loss of the best feasible subset itself, through an estimator of the gradient of its solver.

    Args:
        constraint: The constraint on the sets of the batch.
        samples: Draws of the noise for each set, for estimators that have noise.
        seed: Seed of the draws.
        layers: Makes the estimators.
        choice_loss: The loss.
    """

    def __init__(
        self, constraint: BatchConstraint, samples: int, seed: int, layers: SolverLayers, choice_loss: ChoiceLoss
    ) -> None:
        super().__init__(constraint, samples, seed)
        self.layers, self.choice_loss = layers, choice_loss

    def call_values(self, call: SolverCall, logits: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean loss over the draws.

        Raises:
            ShapeError: If the loss does not return one number for each choice.
        """
        theta, inside = call.sets.with_values(logits[call.items]).padded()
        solver = _PaddedSolver(call.solver, inside, on_failure="mask")
        layer = self.layers.layer(solver, _PaddedNoise(inside), self.samples, generator)
        # No gradient for the padding, whatever the loss does with it.
        chosen = layer(theta) * inside
        draws = chosen if chosen.ndim > theta.ndim else chosen[None]
        rows = draws.flatten(0, 1)
        indices = np.tile(self.constraint.indices[call.places], len(draws))
        value = self.choice_loss(rows, target.repeat(len(draws), 1), indices)
        if not isinstance(value, Tensor) or value.shape != rows.shape[:1]:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise ShapeError(
                f"{parameter('choice_loss')} returned a result of {what} for choices of shape {tuple(rows.shape)}; it "
                f"must return one loss for each row, a tensor of shape {tuple(rows.shape[:1])}"
            )
        return value.reshape(draws.shape[:2]).mean(0)


@final
@dataclass(frozen=True, eq=False)
class _PaddedSolver(CombinatorialSolver):
    """A solver for scores whose padding is 0, so that it does not count in their norm. It maximises."""

    inner: CombinatorialSolver
    inside: Tensor

    def solve(self, theta: Tensor) -> SolverResult:
        return self.inner.maximise(torch.where(self.inside, theta, PADDING))


@final
@dataclass(frozen=True, eq=False)
class _PaddedNoise(Noise):
    """The noise of the Fenchel-Young loss, and 0 on the padding."""

    inside: Tensor

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        return Antithetic(Logistic()).draw(empty, generator) * self.inside

"""The trainable part of a selector: it standardises the features, binds F and infers logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import DataError
from setgrad.functions import BoundSetFunction, NoiseSource, SetFunction
from setgrad.functions.average import BoundAverage
from setgrad.selector._config import ModelConfig
from setgrad.selector._member import Member
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class InferenceResult:
    """Mean logits of the items over the members, and for each set whether the inference of every member converged."""

    logits: Tensor
    converged: Tensor


@final
class ChoiceModel(nn.Module):
    """A model that maps features to logits: the mean over independently trained members.

    Args:
        config: The configuration of the model.
        phi: An item encoder of the user, copied to each member; None to build the one that the options name.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, phi: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        # In float64, so that features with a small spread far from 0, such as times, keep their digits.
        self.register_buffer("mean", torch.zeros(config.item_shape, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(config.item_shape, dtype=torch.float64))
        # The phi of a user may be trained already, so every member starts with the same copy of it.
        self.members = nn.ModuleList([Member(config, copy.deepcopy(phi)) for _ in range(config.members)])

    def fit_scaler(self, sets: Sets) -> None:
        """Compute the mean and the standard deviation of each feature over the items of the training sets.

        Raises:
            DataError: If the values of a feature are too large.
        """
        reads_tokens = any(member.function.phi.reads_tokens for member in self.each())
        if not self.config.options.standardize or not sets.layout.total or reads_tokens:
            return
        values = sets.values.double()
        deviation = values.std(0, correction=0)
        if not bool(deviation.isfinite().all()):
            number = int((~deviation.isfinite()).flatten().nonzero()[0])
            raise DataError(
                f"the values of feature {number} (counted from 0) are so large that their standard deviation is not "
                "finite; rescale the feature, or take its logarithm"
            )
        # A constant feature, up to rounding, holds no information: it becomes 0 instead of amplified noise.
        constant = deviation <= 1e-13 * values.abs().amax(0).clamp(min=1e-300)
        # In the precision of the items, so that training and prediction subtract the same number.
        dtype = torch.promote_types(sets.dtype, self.dtype)
        self.mean.copy_(values.mean(0).to(dtype))
        self.deviation.copy_(torch.where(constant, torch.inf, deviation).to(dtype))

    def each(self) -> list[Member]:
        """Return the members."""
        return [member for member in self.members if isinstance(member, Member)]

    def standardised(self, sets: Sets) -> Sets:
        """Return the sets with standardised features, in the dtype of the weights."""
        items = sets.values.to(torch.promote_types(sets.dtype, self.dtype))
        items = (items - self.mean.to(items.dtype)) / self.deviation.to(items.dtype)
        return sets.with_values(items.to(self.dtype))

    def bind(self, sets: Sets) -> BoundAverage:
        """Return F for these sets: the mean of the functions of the members."""
        items = self.standardised(sets)
        return BoundAverage([member.function.bind(items) for member in self.each()])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and of all results."""
        return next(self.parameters()).dtype

    def infer(self, bound: BoundAverage, noise: NoiseSource, *, samples: int | None = None) -> InferenceResult:
        """Run the inference of every member on its own function, and return the mean of the logits."""
        results = [
            member.infer(self.config, part, noise, samples=samples)
            for member, part in zip(self.each(), bound.parts, strict=True)
        ]
        if len(results) == 1:
            return InferenceResult(results[0].logits, results[0].converged)
        logits = torch.stack([result.logits for result in results]).mean(0)
        return InferenceResult(logits, torch.stack([result.converged for result in results]).all(0))


@final
class LearnedSetFunction(SetFunction):
    """F of a fitted selector, for sets with raw features.

    Args:
        model: The model.
        exact_model: Returns the same model in double precision, for sets in double precision.
        check: Checks sets and returns them in the canonical form.
    """

    def __init__(
        self, model: ChoiceModel, exact_model: Callable[[], ChoiceModel], check: Callable[[Sets], Sets]
    ) -> None:
        self.model, self.exact_model, self.check = model, exact_model, check

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return F for these sets, on the device of the model."""
        sets = self.check(sets)
        model = self.exact_model() if sets.dtype == torch.float64 else self.model
        return model.bind(sets.to(model.mean.device))

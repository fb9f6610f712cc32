"""The trainable part of a selector: standardise the features, bind F, infer the logits; a mean over its members."""

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
from setgrad.selector._member import Member, ModelConfig
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Inferred:
    """Logits of the items, the mean over the members, and for each set whether all of them settled on it."""

    logits: Tensor
    settled: Tensor


@final
class ChoiceModel(nn.Module):
    """Features in, logits out: what members that were trained apart infer, on average."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, phi: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        # In float64, so that features with a small spread far from 0, such as times, keep their digits.
        self.register_buffer("mean", torch.zeros(config.item_shape, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(config.item_shape, dtype=torch.float64))
        # A phi of the user's own may have been trained before: every member begins with it as it is.
        self.members = nn.ModuleList([Member(config, copy.deepcopy(phi)) for _ in range(config.members)])

    def learn_features(self, sets: Sets) -> None:
        """Take mean and deviation of each feature from the items of the training sets."""
        tokens = any(member.function.phi.reads_tokens for member in self.each())
        if not self.config.standardize or not sets.layout.total or tokens:
            return
        values = sets.values.double()
        deviation = values.std(0, correction=0)
        if not bool(deviation.isfinite().all()):
            number = int((~deviation.isfinite()).flatten().nonzero()[0])
            raise DataError(
                f"the values of feature {number} (counted from 0) are so large that their spread cannot be computed; "
                "rescale it, or take its logarithm"
            )
        # A constant feature, up to rounding, says nothing: it becomes 0 rather than amplified noise.
        constant = deviation <= 1e-13 * values.abs().amax(0).clamp(min=1e-300)
        # As precise as the items are: training and prediction, in other types, then subtract the same number.
        kind = torch.promote_types(sets.dtype, self.dtype)
        self.mean.copy_(values.mean(0).to(kind))
        self.deviation.copy_(torch.where(constant, torch.inf, deviation).to(kind))

    def each(self) -> list[Member]:
        """The members."""
        return [member for member in self.members if isinstance(member, Member)]

    def standardised(self, sets: Sets) -> Sets:
        """The sets as members see them; they may come in any type of number."""
        items = sets.values.to(torch.promote_types(sets.dtype, self.dtype))
        items = (items - self.mean.to(items.dtype)) / self.deviation.to(items.dtype)
        return sets.with_values(items.to(self.dtype))

    def bind(self, sets: Sets) -> BoundAverage:
        """F for these sets: the mean of the members' functions."""
        items = self.standardised(sets)
        return BoundAverage([member.function.bind(items) for member in self.each()])

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, and of all results."""
        return next(self.parameters()).dtype

    def infer(self, bound: BoundAverage, noise: NoiseSource, *, samples: int | None = None) -> Inferred:
        """Let every member infer on its own function, and take the mean of the logits."""
        found = [
            member.infer(self.config, part, noise, samples=samples)
            for member, part in zip(self.each(), bound.parts, strict=True)
        ]
        if len(found) == 1:
            return Inferred(found[0].logits, found[0].converged)
        logits, settled = ([getattr(one, name) for one in found] for name in ("logits", "converged"))
        return Inferred(torch.stack(logits).mean(0), torch.stack(settled).all(0))


@final
class Learned(SetFunction):
    """F of a model, for sets as users have them.

    Args:
        model: The model as it was trained.
        precise: Gives the same in double precision, for sets that are.
        check: Refuses sets that the model was not made for.
    """

    def __init__(self, model: ChoiceModel, precise: Callable[[], ChoiceModel], check: Callable[[Sets], Sets]) -> None:
        self.model, self.precise, self.check = model, precise, check

    def bind(self, sets: Sets) -> BoundSetFunction:
        """On the device of the model."""
        sets = self.check(sets)
        model = self.precise() if sets.dtype == torch.float64 else self.model
        return model.bind(sets.to(model.mean.device))

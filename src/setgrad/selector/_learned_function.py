"""F of a fitted selector."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from setgrad.functions import BoundSetFunction, SetFunction
from setgrad.selector._model import ChoiceModel
from setgrad.sets import Sets


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

"""What is needed, beside the weights, to build a model again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

from torch import nn

from setgrad.inference import ConstantScale
from setgrad.inference.mean_field import MeanFieldSolver
from setgrad.inference.scales import SCALES, Scale
from setgrad.selector._options import SelectorOptions
from setgrad.selector._tables import SOLVERS

Value = TypeVar("Value")


@final
@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model.

    Attributes:
        options: The options, with every None that concerns the model replaced by the value in use.
        item_shape: Shape of an item.
        slots: Number of induced points of the attention; None for full attention.
    """

    options: SelectorOptions
    item_shape: tuple[int, ...]
    slots: int | None

    @property
    def method(self) -> str:
        """Name of the inference method."""
        return self.options.method

    @property
    def phi(self) -> str | None:
        """Name of the item encoder; None for a module of the user."""
        return None if isinstance(self.options.phi, nn.Module) else self.options.phi

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the hidden layers."""
        return tuple(self.options.hidden)

    @property
    def members(self) -> int:
        """Number of members."""
        return resolved(self.options.members)

    @property
    def relation(self) -> int:
        """Rank of the relation."""
        return resolved(self.options.relation)

    @property
    def estimator(self) -> str:
        """Name of the estimator."""
        return resolved(self.options.estimator)

    @property
    def steps(self) -> int:
        """Mean-field steps."""
        return resolved(self.options.steps)

    @cached_property
    def solver(self) -> MeanFieldSolver:
        """The solver of mean field."""
        return SOLVERS[self.method](self.steps)

    @cached_property
    def scale(self) -> Scale | None:
        """The scale of the logits."""
        scale = self.options.resolved_scale
        return SCALES[scale] if isinstance(scale, str) else None if scale is None else ConstantScale(float(scale))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelConfig:
        # Nothing in it changes, and a module that was passed as phi is not copied with every copy of the model.
        return self

    def with_options(self, **changes: Any) -> ModelConfig:
        """Return a copy with other options."""
        return replace(self, options=replace(self.options, **changes))


def resolved(value: Value | None) -> Value:
    """Return a value that is known after None was resolved."""
    assert value is not None
    return value

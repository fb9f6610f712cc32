"""Losses of a chosen subset itself, for `fit(constraint=..., gradient=..., choice_loss=...)`.

They get a choice of zeros and ones and are differentiated at it. What they return for fractions does not matter, but
their gradient does: `HammingDistance` and `JaccardDistance` have none where the choice is right, because gradients that
pass a solver unchanged would go on moving the scores there.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, ShapeError, parameter
from setgrad.sets import Sets


class ChoiceLoss(abc.ABC):
    """A loss of the subset that is chosen under a constraint, differentiable in the choice.

    A subclass needs `__call__`, and `sizes` if it holds numbers for sets or items.
    """

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the numbers belong to; None if the loss fits any sets."""
        return None

    @abc.abstractmethod
    def __call__(self, chosen: Tensor, target: Tensor, indices: np.ndarray) -> Tensor:
        """Return the loss of each row `(k,)`.

        Args:
            chosen: Zeros and ones `(k, n)`; gradients pass. Rows of sets with fewer than n items end with zeros, to
                which no gradient passes. A set may have several rows, one for each draw of the noise.
            target: The subsets of the examples, zeros and ones `(k, n)`.
            indices: The index of the set of each row, among the sets that were passed to fit.
        """


@final
@dataclass(frozen=True)
class HammingDistance(ChoiceLoss):
    """The number of wrong items.

    Examples:
        >>> HammingDistance()(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0]]), np.array([0]))
        tensor([2.])
    """

    def __call__(self, chosen: Tensor, target: Tensor, indices: np.ndarray) -> Tensor:
        """Return the sum of squared differences, which for zeros and ones is their number."""
        return (chosen - target).square().sum(-1)


@final
@dataclass(frozen=True)
class JaccardDistance(ChoiceLoss):
    """1 minus the Jaccard score; 0 if both subsets are empty.

    Examples:
        >>> JaccardDistance()(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]), np.array([0]))
        tensor([0.5000])
    """

    def __call__(self, chosen: Tensor, target: Tensor, indices: np.ndarray) -> Tensor:
        """Return the number of wrong items over the size of the union, both smooth in the choice."""
        both = (chosen * target).sum(-1)
        either = chosen.square().sum(-1) + target.sum(-1) - both
        return (chosen - target).square().sum(-1) / either.clamp(min=1)


@final
@dataclass(frozen=True, eq=False)
class Regret(ChoiceLoss):
    """How much less the chosen items are worth than those of the example: `<values, target - chosen>`.

    Args:
        values: The worth of each item: a `Sets` of numbers aligned with the sets of fit, or one list for each set.

    Raises:
        DataError: If a value is not finite.
        ShapeError: If there is not one number for each item.

    Examples:
        >>> loss = Regret([[1.0, 5.0, 3.0], [2.0, 2.0]])
        >>> loss(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]]), np.array([0]))
        tensor([4.])
    """

    values: Any

    def __post_init__(self) -> None:
        name, values = parameter("values"), self.values
        if not isinstance(values, Sets):
            parts = list(values) if isinstance(values, Iterable) else [values]
            if not all(isinstance(part, Iterable) for part in parts):
                raise ShapeError(f"{name} must be one list for each set, or a Sets aligned with the sets")
            values = Sets.from_list([torch.as_tensor(part, dtype=torch.get_default_dtype()) for part in parts])
        if values.values.ndim != 1:
            shape = tuple(values.values.shape[1:])
            raise ShapeError(f"{name} hold items of shape {shape}; give one number for each item")
        if not bool(values.values.isfinite().all()):
            raise DataError(f"{name} must be finite numbers")
        object.__setattr__(self, "values", values.with_values(values.values.detach()))

    @property
    def sizes(self) -> np.ndarray:
        """Number of values of each set."""
        return self.values.layout.host_lengths

    def __call__(self, chosen: Tensor, target: Tensor, indices: np.ndarray) -> Tensor:
        """Return the difference in worth."""
        # Each set once, because the rows of its draws share its values.
        sets, rows = np.unique(indices, return_inverse=True)
        padded, _ = self.values.take(sets).padded()
        values = padded.to(chosen)[torch.as_tensor(rows, device=chosen.device)]
        return (values * (target - chosen)).sum(-1)


@final
@dataclass(frozen=True, eq=False)
class FunctionLoss(ChoiceLoss):
    """A function of the choice and the target, both `(k, n)`, that returns `(k,)`.

    Examples:
        >>> missed = FunctionLoss(lambda chosen, target: (target * (1 - chosen)).sum(-1))
        >>> missed(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 1.0]]), np.array([0]))
        tensor([2.])
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, chosen: Tensor, target: Tensor, indices: np.ndarray) -> Tensor:
        """Call the function."""
        return self.function(chosen, target)


# Losses by name.
CHOICE_LOSSES: dict[str, ChoiceLoss] = {"hamming": HammingDistance(), "jaccard": JaccardDistance()}

"""F(S, V) = rho(sum of phi over S): a neural set function with gains that are linear in the size of the set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad._linear import linear
from setgrad.encoders import UMBCItems
from setgrad.errors import OptionError
from setgrad.functions._additive import AdditiveBoundFunction
from setgrad.functions._neural import (
    NeuralBoundFunction,
    apply_layers,
    make_item_encoder,
    make_perceptron,
    make_relation,
    weights_and_biases,
)
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.sets import Sets, segment_matmul


@final
class DeepSetFunction(nn.Module, SetFunction):
    """A neural set function rho(sum of phi over S), with an optional sum of item scores.

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: A preset ("context", "mlp", "paper", ...), an `ItemEncoder`, or any module from items `(total, ...)` to
            features `(total, dim)`.
        dim: Number of features that a preset returns; None for the preset's default.
        hidden: Units of the hidden layers of the perceptron rho; None for a default that depends on phi.
        skip: Whether to add a linear score of each chosen item. By default only if the features of phi already describe
            the item among the others: if phi is not `itemwise`.
        relation: Rank of a bilinear score of the item and the mean of V, which is added too; 0 for none.
        max_flips: Largest number of flipped subsets to evaluate at once. Beyond it, gains are computed in chunks, and
            again in the backward pass, which saves memory.

    Raises:
        OptionError: If phi is unknown, or a size is not positive.

    Examples:
        >>> import torch, setgrad as sg
        >>> F = DeepSetFunction(2, phi="mlp", dim=8, hidden=(16,))
        >>> sets = sg.Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0]]])
        >>> masks = torch.tensor([[True, False, True]])
        >>> F.value(sets, masks).shape, F.gains(sets, masks).shape
        (torch.Size([1, 2]), torch.Size([1, 3]))
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: str | nn.Module = "context",
        *,
        dim: int | None = None,
        hidden: Sequence[int] | None = None,
        skip: bool | None = None,
        relation: int = 0,
        max_flips: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        contextual = not self.phi.itemwise
        sizes = tuple(hidden) if hidden is not None else (512, 256) if contextual else (500, 500)
        self.rho = make_perceptron(self.phi.out_dim, sizes)
        use_skip = contextual if skip is None else skip
        self.skip = nn.Linear(self.phi.out_dim, 1) if use_skip else None
        self.relation = make_relation(in_dim, relation)
        self.max_flips = max_flips

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with the items encoded once for all subsets."""
        return BoundDeepSetFunction(self, sets, self.phi(sets))

    def bind_in(self, sets: Sets, context: Tensor) -> BoundDeepSetFunction:
        """Return the function bound to some items of sets of which phi, `UMBCItems`, gathered the context.

        Raises:
            OptionError: If phi does not gather a context, or items are compared with the mean of their set.
        """
        if not isinstance(self.phi, UMBCItems) or self.relation is not None:
            raise OptionError("a part of a set can only be read with phi='umbc' and relation=0; use these")
        return BoundDeepSetFunction(self, sets, self.phi.describe(sets, context))


@final
class BoundDeepSetFunction(NeuralBoundFunction, AdditiveBoundFunction):
    """`DeepSetFunction` bound to sets with encoded items."""

    item_attributes = ("features", "scores")

    def __init__(self, function: DeepSetFunction, sets: Sets, features: Tensor) -> None:
        self.sets, self.max_flips = sets, function.max_flips
        self.features = features
        # Sums of the features and of the scores over chosen items that are not among those of the sets.
        self.others: tuple[Tensor, Tensor] | None = None
        self.scores = None if function.skip is None else function.skip(self.features).squeeze(1)
        if function.relation is not None:
            related = function.relation(sets)
            self.scores = related if self.scores is None else self.scores + related
        # Weight of the first layer; None if the features have already been multiplied by it.
        self.first_weight: Tensor | None
        (self.first_weight, *self.weights), (self.first_bias, *self.biases) = weights_and_biases(function.rho)

    def pooled(self, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the features and of the scores."""
        scores = self.features.new_zeros(self.sets.layout.total) if self.scores is None else self.scores
        return (
            segment_matmul(masks, self.features, self.sets),
            segment_matmul(masks, scores[:, None], self.sets).squeeze(2),
        )

    def beside(self, pooled: Sequence[Tensor]) -> BoundDeepSetFunction:
        """Return the function with the sums of other items added to those of a subset."""
        other = copy.copy(self)
        features, scores = pooled
        other.others = (
            (features, scores) if self.others is None else (self.others[0] + features, self.others[1] + scores)
        )
        return other

    def value(self, masks: Tensor) -> Tensor:
        """Return F of each subset, `(m, b)`."""
        value = super().value(masks)
        return value if self.others is None else value + self.others[1]

    def prepared(self) -> BoundDeepSetFunction:
        """Return the function with the features multiplied by the first layer of rho."""
        other = copy.copy(self)
        (other.features,), other.first_weight = self._rows([self.features]), None
        if self.others is not None:
            (sums,), scores = self._rows([self.others[0]]), self.others[1]
            other.others = (sums, scores)
        return other

    def _rows(self, items: list[Tensor]) -> list[Tensor]:
        return items if self.first_weight is None else [linear(items[0], self.first_weight)]

    def _sums(self, shares: Tensor) -> list[Tensor]:
        """Return the pre-activations of the first layer of rho, `(m, b, h)`."""
        pooled = segment_matmul(shares, self.features, self.sets)
        if self.others is not None:
            pooled = pooled + self.others[0]
        if self.first_weight is None:
            return [pooled + self.first_bias]
        return [linear(pooled, self.first_weight, self.first_bias)]

    def _evaluate(self, sums: list[Tensor], base: Tensor | None, *, overwrite: bool) -> Tensor:
        return apply_layers(sums[0], self.weights, self.biases, overwrite=overwrite)

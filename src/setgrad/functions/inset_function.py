"""INSET: rho reads a pooled code of V beside the pooled code of S, so that S is valued among the available items.

From "Enhancing Neural Subset Selection: Integrating Background Information into Set Representations" (Xie et al.,
2024, arXiv:2402.03139), written independently of the published code. From the paper: two pooled codes from one phi, and
the sizes 256 and 500. Added here: gains by flips, sets of different sizes in one batch, relaxed masks.

The paper describes one perceptron that reads both codes. The authors' published code instead adds a second perceptron
that reads the items outside S: rho(sum over S) + rho'(sum over V without S). Both forms are available. In both, a flip
moves the input of each perceptron by one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.functions._neural import (
    NeuralBoundFunction,
    apply_layers,
    make_item_encoder,
    make_perceptron,
    weights_and_biases,
)
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.sets import Sets, segment_matmul, segment_sum


@final
class InsetFunction(nn.Module, SetFunction):
    """A neural set function rho(sum of phi over S, sum of phi over V).

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: A preset ("paper", "mlp", "context", ...), an `ItemEncoder`, or any module from items `(total, ...)` to
            features `(total, dim)`.
        dim: Number of features that a preset returns; None for the preset's default.
        hidden: Units of the hidden layers of the perceptron rho.
        complement: Whether to use the form of the published code: the sum of two perceptrons, one of the sum over S and
            one of the sum over the rest of V.
        max_flips: Largest number of flipped subsets to evaluate at once.

    Raises:
        OptionError: If phi is unknown, or a size is not positive.

    Examples:
        >>> import setgrad as sg
        >>> F = InsetFunction(2, dim=8, hidden=(16,))
        >>> sets = sg.Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0]]])
        >>> masks = torch.tensor([[True, False, True]])
        >>> F.value(sets, masks).shape, F.gains(sets, masks).shape
        (torch.Size([1, 2]), torch.Size([1, 3]))
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: str | nn.Module = "paper",
        *,
        dim: int | None = None,
        hidden: Sequence[int] = (500, 500),
        complement: bool = False,
        max_flips: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        self.rho = make_perceptron(self.phi.out_dim * (1 if complement else 2), hidden)
        self.rest = make_perceptron(self.phi.out_dim, hidden) if complement else None
        self.max_flips = max_flips

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with the items encoded and V pooled once."""
        return _BoundInsetFunction(self, sets)


@final
class _BoundInsetFunction(NeuralBoundFunction):
    """A sum of perceptrons. The first layer of perceptron p gives `bases[p]` plus `first_weights[p]` times the sum."""

    item_attributes, set_attributes = ("features",), ("bases",)

    def __init__(self, function: InsetFunction, sets: Sets) -> None:
        self.sets, self.max_flips = sets, function.max_flips
        self.features = function.phi(sets)
        pooled = segment_sum(self.features, sets)
        weights, biases = weights_and_biases(function.rho)
        if function.rest is None:
            of_subset, of_set = weights[0].chunk(2, 1)
            self.first_weights, self.bases = [of_subset], [linear(pooled, of_set, biases[0])]
            self.weights, self.biases = weights[1:], biases[1:]
        else:
            weights_rest, biases_rest = weights_and_biases(function.rest)
            # An item that joins S leaves the rest of V, hence the minus sign.
            self.first_weights = [weights[0], -weights_rest[0]]
            self.bases = [biases[0].expand(len(sets), -1), linear(pooled, weights_rest[0], biases_rest[0])]
            self.weights, self.biases = weights[1:] + weights_rest[1:], biases[1:] + biases_rest[1:]

    def _rows(self, items: list[Tensor]) -> list[Tensor]:
        return [linear(items[0], weight) for weight in self.first_weights]

    def _sums(self, shares: Tensor) -> list[Tensor]:
        """Return the pre-activations of the first layer of each perceptron, `(m, b, h)`."""
        pooled = segment_matmul(shares, self.features, self.sets)
        return [base + linear(pooled, weight) for base, weight in zip(self.bases, self.first_weights, strict=True)]

    def _evaluate(self, sums: list[Tensor], base: Tensor | None, *, overwrite: bool) -> Tensor:
        depth = len(self.weights) // len(sums)
        layers = [slice(p * depth, (p + 1) * depth) for p in range(len(sums))]
        values = [
            apply_layers(x, self.weights[part], self.biases[part], overwrite=overwrite)
            for x, part in zip(sums, layers, strict=True)
        ]
        return torch.stack(values).sum(0)

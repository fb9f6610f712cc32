"""The common part of neural set functions: the perceptron rho, and gains by flips, evaluated in chunks.

The gain of item i at a subset S needs F with i and F without it, and one of the two is F(S) itself. So F is evaluated
once on S and once for each item, with that item flipped. These functions read S through sums over its items, so a flip
adds or subtracts one row per sum: no mask of size |V| x |V| is ever built.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders._checkpoint import checkpointed
from setgrad.errors import OptionError
from setgrad.functions._linearise import linearise_gains, with_and_without
from setgrad.functions._set_function import BoundSetFunction
from setgrad.sets import segment_matmul


class NeuralBoundFunction(BoundSetFunction, abc.ABC):
    """A bound set function that reads a subset through sums of one row per item.

    A bound function holds the tensors that F depends on and no module. It then stays unchanged when the module is
    trained, and inference can differentiate with respect to every tensor.

    Attributes:
        row_attributes: Names of the attributes, with one row per item, that the rows of the sums are computed from.
        max_flips: Largest number of flipped subsets to evaluate at once. Beyond it, chunks of items are evaluated in
            turn and again in the backward pass, which saves memory.
        scores: A score per item, `(total,)`, added to the gain of the item; None for none.
        clamps_masks: Whether fractional masks below 0 count as 0.
    """

    relaxed = True
    row_attributes: tuple[str, ...] = ("features",)
    max_flips: int
    scores: Tensor | None = None
    clamps_masks: bool = False

    @abc.abstractmethod
    def _sums(self, shares: Tensor) -> list[Tensor]:
        """Return each kind of sum over every subset, `(m, b, h)`."""

    @abc.abstractmethod
    def _evaluate(self, sums: list[Tensor], base: Tensor | None, *, overwrite: bool) -> Tensor:
        """Return the values `(..., k)` of sums `(..., k, h)`.

        Args:
            sums: Each kind of sum.
            base: The result of `_base` for the sets of the `k` sums.
            overwrite: Whether the sums may be overwritten.
        """

    def _rows(self, items: list[Tensor]) -> list[Tensor]:
        """Return what each of `k` items adds to each sum, `(k, h)`, from their rows of the `row_attributes`."""
        return items

    def _base(self, ids: Tensor | None = None) -> Tensor | None:
        """Return what `_evaluate` needs beside the sums: a row for each set, or for the sets `ids`."""
        return None

    def value(self, masks: Tensor) -> Tensor:
        """Return F of each subset, `(m, b)`."""
        value = self._evaluate(self._sums(self._shares(masks)), self._base(), overwrite=True)
        if self.scores is None:
            return value
        return value + segment_matmul(masks, self.scores[:, None], self.sets).squeeze(2)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the gain of every item, or of the items `coordinates`, `(m, k)`."""
        items, ids, bits, scores = self._items(), self.sets.layout.ids, masks, self.scores
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            items = [x.index_select(0, coordinates) for x in items]
            ids, bits = ids[coordinates], masks[:, coordinates]
            scores = None if scores is None else scores.index_select(0, coordinates)
        sums = self._sums(self._shares(masks))
        values = self._evaluate(sums, self._base(), overwrite=False) if masks.dtype == torch.bool else None

        def compute(bits: Tensor, ids: Tensor, *items: Tensor) -> Tensor:
            pairs = list(zip([x.index_select(1, ids) for x in sums], self._rows(list(items)), strict=True))
            if values is None:
                shares = self._shares(bits)
                both = [with_and_without(x, row, shares) for x, row in pairs]
                with_item, without_item = self._evaluate(both, self._base(ids), overwrite=True)
                return with_item - without_item
            sign = 1 - 2 * bits.to(items[0].dtype)
            flipped = [torch.addcmul(x, sign[..., None], row) for x, row in pairs]
            return sign * (self._evaluate(flipped, self._base(ids), overwrite=True) - values.index_select(1, ids))

        gains = self._in_chunks(compute, bits, ids, *items)
        return gains if scores is None else gains + scores

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mean gains and their Jacobian by one reverse pass for all items."""
        base, rows = self._base(self.sets.layout.ids), self._rows(self._items())
        result = linearise_gains(
            lambda sums: self._evaluate(sums, base, overwrite=True),
            self._sums(self._shares(masks)),
            rows,
            shares=self._shares(masks),
            # A share that is clamped to 0 does not move.
            slopes=torch.where(masks >= 0, slopes, 0.0) if self.clamps_masks else slopes,
            sets=self.sets,
            max_flips=self.max_flips,
        )
        return result if result is None or self.scores is None else (result[0] + self.scores, result[1])

    def _items(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.row_attributes]

    def _shares(self, masks: Tensor) -> Tensor:
        return masks.clamp(min=0) if self.clamps_masks and masks.dtype != torch.bool else masks

    def _in_chunks(self, compute: Callable[..., Tensor], bits: Tensor, *items: Tensor) -> Tensor:
        """Return `compute(bits (m, k), *items (k, ...))`, `(m, k)`, with at most `max_flips` subsets at once."""
        step = max(1, self.max_flips // max(1, len(bits)))
        if bits.shape[1] <= step:
            return compute(bits, *items)
        chunks = zip(bits.split(step, 1), *(x.split(step) for x in items), strict=True)
        return torch.cat([checkpointed(compute, *chunk) for chunk in chunks], 1)


def make_perceptron(in_dim: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return a perceptron from `in_dim` numbers to one, with ReLU activations.

    Raises:
        OptionError: If there is no hidden layer, or one without units.
    """
    if not hidden or min(hidden) < 1:
        raise OptionError(f"hidden must list at least one layer of at least 1 unit, not {tuple(hidden)}")
    layers: list[nn.Module] = []
    for before, after in pairwise((in_dim, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))


def weights_and_biases(perceptron: nn.Sequential) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and the biases of all layers, first layer first."""
    layers = [layer for layer in perceptron if isinstance(layer, nn.Linear)]
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def apply_layers(first: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, overwrite: bool) -> Tensor:
    """Return the values `(...)` of a perceptron from the pre-activations `(..., h)` of its first layer.

    Args:
        first: Pre-activations of the first layer.
        weights: Weights of the layers after the first.
        biases: Biases of these layers.
        overwrite: Whether `first` may be overwritten, which saves memory.
    """
    # With one axis of rows, because a layer of more axes returns a view, and autograd copies a view to overwrite it.
    x = (first.relu_() if overwrite else torch.relu(first)).flatten(0, -2)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = linear(x, weight, bias).relu_()
    return linear(x, weights[-1], biases[-1]).reshape(first.shape[:-1])

"""The common parts of neural set functions: phi, the relation, the perceptron rho, and gains by flips.

The gain of item i at a subset S needs F with i and F without it, and one of the two is F(S) itself. So F is evaluated
once on S and once for each item, with that item flipped. These functions read S through sums over its items, so a flip
adds or subtracts one row per sum: no mask of size |V| x |V| is ever built.

The same sums give the Jacobian of the gains. The gain of item i is v(x + r_i) - v(x), where x is the sum of the rows of
the other items of S. It depends on their masks through x only. So one reverse pass through v gives the slope D_i of
every gain by x, and the derivative of the gain by the mask of item j is D_i . r_j, without another evaluation of v. By
the item's own mask it is 0.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from setgrad._linear import linear
from setgrad.encoders import ITEM_ENCODERS, ItemEncoder, ItemWise
from setgrad.encoders._base import flat_quantities, item_shape
from setgrad.encoders._checkpoint import checkpointed
from setgrad.errors import OptionError, unknown_name
from setgrad.functions._set_function import BoundSetFunction
from setgrad.sets import Sets, segment_matmul, segment_mean
from setgrad.sets._sets import pad

# With more entries in the Jacobians of all samples than this, differentiating the gains takes less memory.
_MAX_ENTRIES = 2**26
# The mean of a few dozen standardised items is about this much smaller than an item. A constant, not the root of the
# size, so that equal means count the same in sets of other sizes.
RELATION_GAIN = 8.0
# A step of Adam changes the score of an item by an amount that grows with the number of features. From twice this
# number on they are scaled down, or training diverges, as on images of 4,096 pixels.
_MANY_FEATURES = 384


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
        items = [getattr(self, name) for name in self.row_attributes]
        ids, bits, scores = self.sets.layout.ids, masks, self.scores
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            items = [x.index_select(0, coordinates) for x in items]
            ids, bits = ids[coordinates], masks[:, coordinates]
            scores = None if scores is None else scores.index_select(0, coordinates)
        sums = self._sums(self._shares(masks))
        values = self._evaluate(sums, self._base(), overwrite=False) if masks.dtype == torch.bool else None

        def compute(bits: Tensor, ids: Tensor, *items: Tensor) -> Tensor:
            pairs = list(zip(sums, self._rows(list(items)), strict=True))
            if values is None:
                shares = self._shares(bits)
                both = [with_and_without(x.index_select(1, ids), row, shares) for x, row in pairs]
                with_item, without_item = self._evaluate(both, self._base(ids), overwrite=True)
                return with_item - without_item
            sign = 1 - 2 * bits.to(items[0].dtype)
            flipped = [_flip(x, row, sign, None if is_even else ids) for x, row in pairs]
            return sign * (self._evaluate(flipped, self._base(ids), overwrite=True) - values.index_select(1, ids))

        step = max(1, self.max_flips // max(1, len(bits)))
        is_even = coordinates is None and self.sets.layout.uniform and bits.shape[1] <= step
        if bits.shape[1] <= step:
            gains = compute(bits, ids, *items)
        else:
            chunks = zip(bits.split(step, 1), *(x.split(step) for x in (ids, *items)), strict=True)
            gains = torch.cat([checkpointed(compute, *chunk) for chunk in chunks], 1)
        return gains if scores is None else gains + scores

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mean gains and their Jacobian by one reverse pass for all items."""
        base, shares = self._base(self.sets.layout.ids), self._shares(masks)
        result = linearise_gains(
            lambda sums: self._evaluate(sums, base, overwrite=True),
            self._sums(shares),
            self._rows([getattr(self, name) for name in self.row_attributes]),
            shares=shares,
            # A share that is clamped to 0 does not move.
            slopes=torch.where(masks >= 0, slopes, 0.0) if self.clamps_masks else slopes,
            sets=self.sets,
            max_flips=self.max_flips,
        )
        return result if result is None or self.scores is None else (result[0] + self.scores, result[1])

    def _shares(self, masks: Tensor) -> Tensor:
        return masks.clamp(min=0) if self.clamps_masks and masks.dtype != torch.bool else masks


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


def start_at_zero(function: nn.Module) -> None:
    """Set the last layers of a neural set function to 0, so that its value and gains are 0 before training."""
    for name, module in function.named_children():
        last = module[-1] if isinstance(module, nn.Sequential) else module
        if name != "phi" and isinstance(last, nn.Linear):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)


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
        x = linear(x, weight, bias, relu=True)
    return linear(x, weights[-1], biases[-1]).reshape(first.shape[:-1])


def _flip(sums: Tensor, rows: Tensor, sign: Tensor, ids: Tensor | None) -> Tensor:
    """Return sums with the row of one item added or removed, `(m, k, h)`.

    Args:
        sums: The sum over each subset, `(m, b, h)`.
        rows: The rows of the items, `(k, h)`.
        sign: 1 for an item that is added, -1 for one that is removed, `(m, k)`.
        ids: The set of each item; None if `k / b` items in order belong to each, so that no sum need be repeated.
    """
    if ids is not None:
        return torch.addcmul(sums.index_select(1, ids), sign[..., None], rows)
    shape = (sums.shape[1], -1)
    return torch.addcmul(sums[:, :, None], sign.unflatten(1, shape)[..., None], rows.unflatten(0, shape)).flatten(1, 2)


def with_and_without(sums: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Return sums with the item's row fully added and fully removed, `(2, m, k, h)`.

    Both are in one tensor, so that one sequence of kernels evaluates both.

    Args:
        sums: One sum for each item, `(m, k, h)`.
        rows: The rows of the items, `(k, h)`.
        shares: The share of its row that each sum includes now, `(m, k)`.
    """
    shares = shares.to(rows.dtype)
    return torch.addcmul(sums, torch.stack([1 - shares, -shares])[..., None], rows)


def linearise_gains(
    value: Callable[[list[Tensor]], Tensor],
    sums: list[Tensor],
    rows: list[Tensor],
    *,
    shares: Tensor,
    slopes: Tensor,
    sets: Sets,
    max_flips: int,
) -> tuple[Tensor, Tensor] | None:
    """Return mean gains `(total,)` and their Jacobian `(b, n, n)`, for `BoundSetFunction.linearisation`.

    Args:
        value: The function v, from a list of sums `(2, m, total, h)`, which it may overwrite, to `(2, m, total)`.
        sums: Each kind of sum over S, `(m, b, h)`, with all items.
        rows: What an item adds to each kind of sum, `(total, h)`.
        shares: How much of each item is in S, `(m, total)`.
        slopes: Derivative of the shares by the numbers that the Jacobian is for, `(m, total)`.
        sets: The sets.
        max_flips: Largest number of flipped subsets to evaluate at once.

    Returns:
        Gains and Jacobian; None if the Jacobians would be too large.
    """
    layout, m = sets.layout, len(shares)
    if not layout.total or len(layout) * m * layout.longest**2 > _MAX_ENTRIES:
        return None
    step, keep_graph = max(1, max_flips // layout.total), torch.is_grad_enabled()
    gains, jacobian = shares.new_zeros(layout.total), shares.new_zeros(len(layout), layout.longest, layout.longest)
    padded_rows = [pad(row, sets).mT for row in rows]
    for start in range(0, m, step):
        chunk = slice(start, start + step)
        with torch.enable_grad():
            item_sums = [x[chunk].index_select(1, layout.ids).requires_grad_() for x in sums]
            values = value([with_and_without(x, row, shares[chunk]) for x, row in zip(item_sums, rows, strict=True)])
            difference = values[0] - values[1]
            by_sums = torch.autograd.grad(difference.sum(), item_sums, retain_graph=keep_graph)
        gains = gains + (difference if keep_graph else difference.detach()).sum(0)
        with torch.no_grad():
            by_numbers = pad(slopes[chunk].T, sets).movedim(2, 0)[..., None, :]
            for by_sum, row in zip(by_sums, padded_rows, strict=True):
                padded = pad(by_sum.transpose(0, 1), sets).movedim(2, 0)
                jacobian = jacobian + (torch.matmul(padded, row) * by_numbers).sum(0)
    jacobian.diagonal(dim1=-2, dim2=-1).zero_()
    return gains / m, jacobian / m


def make_item_encoder(in_dim: int | Sequence[int], phi: str | nn.Module, dim: int | None = None) -> ItemEncoder:
    """Return the item encoder for a preset, an encoder, or a module that works on single items.

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: The name of a preset in `setgrad.encoders.ITEM_ENCODERS`, an `ItemEncoder`, or any other module.
        dim: Number of features that a preset returns; None for the preset's default.

    Raises:
        OptionError: If there is no preset of that name.
    """
    if isinstance(phi, ItemEncoder):
        return phi
    if isinstance(phi, nn.Module):
        return ItemWise(phi, in_dim)
    if phi not in ITEM_ENCODERS:
        raise unknown_name("phi", phi, ITEM_ENCODERS)
    encoder = ITEM_ENCODERS[phi]
    return encoder(in_dim) if dim is None else encoder(in_dim, dim)


@final
class Relation(nn.Module):
    """A score <P x, Q m> of every item x and the mean m of its set. A new relation returns 0.

    It learns from few sets what "unlike the others" or "complements the others" means, for which attention needs many.
    With thousands of training sets, attention alone was slightly better.

    Args:
        in_dim: Number of features, or shape, of an item.
        rank: Number of rows of P and Q.

    Raises:
        OptionError: If the rank is below 1.

    Examples:
        >>> relation = Relation(2, rank=4)
        >>> relation(Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], []])).tolist()
        [0.0, 0.0]
    """

    def __init__(self, in_dim: int | Sequence[int], rank: int = 64) -> None:
        super().__init__()
        if rank < 1:
            raise OptionError(f"the rank of a relation must be at least 1, not {rank}; leave the relation out instead")
        self.shape = item_shape(in_dim)
        count = math.prod(self.shape)
        self.items = nn.Linear(count, rank, bias=False)
        self.means = nn.Linear(count, rank, bias=False)
        nn.init.zeros_(self.means.weight)
        self.unit = relation_unit(count)
        with torch.no_grad():
            self.items.weight.div_(self.unit)

    def forward(self, sets: Sets) -> Tensor:
        """Return the score of every item, `(total,)`.

        Raises:
            DataError: If the items are not real numbers.
            ShapeError: If the items do not have the shape `in_dim`.
        """
        items = flat_quantities(sets, self.shape, self.items.weight)
        # The unit of both factors; multiplying the items by it would copy them.
        scale = RELATION_GAIN * self.unit**2 * self.items.out_features**-0.5
        means = self.means(segment_mean(items, sets)) * scale
        return (self.items(items) * means.index_select(0, sets.layout.ids)).sum(1)


def relation_unit(count: int) -> float:
    """Return what a relation multiplies its features by: a power of two, so that nothing is rounded."""
    return 2.0 ** -max(0, int(math.log2(max(1, count) / _MANY_FEATURES)))


def make_relation(in_dim: int | Sequence[int], rank: int) -> Relation | None:
    """Return a relation of this rank, or None if the rank is 0."""
    return Relation(in_dim, rank) if rank else None

"""F(S, V) = rho(sum of phi over S): a neural set function with gains linear in the size of the set.

The gain of item i at a subset S needs F with i and F without it, and one of the two is F(S) itself. So rho is
evaluated once on S and once for each item, with that item flipped. The first layer of rho is linear, so flipping adds
or subtracts one precomputed row: no mask of size |V| x |V| ever exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from setgrad.encoders import ITEM_ENCODERS, ContextItems, ItemEncoder, ItemWise
from setgrad.errors import OptionError, unknown_name
from setgrad.functions._protocol import BoundSetFunction, SetFunction
from setgrad.sets import Sets, segment_matmul


@final
class DeepSet(nn.Module, SetFunction):
    """A neural set function rho(sum of phi over S), with an optional modular term.

    `phi` is a preset ("context", "mlp", "paper"), an `ItemEncoder`, or any module from items `(total, ...)` to
    features `(total, width)`. `rho` is a perceptron with `hidden` units. `skip` adds a linear score of each chosen
    item; it defaults to true for contextual encoders, whose features already tell most of the story. `chunk` bounds
    how many flipped subsets are evaluated at once; beyond it, pieces are computed again in the backward pass.

    Example:
        >>> import setgrad as sg
        >>> F = DeepSet(2, phi="mlp", width=8, hidden=(16,))
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
        width: int | None = None,
        hidden: Sequence[int] | None = None,
        skip: bool | None = None,
        chunk: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, width)
        contextual = isinstance(self.phi, ContextItems)
        sizes = tuple(hidden) if hidden is not None else (256, 256) if contextual else (500, 500)
        if not sizes or min(sizes) < 1:
            raise OptionError(f"hidden must name at least one layer of at least 1 unit, not {sizes}")
        self.first = nn.Linear(self.phi.out_dim, sizes[0])
        parts: list[nn.Module] = []
        for before, after in pairwise(sizes):
            parts += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        self.rest = nn.Sequential(*parts, nn.Linear(sizes[-1], 1))
        use_skip = contextual if skip is None else skip
        self.skip = nn.Linear(self.phi.out_dim, 1) if use_skip else None
        self.chunk = chunk

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Encode the items once; all subsets of the sets share the features."""
        return _BoundDeepSet(self, sets)


@final
class _BoundDeepSet(BoundSetFunction):
    relaxed = True

    def __init__(self, function: DeepSet, sets: Sets) -> None:
        self.sets, self.function = sets, function
        self.features = function.phi(sets)
        self.scores = None if function.skip is None else function.skip(self.features).squeeze(1)

    def value(self, masks: Tensor) -> Tensor:
        value = self._tail(self._first(masks))
        if self.scores is not None:
            value = value + segment_matmul(masks, self.scores[:, None], self.sets).squeeze(2)
        return value

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        layout = self.sets.layout
        first = self._first(masks)
        features, ids, bits, scores = self.features, layout.ids, masks, self.scores
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            features, ids, bits = features.index_select(0, coordinates), ids[coordinates], masks[:, coordinates]
            scores = None if scores is None else scores.index_select(0, coordinates)
        step = max(1, self.function.chunk // max(1, len(masks)))
        compute = self._flipped if masks.dtype == torch.bool else self._forced
        if features.shape[0] <= step:
            gains = compute(first, features, ids, bits)
        else:
            pieces = zip(features.split(step), ids.split(step), bits.split(step, 1), strict=True)
            gains = torch.cat(
                [checkpoint(compute, first, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces],
                1,
            )
        return gains if scores is None else gains + scores

    def _first(self, masks: Tensor) -> Tensor:
        """Pre-activations of the first layer of rho, `(m, b, h)`."""
        return self.function.first(segment_matmul(masks, self.features, self.sets))

    def _tail(self, first: Tensor) -> Tensor:
        return self.function.rest(torch.relu(first)).squeeze(-1)

    def _flipped(self, first: Tensor, features: Tensor, ids: Tensor, bits: Tensor) -> Tensor:
        """Gains at boolean masks: F(S) once, and F with the item flipped."""
        rows = features @ self.function.first.weight.T
        sign = 1 - 2 * bits.to(rows.dtype)
        moved = torch.addcmul(first.index_select(1, ids), sign[..., None], rows)
        flipped = self.function.rest(moved.relu_()).squeeze(-1)
        return sign * (flipped - self._tail(first).index_select(1, ids))

    def _forced(self, first: Tensor, features: Tensor, ids: Tensor, bits: Tensor) -> Tensor:
        """Gains at relaxed masks: the item fully in minus fully out."""
        rows = features @ self.function.first.weight.T
        without = first.index_select(1, ids) - bits[..., None] * rows
        return self._tail(without + rows) - self._tail(without)


def make_item_encoder(in_dim: int | Sequence[int], phi: str | nn.Module, width: int | None = None) -> ItemEncoder:
    """Make phi from the name of a preset, an encoder, or any module that works on single items."""
    if isinstance(phi, ItemEncoder):
        return phi
    if isinstance(phi, nn.Module):
        return ItemWise(phi, in_dim)
    if phi not in ITEM_ENCODERS:
        raise unknown_name("phi", phi, ITEM_ENCODERS)
    encoder = ITEM_ENCODERS[phi]
    return encoder(in_dim) if width is None else encoder(in_dim, width)

"""F(S, V) = rho(sum of phi over S): a neural set function with gains linear in the size of the set.

The gain of item i at a subset S needs F with i and F without it, and one of the two is F(S) itself. So rho is
evaluated once on S and once for each item, with that item flipped. The first layer of rho is linear, so flipping adds
or subtracts one precomputed row: no mask of size |V| x |V| ever exists.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders import ITEM_ENCODERS, ContextItems, ItemEncoder, ItemWise
from setgrad.errors import unknown_name
from setgrad.functions._flips import finish, in_and_out, in_chunks, layers_of, make_rho
from setgrad.functions._linearise import linearise
from setgrad.functions._protocol import BoundSetFunction, SetFunction
from setgrad.functions.relation import make_relation
from setgrad.sets import Sets, segment_matmul


@final
class DeepSetFunction(nn.Module, SetFunction):
    """A neural set function rho(sum of phi over S), with an optional modular term.

    `phi` is a preset ("context", "mlp", "paper"), an `ItemEncoder`, or any module from items `(total, ...)` to
    features `(total, dim)`. `rho` is a perceptron with `hidden` units. `skip` adds a linear score of each chosen
    item; it defaults to true for contextual encoders, whose features already tell most of the story. `relation` adds a
    bilinear score of the item and the mean of V, of this rank; 0 for none. `chunk` bounds how many flipped subsets are
    evaluated at once; beyond it, pieces are computed again in the backward pass.

    Example:
        >>> import setgrad as sg
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
        chunk: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        contextual = isinstance(self.phi, ContextItems)
        sizes = tuple(hidden) if hidden is not None else (512, 256) if contextual else (500, 500)
        self.rho = make_rho(self.phi.out_dim, sizes)
        use_skip = contextual if skip is None else skip
        self.skip = nn.Linear(self.phi.out_dim, 1) if use_skip else None
        self.relation = make_relation(in_dim, relation)
        self.chunk = chunk

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Encode the items once; all subsets of the sets share the features."""
        return _BoundDeepSet(self, sets)


@final
class _BoundDeepSet(BoundSetFunction):
    relaxed = True
    of_items = ("features", "scores")

    def __init__(self, function: DeepSetFunction, sets: Sets) -> None:
        self.sets, self.chunk = sets, function.chunk
        self.features = function.phi(sets)
        self.scores = None if function.skip is None else function.skip(self.features).squeeze(1)
        if function.relation is not None:
            related = function.relation(sets)
            self.scores = related if self.scores is None else self.scores + related
        # None once the features have been moved through the first layer.
        self.move: Tensor | None
        (self.move, *self.weights), (self.base, *self.biases) = layers_of(function.rho)

    def value(self, masks: Tensor) -> Tensor:
        value = finish(self._first(masks), self.weights, self.biases, spare=True)
        if self.scores is not None:
            value = value + segment_matmul(masks, self.scores[:, None], self.sets).squeeze(2)
        return value

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        features, ids, bits, scores = self.features, self.sets.layout.ids, masks, self.scores
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            features, ids, bits = features.index_select(0, coordinates), ids[coordinates], masks[:, coordinates]
            scores = None if scores is None else scores.index_select(0, coordinates)
        first = self._first(masks)
        if masks.dtype != torch.bool:

            def forced(bits: Tensor, features: Tensor, ids: Tensor) -> Tensor:
                """The item fully in minus fully out."""
                within, without = self._rho([in_and_out(first.index_select(1, ids), self._rows(features), bits)])
                return within - without

            gains = in_chunks(forced, bits, features, ids, chunk=self.chunk)
        else:
            value = finish(first, self.weights, self.biases)

            def flipped(bits: Tensor, features: Tensor, ids: Tensor) -> Tensor:
                """F(S) once, and F with the item flipped."""
                sign = 1 - 2 * bits.to(features.dtype)
                moved = torch.addcmul(first.index_select(1, ids), sign[..., None], self._rows(features))
                return sign * (finish(moved, self.weights, self.biases, spare=True) - value.index_select(1, ids))

            gains = in_chunks(flipped, bits, features, ids, chunk=self.chunk)
        return gains if scores is None else gains + scores

    def linearised(self, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        first, rows = self._first(masks), self._rows(self.features)
        found = linearise(self._rho, [first], [rows], masks, moves, self.sets, chunk=self.chunk)
        return found if found is None or self.scores is None else (found[0] + self.scores, found[1])

    def prepared(self) -> _BoundDeepSet:
        other = copy.copy(self)
        other.features, other.move = self._rows(self.features), None
        return other

    def _first(self, masks: Tensor) -> Tensor:
        """Pre-activations of the first layer of rho, `(m, b, h)`."""
        pooled = segment_matmul(masks, self.features, self.sets)
        return pooled + self.base if self.move is None else linear(pooled, self.move, self.base)

    def _rows(self, features: Tensor) -> Tensor:
        """What each item adds to the pre-activations."""
        return features if self.move is None else linear(features, self.move)

    def _rho(self, firsts: list[Tensor]) -> Tensor:
        return finish(firsts[0], self.weights, self.biases, spare=True)


def make_item_encoder(in_dim: int | Sequence[int], phi: str | nn.Module, dim: int | None = None) -> ItemEncoder:
    """Make phi from the name of a preset, an encoder, or any module that works on single items."""
    if isinstance(phi, ItemEncoder):
        return phi
    if isinstance(phi, nn.Module):
        return ItemWise(phi, in_dim)
    if phi not in ITEM_ENCODERS:
        raise unknown_name("phi", phi, ITEM_ENCODERS)
    encoder = ITEM_ENCODERS[phi]
    return encoder(in_dim) if dim is None else encoder(in_dim, dim)

"""INSET: rho reads a pooled code of V beside the pooled code of S, so that S is valued among what was on offer.

From "Enhancing Neural Subset Selection: Integrating Background Information into Set Representations" (Xie et al.,
ICLR 2024, arXiv 2402.03139), written anew. Theirs: the two pooled codes from one phi, and the sizes 256 and 500. Ours:
gains by flips, sets of different sizes in one batch, relaxed masks.

The paper is told as joining the codes before rho. The authors' published code instead adds a second perceptron that
reads the items left behind: rho(sum over S) + rho'(sum over V without S). Both are here; in both, a flip moves the
input of each perceptron by one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.functions._flips import finish, in_and_out, in_chunks, layers_of, make_rho
from setgrad.functions._linearise import linearise
from setgrad.functions._protocol import BoundSetFunction, SetFunction
from setgrad.functions.deepset import make_item_encoder
from setgrad.sets import Sets, segment_matmul, segment_sum


@final
class InsetFunction(nn.Module, SetFunction):
    """A neural set function rho(sum of phi over S, sum of phi over V).

    `phi` is a preset ("paper", "mlp", "context"), an `ItemEncoder`, or any module from items `(total, ...)` to features
    `(total, dim)`. `rho` is a perceptron with `hidden` units. `complement=True` is the form of the authors' code: two
    perceptrons, one of the sum over S and one of the sum over the rest of V, added. `chunk` bounds how many flipped
    subsets are evaluated at once.

    Example:
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
        chunk: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        self.rho = make_rho(self.phi.out_dim * (1 if complement else 2), hidden)
        self.rest = make_rho(self.phi.out_dim, hidden) if complement else None
        self.chunk = chunk

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Encode the items once, and pool V."""
        return _BoundInset(self, sets)


@final
class _BoundInset(BoundSetFunction):
    """F as a sum over perceptrons; number p starts from `bases[p]` and moves by `moves[p]` times the sum over S."""

    relaxed = True
    of_items, of_sets = ("features",), ("bases",)

    def __init__(self, function: InsetFunction, sets: Sets) -> None:
        self.sets, self.chunk = sets, function.chunk
        self.features = function.phi(sets)
        pooled = segment_sum(self.features, sets)
        weights, biases = layers_of(function.rho)
        if function.rest is None:
            of_subset, of_set = weights[0].chunk(2, 1)
            self.moves, self.bases = [of_subset], [linear(pooled, of_set, biases[0])]
            self.weights, self.biases = weights[1:], biases[1:]
        else:
            weights_rest, biases_rest = layers_of(function.rest)
            # V without S is V minus S: what joins S leaves the rest.
            self.moves = [weights[0], -weights_rest[0]]
            self.bases = [biases[0].expand(len(sets), -1), linear(pooled, weights_rest[0], biases_rest[0])]
            self.weights, self.biases = weights[1:] + weights_rest[1:], biases[1:] + biases_rest[1:]

    def value(self, masks: Tensor) -> Tensor:
        return self._values(self._firsts(masks))

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        features, ids, bits = self.features, self.sets.layout.ids, masks
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            features, ids, bits = features.index_select(0, coordinates), ids[coordinates], masks[:, coordinates]
        firsts = self._firsts(masks)
        if masks.dtype != torch.bool:

            def forced(bits: Tensor, features: Tensor, ids: Tensor) -> Tensor:
                rows = self._rows(features)
                starts = [first.index_select(1, ids) for first in firsts]
                both = [in_and_out(start, row, bits) for start, row in zip(starts, rows, strict=True)]
                within, without = self._values(both)
                return within - without

            return in_chunks(forced, bits, features, ids, chunk=self.chunk)

        values = self._values(firsts)

        def flipped(bits: Tensor, features: Tensor, ids: Tensor) -> Tensor:
            sign = 1 - 2 * bits.to(features.dtype)
            rows = self._rows(features)
            starts = [first.index_select(1, ids) for first in firsts]
            moved = [torch.addcmul(start, sign[..., None], row) for start, row in zip(starts, rows, strict=True)]
            return sign * (self._values(moved) - values.index_select(1, ids))

        return in_chunks(flipped, bits, features, ids, chunk=self.chunk)

    def linearised(self, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        rows = self._rows(self.features)
        return linearise(self._values, self._firsts(masks), rows, masks, moves, self.sets, chunk=self.chunk)

    def _rows(self, features: Tensor) -> list[Tensor]:
        """What each item adds to the pre-activations of each perceptron."""
        return [linear(features, move) for move in self.moves]

    def _firsts(self, masks: Tensor) -> list[Tensor]:
        """Pre-activations of the first layer of each perceptron, `(m, b, h)`."""
        pooled = segment_matmul(masks, self.features, self.sets)
        return [base + linear(pooled, move) for base, move in zip(self.bases, self.moves, strict=True)]

    def _values(self, firsts: list[Tensor]) -> Tensor:
        depth = len(self.weights) // len(firsts)
        parts = [slice(p * depth, (p + 1) * depth) for p in range(len(firsts))]
        values = [finish(x, self.weights[part], self.biases[part]) for x, part in zip(firsts, parts, strict=True)]
        return torch.stack(values).sum(0)

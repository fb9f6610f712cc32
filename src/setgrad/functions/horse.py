"""HORSE: V is read by attention, piece by piece, and S is pooled by attention that has V's code in mind.

After "HORSE: Hierarchical Representation for Large-Scale Neural Subset Selection" (Xie et al., NeurIPS 2024). Its text
and code were not at hand, only the abstract, the reviews and summaries of it.

- Theirs, as told there: attention instead of sums; F knows which V the subset came from (their identity property); V
  is cut into chunks that are read independently and put together to the same result for every partition.
- Ours: everything below that level. Learned slots read V as softmax averages with log-normalisers, which merge
  exactly, and every item reads the slots. One query with several heads pools V; V's code turns it into the query that
  pools S. rho reads both codes with the logarithms of their normalisers, since an average alone forgets how many items
  it was made of. A learned null item is in every pool, so that nothing at all has a code too.

Numerator and denominator of a softmax are sums over S: an item that joins or leaves changes each by one term, so gains
need no tensor of size |V| x |V|. Taking a term away again would lose digits if it dwarfed the rest; scores are
therefore bent into [-5, 5].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders.attention import InducedAttention
from setgrad.errors import OptionError
from setgrad.functions._flips import finish, in_and_out, in_chunks, layers_of, make_rho
from setgrad.functions._linearise import linearise
from setgrad.functions._protocol import BoundSetFunction, SetFunction
from setgrad.functions.deepset import make_item_encoder
from setgrad.sets import Layout, Sets, segment_matmul, segment_sum, unpad

# Largest size of a score. The weights span a factor of e^10, and float32 keeps 5 digits when the heaviest item leaves.
_CAP = 5.0


@final
class HorseFunction(nn.Module, SetFunction):
    """A neural set function rho(attention over S given V, attention over V).

    `phi` is a preset ("paper", "mlp", "context"), an `ItemEncoder`, or any module from items `(total, ...)` to features
    `(total, dim)`. `slots` learned queries read V, `piece` items at a time (as many as fit by default); the result
    does not depend on it. `rho` is a perceptron with `hidden` units. `chunk` bounds how many flipped subsets are
    evaluated at once. Relaxed masks weigh the items; numbers below 0 count as 0.

    Example:
        >>> import setgrad as sg
        >>> F = HorseFunction(2, dim=8, hidden=(16,))
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
        slots: int = 16,
        heads: int = 4,
        piece: int | None = None,
        chunk: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        size = self.phi.out_dim
        if size % heads:
            raise OptionError(f"the dim of phi must be a multiple of heads, but {size} is not a multiple of {heads}")
        self.heads, self.chunk = heads, chunk
        self.read = InducedAttention(size, heads, slots, piece)
        self.norm = nn.LayerNorm(size)
        self.keys, self.values = nn.Linear(size, size), nn.Linear(size, size)
        self.query = nn.Parameter(torch.randn(size))
        self.turn = nn.Linear(size + heads, size)
        self.null = nn.Parameter(torch.zeros(size))
        self.rho = make_rho(2 * (size + heads), hidden)

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Read V, and weigh its items for the pool of S."""
        return _BoundHorse(self, sets)


@final
class _BoundHorse(BoundSetFunction):
    relaxed = True
    of_items, of_sets = ("weighted", "weights"), ("base",)

    def __init__(self, function: HorseFunction, sets: Sets) -> None:
        self.sets, self.chunk = sets, function.chunk
        items = function.norm(_in_context(function.phi(sets), sets, function.read))
        keys, values = function.keys(items), function.values(items)
        query = function.query.expand(len(sets), -1)
        weights = _weights(query, keys, sets, function.heads)
        code = _code(function.null + segment_sum(_spread(weights, values), sets), 1 + segment_sum(weights, sets))
        self.null = function.null
        self.weights = _weights(query + function.turn(code), keys, sets, function.heads)
        self.weighted = _spread(self.weights, values)
        layers, biases = layers_of(function.rho)
        self.first, of_set = layers[0].chunk(2, 1)
        self.base = linear(code, of_set, biases[0])
        self.layers, self.biases = layers[1:], biases[1:]

    def value(self, masks: Tensor) -> Tensor:
        return self._finish(*self._sums(masks), self.base)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        weighted, weights, ids, bits = self.weighted, self.weights, self.sets.layout.ids, masks
        if coordinates is not None:
            # index_select, here and below, because the backward pass of plain indexing sorts.
            weighted, weights = weighted.index_select(0, coordinates), weights.index_select(0, coordinates)
            ids, bits = ids[coordinates], masks[:, coordinates]
        top, bottom = self._sums(masks)
        if masks.dtype != torch.bool:

            def forced(bits: Tensor, weighted: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
                share, base = bits.clamp(min=0), self.base.index_select(0, ids)
                tops = in_and_out(top.index_select(1, ids), weighted, share)
                bottoms = in_and_out(bottom.index_select(1, ids), weights, share)
                within, without = self._finish(tops, bottoms, base)
                return within - without

            return in_chunks(forced, bits, weighted, weights, ids, chunk=self.chunk)

        value = self._finish(top, bottom, self.base)

        def flipped(bits: Tensor, weighted: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            sign = 1 - 2 * bits.to(weighted.dtype)
            moved = self._finish(
                torch.addcmul(top.index_select(1, ids), sign[..., None], weighted),
                torch.addcmul(bottom.index_select(1, ids), sign[..., None], weights),
                self.base.index_select(0, ids),
            )
            return sign * (moved - value.index_select(1, ids))

        return in_chunks(flipped, bits, weighted, weights, ids, chunk=self.chunk)

    def linearised(self, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        base, rows = self.base.index_select(0, self.sets.layout.ids), [self.weighted, self.weights]
        # Below 0 a share counts as 0, and does not move.
        shares, moves = masks.clamp(min=0), torch.where(masks >= 0, moves, 0.0)

        def value(sums: list[Tensor]) -> Tensor:
            top, bottom = sums
            return self._finish(top, bottom, base)

        return linearise(value, list(self._sums(masks)), rows, shares, moves, self.sets, chunk=self.chunk)

    def _sums(self, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Numerators `(m, b, dim)` and denominators `(m, b, heads)` of the averages over each subset."""
        # A negative share could bring a denominator to 0.
        shares = masks if masks.dtype == torch.bool else masks.clamp(min=0)
        top = self.null + segment_matmul(shares, self.weighted, self.sets)
        return top, 1 + segment_matmul(shares, self.weights, self.sets)

    def _finish(self, top: Tensor, bottom: Tensor, base: Tensor) -> Tensor:
        return finish(base + linear(_code(top, bottom), self.first), self.layers, self.biases)


def _in_context(x: Tensor, sets: Sets, block: InducedAttention) -> Tensor:
    """Let every item read its set."""
    # Empty sets have no items; without them every softmax has something to average.
    lengths = sets.layout.host_lengths
    filled = sets.layout if lengths.all() else Layout.from_lengths(lengths[lengths > 0], sets.device)
    if not filled.total:
        return x
    batch = Sets(x, filled)
    padded, mask = batch.padded()
    return unpad(block(padded, None if filled.uniform else mask), batch)


def _weights(query: Tensor, keys: Tensor, sets: Sets, heads: int) -> Tensor:
    """Exponentials of bent scores, `(total, heads)`; that of the null item is 1."""
    product = (query.index_select(0, sets.layout.ids) * keys).unflatten(-1, (heads, -1))
    scores = product.sum(-1) * product.shape[-1] ** -0.5
    return (_CAP * torch.tanh(scores / _CAP)).exp()


def _spread(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply the part of each head, `(..., dim)`, by its number, `(..., heads)`."""
    return (values.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]).flatten(-2)


def _code(top: Tensor, bottom: Tensor) -> Tensor:
    """Averages and the logarithms of their normalisers, `(..., dim + heads)`."""
    return torch.cat([_spread(1 / bottom, top), bottom.log()], -1)

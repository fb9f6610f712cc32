"""HORSE: V is read by attention, chunk by chunk, and S is pooled by attention with a query that depends on V.

After "HORSE: Hierarchical Representation for Large-Scale Neural Subset Selection" (Xie et al., NeurIPS 2024). Its text
and code were not available, only its abstract, reviews and summaries.

- From these: attention instead of sums; F depends on the V that the subset came from (the paper's identity property); V
  is split into chunks that are read independently, and every split gives the same result.
- Designed here: everything below that level. Learned slots read V as softmax averages with log-normalisers, which merge
  exactly, and every item reads the slots. One query with several heads pools V, and the code of V turns it into the
  query that pools S. rho reads both codes with the logarithms of their normalisers, because an average alone loses the
  number of its items. A learned null item is in every pool, so that an empty pool has a code too.

Numerator and denominator of a softmax are sums over S: an item that joins or leaves changes each by one term, so gains
need no tensor of size |V| x |V|. Subtracting a term loses digits if the term dominates the sum, so scores are bent into
[-5, 5].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders.attention import InducedAttention
from setgrad.errors import OptionError
from setgrad.functions._neural import (
    NeuralBoundFunction,
    apply_layers,
    make_item_encoder,
    make_perceptron,
    weights_and_biases,
)
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.sets import Layout, Sets, segment_matmul, segment_sum, unpad

# Largest absolute score. Weights then span a factor of e^10, and float32 keeps 5 digits when the heaviest item leaves.
_MAX_SCORE = 5.0


@final
class HorseFunction(nn.Module, SetFunction):
    """A neural set function rho(attention over S given V, attention over V).

    Relaxed masks weigh the items; masks below 0 count as 0.

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: A preset ("paper", "mlp", "context", ...), an `ItemEncoder`, or any module from items `(total, ...)` to
            features `(total, dim)`.
        dim: Number of features that a preset returns; None for the preset's default.
        hidden: Units of the hidden layers of the perceptron rho.
        slots: Number of learned queries that read V.
        heads: Number of attention heads.
        chunk_size: Number of items of V that are read at once; None for as many as fit. It does not change the result.
        max_flips: Largest number of flipped subsets to evaluate at once.

    Raises:
        OptionError: If phi is unknown, a size is not positive, or the number of features is not a multiple of `heads`.

    Examples:
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
        chunk_size: int | None = None,
        max_flips: int = 2**17,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        size = self.phi.out_dim
        if size % heads:
            raise OptionError(f"the dim of phi must be a multiple of heads, but {size} is not a multiple of {heads}")
        self.heads, self.max_flips = heads, max_flips
        self.read = InducedAttention(size, heads, slots, chunk_size)
        self.norm = nn.LayerNorm(size)
        self.keys, self.values = nn.Linear(size, size), nn.Linear(size, size)
        self.query = nn.Parameter(torch.randn(size))
        self.turn = nn.Linear(size + heads, size)
        self.null = nn.Parameter(torch.zeros(size))
        self.rho = make_perceptron(2 * (size + heads), hidden)

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with V pooled and its items weighed once."""
        return _BoundHorseFunction(self, sets)


@final
class _BoundHorseFunction(NeuralBoundFunction):
    # A negative share could make a denominator 0.
    clamps_masks = True
    row_attributes = item_attributes = ("weighted", "weights")
    set_attributes = ("base",)

    def __init__(self, function: HorseFunction, sets: Sets) -> None:
        self.sets, self.max_flips = sets, function.max_flips
        items = function.norm(_read_sets(function.phi(sets), sets, function.read))
        keys, values = function.keys(items), function.values(items)
        query = function.query.expand(len(sets), -1)
        weights = _attention_weights(query, keys, sets, function.heads)
        code = _code(
            function.null + segment_sum(_multiply_heads(weights, values), sets), 1 + segment_sum(weights, sets)
        )
        self.null = function.null
        self.weights = _attention_weights(query + function.turn(code), keys, sets, function.heads)
        self.weighted = _multiply_heads(self.weights, values)
        layers, biases = weights_and_biases(function.rho)
        self.first_weight, of_set = layers[0].chunk(2, 1)
        self.base = linear(code, of_set, biases[0])
        self.layers, self.biases = layers[1:], biases[1:]

    def _sums(self, shares: Tensor) -> list[Tensor]:
        """Return the numerators `(m, b, dim)` and denominators `(m, b, heads)` of the averages over each subset."""
        numerators = self.null + segment_matmul(shares, self.weighted, self.sets)
        return [numerators, 1 + segment_matmul(shares, self.weights, self.sets)]

    def _base(self, ids: Tensor | None = None) -> Tensor:
        return self.base if ids is None else self.base.index_select(0, ids)

    def _evaluate(self, sums: list[Tensor], base: Tensor | None, *, overwrite: bool) -> Tensor:
        assert base is not None
        first = base + linear(_code(*sums), self.first_weight)
        return apply_layers(first, self.layers, self.biases, overwrite=True)


def _read_sets(x: Tensor, sets: Sets, attention: InducedAttention) -> Tensor:
    """Return the items `(total, dim)` after each has read its set by attention."""
    # Empty sets are left out, because a softmax over no items is not defined.
    lengths = sets.layout.host_lengths
    filled = sets.layout if lengths.all() else Layout.from_lengths(lengths[lengths > 0], sets.device)
    if not filled.total:
        return x
    batch = Sets(x, filled)
    padded, mask = batch.padded()
    return unpad(attention(padded, None if filled.uniform else mask), batch)


def _attention_weights(query: Tensor, keys: Tensor, sets: Sets, heads: int) -> Tensor:
    """Return the exponentials of the bent scores, `(total, heads)`; the weight of the null item is 1."""
    product = (query.index_select(0, sets.layout.ids) * keys).unflatten(-1, (heads, -1))
    scores = product.sum(-1) * product.shape[-1] ** -0.5
    return (_MAX_SCORE * torch.tanh(scores / _MAX_SCORE)).exp()


def _multiply_heads(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply the features of each head, `(..., dim)`, by the weight of the head, `(..., heads)`."""
    return (values.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]).flatten(-2)


def _code(numerators: Tensor, denominators: Tensor) -> Tensor:
    """Return averages and the logarithms of their normalisers, `(..., dim + heads)`."""
    return torch.cat([_multiply_heads(1 / denominators, numerators), denominators.log()], -1)

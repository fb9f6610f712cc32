"""Residual attention blocks over padded sets: full, and induced (linear in the size of the set).

All blocks take items `(b, n, dim)` and a mask `(b, n)` that is true for real items, or None if nothing is padded. If
items have counts, the mask holds the logarithms of the counts, -inf for padding. Each set must hold at least one item.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import reduce
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from setgrad._autograd import in_transform
from setgrad._linear import Linear
from setgrad.encoders._checkpoint import Result, checkpointed
from setgrad.encoders._slot_softmax import Padded, exponentials, join_heads, slot_logits, slot_totals
from setgrad.encoders._state import State

# Numbers in one chunk of a long set. At 32 MiB in float32 the C library returns a freed block to the system at once;
# smaller blocks stay in a heap that fragments, and the peak doubles.
_CHUNK_NUMBERS = 2**23

# Scores of one call of attention where all of them are kept: 512 MiB in float64.
_MAX_SCORES = 2**26

# Stands for minus infinity in a sum of exponentials, and keeps a fully masked chunk free of NaN.
_MASKED = -1e30


class Block(nn.Module, abc.ABC):
    """A layer in which the items of a set attend to each other."""

    @abc.abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return items of the same shape, `(b, n, dim)`."""


@final
class SelfAttention(Block):
    """Every item attends to every item of its set: memory linear, time quadratic in the size of the set."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.project = Linear(dim, 3 * dim)
        self.out = Linear(dim, dim)
        self.feed = FeedForward(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the items after attention and a feed-forward layer, both with a residual connection."""
        q, k, v = (split(part, self.heads) for part in self.project(self.norm(x)).chunk(3, -1))
        x = x + self.out(join(attend(q, k, v, None if mask is None else mask[:, None, None, :])))
        return self.feed(x)


@final
class InducedAttention(Block):
    """A few learned slots attend to the items, then every item attends to the slots: linear in time and memory.

    Sets longer than `chunk` are read in chunks whose intermediate results are computed again in the backward pass, so
    that only the items themselves are kept.
    """

    def __init__(self, dim: int, heads: int, slots: int, chunk: int | None = None) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk or max(1, _CHUNK_NUMBERS // dim)
        self.slots = nn.Parameter(torch.randn(slots, dim) * dim**-0.5)
        self.norm_items = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.ask_items = Linear(dim, dim)
        self.read_items = Linear(dim, 2 * dim)
        self.out_slots = Linear(dim, dim)
        self.feed_slots = FeedForward(dim)
        self.ask_slots = Linear(dim, dim)
        self.read_slots = Linear(dim, 2 * dim)
        self.out_items = Linear(dim, dim)
        self.feed_items = FeedForward(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the items after the slots attended to them and they to the slots."""
        state = reduce(State.merge, in_chunks(self._gather, x, mask, self.chunk))
        slots = self.feed_slots(self.slots + self.out_slots(join_heads(*state.sums).to(x.dtype)))
        k, v = (split(part, self.heads) for part in self.read_slots(self.norm_slots(slots)).chunk(2, -1))
        return torch.cat(in_chunks(lambda chunk, _: self._spread(chunk, k, v), x, mask, self.chunk), 1)

    def _gather(self, x: Tensor, mask: Tensor | None) -> State:
        logits, values = slot_logits(self.read_items(self.norm_items(x)), self.ask_items(self.slots), self.heads)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_weights = logits.to(dtype)
        if mask is not None:
            real = mask[..., None, None]
            log_weights = log_weights.masked_fill(~real, -torch.inf) if mask.dtype == torch.bool else log_weights + real
        weights, level = exponentials(log_weights, Padded())
        # Nothing reads the number of items of this state.
        return State(slot_totals(weights, values.to(dtype), Padded()), level, torch.zeros_like(level[:, 0, 0]), None)

    def _spread(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = split(self.ask_slots(self.norm_items(x)), self.heads)
        return self.feed_items(x + self.out_items(join(attend(q, k, v, None))))


@final
class FeedForward(nn.Module):
    """Two layers on each item, with normalisation before and a residual connection around them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), Linear(dim, 2 * dim), nn.GELU(), Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return items of the same shape."""
        return x + self.layers(x)


def attention_blocks(layers: int, dim: int, heads: int, slots: int | None) -> nn.ModuleList:
    """Return blocks of full attention if `slots` is None, else of induced attention."""
    return nn.ModuleList(
        SelfAttention(dim, heads) if slots is None else InducedAttention(dim, heads, slots) for _ in range(layers)
    )


def in_chunks(
    function: Callable[[Tensor, Tensor | None], Result], x: Tensor, mask: Tensor | None, chunk: int
) -> list[Result]:
    """Return the results for chunks along the second axis, which are computed again in the backward pass."""
    if x.shape[1] <= chunk:
        return [function(x, mask)]
    masks = [None] * -(-x.shape[1] // chunk) if mask is None else list(mask.split(chunk, 1))
    return [checkpointed(function, *part) for part in zip(x.split(chunk, 1), masks, strict=True)]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax attention. In float64 a GPU keeps all scores of a call, so long sets are read in chunks there."""
    if in_transform():
        # The fused kernels have no correct gradient under `torch.func.vmap`.
        return torch.softmax(_scores(q, k, mask), -1) @ v
    if q.dtype != torch.float64 or q.device.type != "cuda":
        # Without a branch on sizes, so that an exported program takes any.
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)
    rows = max(1, _MAX_SCORES // max(1, k.shape[:-1].numel()))
    return torch.cat([scaled_dot_product_attention(part, k, v, attn_mask=mask) for part in q.split(rows, -2)], -2)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is None:
        return scores
    # Half precision has a smaller range; half of it leaves a margin for the scores.
    masked = max(_MASKED, torch.finfo(scores.dtype).min / 2)
    return scores.masked_fill(~mask, masked) if mask.dtype == torch.bool else scores + mask.clamp(masked)


def split(x: Tensor, heads: int) -> Tensor:
    """Return the last axis as heads, placed before the items."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join(x: Tensor) -> Tensor:
    """Return the heads concatenated: the inverse of `split`."""
    return x.transpose(-2, -3).flatten(-2)

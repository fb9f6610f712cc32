"""Residual attention blocks over padded sets: full, and induced (linear in the size of the set).

All blocks take items `(b, n, width)` and a mask `(b, n)` of real items, or None where nothing is padded. Where items
count more or less than once, the mask holds the logarithms of how often they do, -inf for padding. Each set must hold
at least one item.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from setgrad._autograd import in_transform
from setgrad.encoders.again import Piece, computed_again

# Numbers in one piece of a long set. At 32 MiB in float32 the C library hands a freed block back to the system at once;
# smaller ones stay behind in a heap that fragments, and the peak doubles.
_PIECE = 2**23

# Scores of one call of attention where all of them are kept: 512 MiB in float64.
_SCORES = 2**26

# Stands for minus infinity in a sum of exponentials, and keeps a fully masked piece free of NaN.
_MASKED = -1e30


class Block(nn.Module, abc.ABC):
    """One layer that lets the items of a set look at each other."""

    @abc.abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Items in, items out, of the same shape."""


@final
class SelfAttention(Block):
    """Every item attends to every item of its set: memory linear, time quadratic in the size of the set."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = FeedForward(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend, then transform each item, both with a residual connection."""
        q, k, v = (split(part, self.heads) for part in self.project(self.norm(x)).chunk(3, -1))
        seen = None if mask is None else mask[:, None, None, :]
        x = x + self.out(join(attend(q, k, v, seen)))
        return self.feed(x)


@final
class InducedAttention(Block):
    """A few learned slots attend to the items, then every item attends to the slots: linear in time and memory.

    Sets longer than `chunk` are read in pieces whose intermediate results are computed again in the backward pass, so
    that only the items themselves are kept.
    """

    def __init__(self, width: int, heads: int, slots: int, chunk: int | None = None) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk or max(1, _PIECE // width)
        self.slots = nn.Parameter(torch.randn(slots, width) * width**-0.5)
        self.norm_items = nn.LayerNorm(width)
        self.norm_slots = nn.LayerNorm(width)
        self.ask_items = nn.Linear(width, width)
        self.read_items = nn.Linear(width, 2 * width)
        self.out_slots = nn.Linear(width, width)
        self.feed_slots = FeedForward(width)
        self.ask_slots = nn.Linear(width, width)
        self.read_slots = nn.Linear(width, 2 * width)
        self.out_items = nn.Linear(width, width)
        self.feed_items = FeedForward(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Gather the set into the slots, then spread the slots over the items."""
        gathered = in_pieces(self._gather, x, mask, self.chunk)
        # Each piece is a softmax average with its log-normaliser: together they give the softmax over the whole set.
        weight = torch.softmax(torch.stack([piece[1] for piece in gathered]), 0)
        pooled = (weight[..., None] * torch.stack([piece[0] for piece in gathered])).sum(0)
        slots = self.feed_slots(self.slots + self.out_slots(join(pooled)))
        k, v = (split(part, self.heads) for part in self.read_slots(self.norm_slots(slots)).chunk(2, -1))
        pieces = in_pieces(lambda piece, _: self._spread(piece, k, v), x, mask, self.chunk)
        return torch.cat(pieces, 1)

    def _gather(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        k, v = (split(part, self.heads) for part in self.read_items(self.norm_items(x)).chunk(2, -1))
        q = split(self.ask_items(self.slots)[None], self.heads)
        scores = _scores(q, k, None if mask is None else mask[:, None, None, :])
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

    def _spread(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = split(self.ask_slots(self.norm_items(x)), self.heads)
        return self.feed_items(x + self.out_items(join(attend(q, k, v, None))))


@final
class FeedForward(nn.Module):
    """Two layers on each item, with normalisation before and a residual connection around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the change to the items."""
        return x + self.layers(x)


def in_pieces(
    function: Callable[[Tensor, Tensor | None], Piece], x: Tensor, mask: Tensor | None, chunk: int
) -> list[Piece]:
    """Apply a function along the second axis in pieces of `chunk`, recomputing them in the backward pass."""
    if x.shape[1] <= chunk:
        return [function(x, mask)]
    masks = [None] * -(-x.shape[1] // chunk) if mask is None else list(mask.split(chunk, 1))
    return [computed_again(function, *piece) for piece in zip(x.split(chunk, 1), masks, strict=True)]


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """Softmax attention. In float64 a GPU keeps all scores of a call, so that long sets are asked in pieces there."""
    if in_transform():
        # The fused kernels have no sound gradient under `torch.func.vmap`.
        return torch.softmax(_scores(q, k, seen), -1) @ v
    if q.dtype != torch.float64 or q.device.type != "cuda":
        # Sizes are not looked at, so that an exported program takes any.
        return scaled_dot_product_attention(q, k, v, attn_mask=seen)
    rows = max(1, _SCORES // max(1, k.shape[:-1].numel()))
    return torch.cat([scaled_dot_product_attention(part, k, v, attn_mask=seen) for part in q.split(rows, -2)], -2)


def _scores(q: Tensor, k: Tensor, seen: Tensor | None) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if seen is None:
        return scores
    # Half precision does not reach that far; half of its range leaves room for the scores.
    masked = max(_MASKED, torch.finfo(scores.dtype).min / 2)
    return scores.masked_fill(~seen, masked) if seen.dtype == torch.bool else scores + seen.clamp(masked)


def split(x: Tensor, heads: int) -> Tensor:
    """The last axis as heads, which come before the items."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join(x: Tensor) -> Tensor:
    """The heads side by side again."""
    return x.transpose(-2, -3).flatten(-2)

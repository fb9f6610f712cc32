"""Images as sets of pixels, a conditional neural process of them, and a normal distribution for comparison.

An item is a pixel: its row and column, sines and cosines of these, and its value. A decoder maps the code of the set
and the position of a pixel to mean and deviation (arXiv:2208.12401, tables 9 and 10, which have no sines and cosines:
without them a network takes many more steps to distinguish neighbours).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.lib import data
from setgrad.encoders import (
    SSE,
    UMBC,
    DeepSets,
    DiffEM,
    FSPool,
    MergeableEncoder,
    SetEncoder,
    SetTransformer,
    TransformerHead,
    hierarchical_sse,
)
from setgrad.sets import Sets

# Smallest deviation of a pixel: without one, the black margin of a digit would dominate. Others use
# 0.1 (Garnelo et al., 2018), which is more than the error on faces.
FLOORS = {"mnist": 0.1, "olivetti": 0.02}
OCTAVES = 4
POSITION = 2 + 4 * OCTAVES
ITEM = POSITION + 1
IMAGES = ("mnist", "olivetti")


def read_images(name: str, data_dir: str | Path | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return training and test images `(n, height, width)`. The seed sets the ten people of Olivetti in the test."""
    images = data.read_images(name, data_dir, np.random.default_rng(seed))
    train, validation, test = (torch.from_numpy(images.pixels[part]).float().div(255) for part in images.parts)
    # Networks are not chosen by validation, so these images are used for training. They come last.
    return torch.cat([train, validation]), test


def places(height: int, width: int) -> Tensor:
    """Return row and column of every pixel from -1 to 1, with sines and cosines of them, `(height * width, POSITION)`.

    Examples:
        >>> places(2, 2)[:, :2].tolist()
        [[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    plain = torch.cartesian_prod(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width))
    turns = torch.cat([plain * math.pi / 2 * 2**octave for octave in range(OCTAVES)], 1)
    return torch.cat([plain, turns.sin(), turns.cos()], 1)


def draw_order(count: int, pixels: int, generator: torch.Generator) -> Tensor:
    """Return a random order of the pixels of each image, `(count, pixels)`: the first ones are a random context."""
    return torch.rand(count, pixels, generator=generator, device=generator.device).argsort(1)


def as_sets(images: Tensor, where: Tensor, order: Tensor) -> Sets:
    """Return the pixels `order` `(b, n)` of each image `(b, height, width)` as sets."""
    # From -2 to 2, so that the value weighs as much as the coordinates.
    values = images.flatten(1).gather(1, order) * 4 - 2
    items = torch.cat([where[order], values[..., None]], -1)
    return Sets.from_lengths(items.flatten(0, 1), np.full(len(order), order.shape[1]))


def layers(*widths: int) -> nn.Sequential:
    """Return linear maps, each followed by a ReLU."""
    parts = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for pair in parts for part in pair])


def make_encoder(name: str, dim: int, slots: int) -> SetEncoder:
    """Return an encoder of sets of pixels whose code has `dim` numbers."""
    phi = layers(ITEM, dim, dim, dim, dim)
    if name == "deepsets":
        return DeepSets(ITEM, phi, pooling="mean", head=nn.Sequential(layers(dim, dim), nn.Linear(dim, dim)))
    if name == "sse":
        # Normalised, because a plain sum grows with the set.
        head = nn.Sequential(nn.LayerNorm(dim), nn.Flatten(1), layers(16 * dim, dim), nn.Linear(dim, dim))
        return SSE(ITEM, dim, 16, heads=4, phi=phi, head=head)
    if name == "hierarchical":
        head = nn.Sequential(nn.LayerNorm(dim), nn.Flatten(1), layers(4 * dim, dim), nn.Linear(dim, dim))
        return hierarchical_sse(ITEM, [(16, dim), (4, dim)], heads=4, phi=phi, head=head)
    if name == "fspool":
        return FSPool(ITEM, phi, head=nn.Sequential(nn.LayerNorm(dim), layers(dim, dim), nn.Linear(dim, dim)))
    if name == "diff-em":
        wide = 4 * (1 + 2 * dim)
        head = nn.Sequential(nn.Flatten(1), nn.LayerNorm(wide), layers(wide, dim), nn.Linear(dim, dim))
        return DiffEM(ITEM, phi, components=4, steps=3, head=head)
    if name == "umbc":
        head = nn.Sequential(TransformerHead(dim, decode=0), nn.Flatten(1))
        # As published for images: no residual.
        return UMBC(ITEM, dim, slots, residual=False, phi=phi, head=head)
    return SetTransformer(ITEM, dim, decode=0, phi=phi, head=nn.Flatten(1))


@final
class Completion(nn.Module):
    """A conditional neural process: from the code of the context and the position of a pixel to mean and deviation."""

    def __init__(self, encoder: SetEncoder, dim: int, floor: float) -> None:
        super().__init__()
        self.encoder, self.floor = encoder, floor
        self.decoder = nn.Sequential(layers(dim + POSITION, dim, dim, dim, dim), nn.Linear(dim, 2))

    def decode(self, code: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation `(b, m)` at the positions `(m, POSITION)`."""
        inputs = torch.cat([code[:, None].expand(-1, len(where), -1), where.expand(len(code), -1, -1)], -1)
        mean, spread = self.decoder(inputs).unbind(-1)
        return mean, self.floor + (1 - self.floor) * nn.functional.softplus(spread)


def nll(mean: Tensor, deviation: Tensor, values: Tensor) -> Tensor:
    """Return the negative log-likelihood of every pixel, in nats."""
    return 0.5 * ((values - mean) / deviation) ** 2 + deviation.log() + 0.5 * math.log(2 * math.pi)


def encode(encoder: SetEncoder, context: Sets, gradient: str, chunk: int, generator: np.random.Generator) -> Tensor:
    """Return the codes of a training step: of the whole context, with full or sampled gradient, or of a small part."""
    if gradient == "full":
        return encoder(context)
    if gradient == "sample":
        assert isinstance(encoder, MergeableEncoder)
        drawn = torch.Generator().manual_seed(int(generator.integers(2**62)))
        return encoder.stream(context, gradient="sample", chunk_size=chunk, generator=drawn)
    size = min(chunk, context.layout.longest)
    # The order is random, so the first pixels are a random part.
    first = context.values.unflatten(0, (len(context), -1))[:, :size]
    return encoder(Sets.from_lengths(first.flatten(0, 1), np.full(len(context), size)))


def growing_codes(
    encoder: SetEncoder,
    images: Tensor,
    where: Tensor,
    order: Tensor,
    sizes: Sequence[int],
    *,
    chunk: int,
    in_chunks: bool,
) -> Iterator[Tensor]:
    """Yield the codes of the first `size` pixels for each size, as from a stream.

    Encoders with a state read each pixel once. Others read all again; with `in_chunks` they read chunks, and the
    codes of these are averaged (arXiv:2208.12401, appendix E).
    """
    state, done = encoder.begin(len(images)) if isinstance(encoder, MergeableEncoder) else None, 0
    for size in sizes:
        if isinstance(encoder, MergeableEncoder) and state is not None:
            state = encoder.update(state, as_sets(images, where, order[:, done:size]))
            yield encoder.finish(state)
        elif in_chunks:
            parts = [encoder(as_sets(images, where, part)) for part in order[:, :size].split(chunk, 1)]
            yield torch.stack(parts).mean(0)
        else:
            yield encoder(as_sets(images, where, order[:, :size]))
        done = size


@final
class Gaussian:
    """One normal distribution of all pixels, conditioned on the context.

    It has mean and covariance of the training images; `noise` is the deviation of independent noise of every pixel.
    """

    def __init__(self, images: Tensor, noise: float) -> None:
        flat = images.flatten(1)
        self.mean, self.noise = flat.mean(0), noise
        self.covariance = (flat - self.mean).T @ (flat - self.mean) / len(flat)

    def predict(self, images: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation `(b, pixels)` given the pixels `order` `(b, n)`."""
        values = images.flatten(1).gather(1, order) - self.mean[order]
        across = self.covariance[order]
        within = across.gather(2, order[:, None].expand(-1, order.shape[1], -1))
        root = torch.linalg.cholesky(within + self.noise**2 * torch.eye(order.shape[1], device=order.device))
        answer = torch.cholesky_solve(values[..., None], root)[..., 0]
        mean = self.mean + torch.einsum("bn,bnm->bm", answer, across)
        explained = torch.linalg.solve_triangular(root, across, upper=False).square().sum(1)
        return mean, ((self.covariance.diagonal() - explained).clamp(min=0) + self.noise**2).sqrt()

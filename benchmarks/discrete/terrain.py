"""Generated maps of terrain: smooth fields cut into kinds of ground, drawn as small tiles, with hidden costs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.discrete.decisions import Examples
from setgrad.discrete import GridPath

# The costs of cells of each kind, their colours, and their share of a map.
COSTS = (0.8, 1.2, 5.3, 7.7, 9.2)
COLOURS = ((0.78, 0.72, 0.45), (0.45, 0.68, 0.30), (0.20, 0.48, 0.24), (0.52, 0.49, 0.45), (0.24, 0.40, 0.66))
SHARES = (0.2, 0.25, 0.25, 0.15, 0.15)
TILE = 8
# Tiles of each kind. The last ones are for the test, so no texture is in both parts.
VARIANTS = 48
UNSEEN = 12


def textures(seed: int = 0) -> Tensor:
    """Return the tiles, (kind, variant, 3, TILE, TILE): a colour, a grain that is typical of the kind, and noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:TILE, 0:TILE] / TILE
    tiles = np.empty((len(COSTS), VARIANTS, 3, TILE, TILE), dtype=np.float32)
    for kind, colour in enumerate(COLOURS):
        phase = rng.uniform(0, 2 * np.pi, (VARIANTS, 1, 1, 1))
        grain = np.sin(2 * np.pi * ((1 + kind % 3) * rows + (kind // 2) * columns) + phase)
        shade = rng.normal(0, 0.04, (VARIANTS, 3, 1, 1))
        noise = rng.normal(0, 0.08, (VARIANTS, 3, TILE, TILE))
        tiles[kind] = np.array(colour)[:, None, None] + 0.08 * grain + shade + noise
    return torch.from_numpy(tiles.clip(0, 1))


def terrain(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return kinds of ground, (count, size, size): smoothed noise, with single cells changed, cut at quantiles."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    smooth = np.exp(-((frequency / 0.12) ** 2))
    noise = rng.standard_normal((count, size, size))
    field = np.fft.irfft2(np.fft.rfft2(noise) * smooth, s=(size, size))
    field = field / field.std() + 0.25 * rng.standard_normal(field.shape)
    cuts = np.quantile(field, np.cumsum(SHARES)[:-1])
    # Heights are not costs: the order of the kinds along the field is shuffled.
    order = np.array([4, 0, 1, 2, 3])
    return order[np.searchsorted(cuts, field)]


def maps(count: int, size: int, seed: int, *, test: bool = False) -> Examples:
    """Return kinds, tiles and light of each map, (count, 3, size, size), with the cheapest paths and the costs."""
    rng = np.random.default_rng([seed, size, int(test)])
    kinds = terrain(count, size, rng)
    low, high = (VARIANTS - UNSEEN, VARIANTS) if test else (0, VARIANTS - UNSEEN)
    tiles = rng.integers(low, high, kinds.shape)
    light = np.broadcast_to(rng.uniform(0.85, 1.15, (count, 1, 1)), kinds.shape)
    costs = torch.tensor(COSTS)[torch.from_numpy(kinds)]
    solver = GridPath()
    paths = torch.cat([solver(part) for part in costs.split(256)])
    return Examples(torch.from_numpy(np.stack([kinds, tiles, light], 1)).float(), paths, costs)


class CostNetwork(nn.Module):
    """Draws the maps and predicts a positive cost of each cell: convolutions down to one output for each cell.

    Drawing is part of the network, so that images need no memory; the inputs of the convolutions are pixels alone.
    """

    tiles: Tensor

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.register_buffer("tiles", textures(), persistent=False)
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, dim, 3, stride=2, padding=1),
            nn.BatchNorm2d(dim),
            nn.ReLU(),
            nn.Conv2d(dim, dim, 3, stride=2, padding=1),
            nn.BatchNorm2d(dim),
            nn.ReLU(),
            nn.Conv2d(dim, 2 * dim, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * dim),
            nn.ReLU(),
            nn.Conv2d(2 * dim, 1, 1),
        )

    def draw(self, inputs: Tensor) -> Tensor:
        """Return images in colour, (count, 3, size * TILE, size * TILE)."""
        kinds, tiles = inputs[:, 0].long(), inputs[:, 1].long()
        cells = self.tiles[kinds, tiles] * inputs[:, 2, :, :, None, None, None]
        count, size = kinds.shape[:2]
        return cells.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, size * TILE, size * TILE)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return costs, (count, size, size)."""
        return nn.functional.softplus(self.convolutions(self.draw(inputs))[:, 0])

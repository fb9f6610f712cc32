"""Particles that a force-directed layout moves along the edges of a hidden spanning tree.

The layout is that of Fruchterman and Reingold as NetworkX runs it (`spring_layout`), one iteration at a time, here for
a whole batch; NetworkX is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete import Gumbel, SpanningTree


@final
@dataclass(frozen=True, eq=False)
class Systems:
    """Positions (systems, particles, times, 2) in [-1, 1], and the trees (systems, particles, particles)."""

    places: Tensor
    trees: Tensor

    def __getitem__(self, rows: Tensor) -> Systems:
        return Systems(self.places[rows], self.trees[rows])

    def __len__(self) -> int:
        return len(self.trees)


def simulate(count: int, times: int, generator: torch.Generator, *, particles: int = 10) -> Systems:
    """Return trees and the positions after each iteration of the layout, which starts at normal positions.

    Trees are maximum spanning trees of Gumbel weights, as published. They are not uniform over all trees.
    """
    shape, device = (count, particles, particles), generator.device
    trees = SpanningTree()(Gumbel().sample(shape, device=device, generator=generator))
    place = torch.randn(count, particles, 2, device=device, generator=generator)
    shown = []
    for _ in range(times):
        place = spring_step(place, trees)
        shown.append(place)
    return Systems(torch.stack(shown, 2), trees)


def spring_step(place: Tensor, trees: Tensor) -> Tensor:
    """Return the positions (B, n, 2) after one iteration of the layout, centred and scaled to [-1, 1]."""
    spring = place.shape[1] ** -0.5
    # One iteration of NetworkX starts at a tenth of the extent of the layout.
    step = 0.1 * (place.amax(1) - place.amin(1)).amax(-1)[:, None, None]
    delta = place[:, :, None] - place[:, None]
    distance = delta.norm(dim=-1).clamp(min=0.01)
    force = spring**2 / distance.square() - trees * distance / spring
    move = (delta * force[..., None]).sum(2)
    length = move.norm(dim=-1, keepdim=True)
    place = place + move * step / torch.where(length < 0.01, 0.1, length)
    place = place - place.mean(1, keepdim=True)
    return place / place.abs().amax((1, 2), keepdim=True)

"""A walker crosses maps by the cheapest path; from the paths alone a network learns what each kind of ground costs.

The solver stands in the middle of the network: a small network reads what each cell looks like and says what it costs,
`GridPath` finds the cheapest path for these costs, and the loss is how many cells differ from the walker's path. A path
is a hard choice, its derivative is zero or nothing; an estimator puts a useful gradient in its place. Three are tried,
each with one line changed: `Identity` passes the gradient on as it comes, with a margin that keeps costs apart; `AIMLE`
asks the solver a second time, a step along the gradient, and finds the length of the step itself; `FenchelYoung` is a
loss of its own, for when the right answers are known, as here.

A map is 10 x 10 cells of four kinds; a cell shows six numbers, those of its kind with noise. Nobody tells the network
the costs, and a common factor of them would change no path: so costs are compared after division by their mean.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from setgrad.discrete import AIMLE, FenchelYoung, GridPath, Identity, NoiseMargin, Normal, Tempered, regret

COSTS = torch.tensor([0.6, 1.0, 2.0, 4.0])
SIZE, MAPS, STEPS, BATCH = 10, 256, 150, 32
Loss = Callable[[Tensor, Tensor], Tensor]


def draw_maps(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the cells look like `(count, size, size, 6)`, their true costs, and the walker's paths."""
    generator = torch.Generator().manual_seed(seed)
    looks = torch.randn(len(COSTS), 6, generator=torch.Generator().manual_seed(0))
    kinds = torch.randint(len(COSTS), (count, SIZE, SIZE), generator=generator)
    seen = looks[kinds] + 0.2 * torch.randn(count, SIZE, SIZE, 6, generator=generator)
    return seen, COSTS[kinds], GridPath()(COSTS[kinds])


def differing(found: Tensor, paths: Tensor) -> Tensor:
    """Cells in which paths differ, on average. As a square, so that its gradient is 0 where they agree."""
    return (found - paths).square().sum((-2, -1)).mean()


def losses(seed: int) -> dict[str, Loss]:
    """The loss of costs and right paths, by the name of the estimator."""
    chance = torch.Generator().manual_seed(seed)
    plain = Identity(GridPath())
    margin = Identity(GridPath(), margin=NoiseMargin(0.4), generator=chance)
    adaptive = AIMLE(GridPath(), noise=Tempered(Normal(), 0.2), generator=chance)
    perturbed = FenchelYoung(GridPath(), noise=Tempered(Normal(), 0.2), generator=chance)
    return {
        "identity": lambda costs, paths: differing(plain(costs), paths),
        "identity, margin": lambda costs, paths: differing(margin(costs), paths),
        "aimle": lambda costs, paths: differing(adaptive(costs), paths),
        "fenchel-young": lambda costs, paths: perturbed(costs, paths).mean(),
    }


def train(loss: Loss, seed: int) -> nn.Module:
    """A network from looks to costs."""
    seen, _, paths = draw_maps(MAPS, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1), nn.Softplus(), nn.Flatten(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    order = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        batch = torch.randperm(MAPS, generator=order)[:BATCH]
        optimizer.zero_grad()
        loss(network(seen[batch]), paths[batch]).backward()
        optimizer.step()
    return network


def main() -> dict[str, float]:
    """Train by each estimator and walk across new maps."""
    seen, costs, paths = draw_maps(200, seed=2)
    numbers = {}
    for name, loss in losses(seed=0).items():
        network = train(loss, seed=0)
        with torch.no_grad():
            found = network(seen)
            walked = GridPath()(found)
        lost = regret(walked, costs, solver=GridPath(), best=paths) / (costs * paths).sum((1, 2))
        guessed = torch.stack([found[costs == cost].mean() for cost in COSTS])
        numbers[f"{name}: paths as good as the walker's"] = float((lost < 1e-6).double().mean())
        numbers[f"{name}: extra cost"] = float(lost.mean())
        numbers[f"{name}: error of the costs"] = float((guessed / guessed.mean() - COSTS / COSTS.mean()).abs().max())
    return numbers


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<52} {number:.4g}")

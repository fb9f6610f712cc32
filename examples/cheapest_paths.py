"""Learn what each kind of ground costs from the cheapest paths of a walker.

The solver is a layer inside the network: a small network reads the features of each cell and predicts its cost,
`GridPath` finds the cheapest path for these costs, and the loss is the number of cells that differ from the walker's
path. A path is a hard choice, and its derivative is zero almost everywhere, so an estimator puts a useful gradient in
its place. Three estimators are compared, and each is a change of one line:

- `Identity` passes the gradient on unchanged; a noise margin keeps costs apart.
- `AIMLE` calls the solver a second time, one step along the gradient, and adapts the length of that step.
- `FenchelYoung` is a loss of its own. It needs the right answers, which are known in this problem.

A map has 10 x 10 cells of four kinds; a cell shows six numbers, those of its kind plus noise. The costs are not in the
data, and a common factor of them would not change any path, so they are compared after division by their mean.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from setgrad.discrete import AIMLE, FenchelYoung, GridPath, Identity, NoiseMargin, Normal, Tempered, regret

COSTS = torch.tensor([0.6, 1.0, 2.0, 4.0])
SIZE, MAPS, STEPS, BATCH = 10, 256, 150, 32
Loss = Callable[[Tensor, Tensor], Tensor]


def draw_maps(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the features of the cells `(count, size, size, 6)`, their true costs, and the walker's paths."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(len(COSTS), 6, generator=torch.Generator().manual_seed(0))
    kinds = torch.randint(len(COSTS), (count, SIZE, SIZE), generator=generator)
    features = prototypes[kinds] + 0.2 * torch.randn(count, SIZE, SIZE, 6, generator=generator)
    return features, COSTS[kinds], GridPath()(COSTS[kinds])


def count_differences(predicted: Tensor, paths: Tensor) -> Tensor:
    """Return the mean number of different cells. As a square, its gradient is 0 where the paths agree."""
    return (predicted - paths).square().sum((-2, -1)).mean()


def make_losses(seed: int) -> dict[str, Loss]:
    """Return the losses of predicted costs and right paths, by the name of the estimator."""
    generator = torch.Generator().manual_seed(seed)
    plain = Identity(GridPath())
    margin = Identity(GridPath(), margin=NoiseMargin(0.4), generator=generator)
    adaptive = AIMLE(GridPath(), noise=Tempered(Normal(), 0.2), generator=generator)
    perturbed = FenchelYoung(GridPath(), noise=Tempered(Normal(), 0.2), generator=generator)
    return {
        "identity": lambda costs, paths: count_differences(plain(costs), paths),
        "identity, margin": lambda costs, paths: count_differences(margin(costs), paths),
        "aimle": lambda costs, paths: count_differences(adaptive(costs), paths),
        "fenchel-young": lambda costs, paths: perturbed(costs, paths).mean(),
    }


def train(loss: Loss, seed: int) -> nn.Module:
    """Return a trained network from features to costs."""
    features, _, paths = draw_maps(MAPS, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1), nn.Softplus(), nn.Flatten(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        batch = torch.randperm(MAPS, generator=generator)[:BATCH]
        optimizer.zero_grad()
        loss(network(features[batch]), paths[batch]).backward()
        optimizer.step()
    return network


def main() -> dict[str, float]:
    """Train with each estimator and find paths across new maps."""
    features, costs, paths = draw_maps(200, seed=2)
    numbers = {}
    for name, loss in make_losses(seed=0).items():
        network = train(loss, seed=0)
        with torch.no_grad():
            predicted = network(features)
            predicted_paths = GridPath()(predicted)
        extra = regret(predicted_paths, costs, solver=GridPath(), best=paths) / (costs * paths).sum((1, 2))
        by_kind = torch.stack([predicted[costs == cost].mean() for cost in COSTS])
        numbers[f"{name}: optimal paths"] = float((extra < 1e-6).double().mean())
        numbers[f"{name}: extra cost"] = float(extra.mean())
        numbers[f"{name}: error of the costs"] = float((by_kind / by_kind.mean() - COSTS / COSTS.mean()).abs().max())
    return numbers


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<42} {number:.4g}")

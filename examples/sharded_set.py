"""Train one encoder on one set that is divided among many processes.

The set is a cloud of 3,000 points in a `.npy` file, and the encoder learns to predict the mean and the standard
deviation of its coordinates. Rank r of R reads chunks r, r + R, r + 2R, ... Run it on one machine, or on many with
`--nnodes`:

    torchrun --nproc-per-node 3 examples/sharded_set.py

Without torchrun one process reads everything and prints the same numbers up to rounding: codes and gradients are those
of the whole set, however it is divided. On GPUs the process group uses NCCL.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from setgrad.encoders import UMBC, NpyChunks, Sharded, guard_ranks

POINTS, CHUNK, STEPS = 3000, 100, 30


def write_points(path: Path) -> Tensor:
    """Write a cloud of points to a file and return its mean and standard deviation."""
    points = np.random.default_rng(0).normal([1.0, -0.5, 0.2], [0.3, 1.2, 0.7], size=(POINTS, 3))
    np.save(path, points)
    return torch.from_numpy(np.concatenate([points.mean(0), points.std(0)]))


class Shard:
    """Every `ranks`-th chunk of a file, starting with chunk `rank`; it can be iterated many times."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.chunks, self.rank, self.ranks = NpyChunks(path, CHUNK), rank, ranks

    def __iter__(self) -> Iterator[np.ndarray]:
        for number, chunk in enumerate(self.chunks):
            if number % self.ranks == self.rank:
                yield chunk


def make_encoder() -> UMBC:
    """Return an encoder with the same weights on every rank."""
    torch.manual_seed(0)
    phi = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
    return UMBC(3, dim=16, slots=4, phi=phi, head=nn.Sequential(nn.Flatten(1), nn.Linear(64, 6))).double()


def train(path: Path, target: Tensor) -> list[float]:
    """Return the loss after each step, which is the same on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    # "exact" needs the memory of one chunk, and ranks exchange only states.
    model = DistributedDataParallel(Sharded(make_encoder().to(device), gradient="exact"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(STEPS):
        loss = (model(Shard(path, rank, ranks)) - target.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> dict[str, float]:
    """Train with all processes of the group; one process without torchrun."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        alone = {} if "RANK" in os.environ else {"init_method": f"file://{folder}/meet", "rank": 0, "world_size": 1}
        # If one process is lost, the others end too, instead of waiting for it.
        with guard_ranks(backend, timeout=60, **alone):
            path = Path(folder) / "points.npy"
            losses = train(path, write_points(path))
            numbers = {f"loss, step {step}": losses[step - 1] for step in (1, 2, 5, 10, STEPS)}
            return numbers if dist.get_rank() == 0 else {}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<20} {number:.12g}")

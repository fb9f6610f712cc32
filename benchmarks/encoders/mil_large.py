"""Bags of thousands of images: a network pretrained on a hundred labels, then tuned end to end through whole bags."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.encoders.mil_digits import DIGITS, NINE, SHAPE, Images, draw_shares, read_images, shares_of
from benchmarks.encoders.mil_folds import auroc
from benchmarks.lib.machine import memory_now, memory_peak, reset_peak, synchronize
from benchmarks.lib.records import Record, RunContext
from setgrad.encoders import UMBC, DeepSets, MergeableEncoder, TransformerHead
from setgrad.selector import resolve_device
from setgrad.sets import Sets

# How the network is trained last. "subset" trains on one chunk of each bag as if it were the bag, "all labels"
# is frozen after learning from every image that bags are drawn from: a limit, not a rival.
WAYS = ("frozen", "subset", "sample", "exact", "all labels")
LARGE = tuple(f"{pool} {way}" for pool in ("mean", "umbc") for way in WAYS)


@final
@dataclass(frozen=True)
class Large:
    """Sizes of the experiment with large bags."""

    bags: int = 160
    tested: int = 100
    smallest: int = 2000
    largest: int = 6000
    labelled: int = 100
    pretraining: int = 300
    limit_pretraining: int = 2000
    head_epochs: int = 30
    epochs: int = 12
    batch: int = 2
    chunk: int = 256
    head_rate: float = 1e-3
    rate: float = 5e-4


QUICK = Large(8, 5, 150, 300, pretraining=60, limit_pretraining=60, head_epochs=4, epochs=1, chunk=100)


@final
class _Corrected(nn.Module):
    """Maps mean probabilities to logits of the true shares; starts as their logarithm and learns to correct errors."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIGITS, DIGITS)
        nn.init.eye_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, mean: Tensor) -> Tensor:
        return self.mix((mean + 1e-4).log())


def network() -> nn.Module:
    """Return a network for the probabilities of the digits: two convolutions that halve the image."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(1),
        nn.Linear(1568, 64),
        nn.ReLU(),
        nn.Linear(64, DIGITS),
        nn.Softmax(1),
    )


def make_encoder(pool: str, shape: int | tuple[int, ...], phi: nn.Module) -> MergeableEncoder:
    """Return an encoder of bags, with the logits of the shares of the digits."""
    if pool == "mean":
        return DeepSets(shape, phi, pooling="mean", head=_Corrected())
    head = nn.Sequential(TransformerHead(64), nn.Flatten(1), nn.Linear(64, DIGITS))
    return UMBC(shape, dim=64, slots=8, phi=phi, head=head)


def tune(model: str, seed: int, context: RunContext, sizes: Large) -> Record:
    """Pretrain the network on images and the pooling on its features, train in one of the `WAYS`, and test."""
    pool, way = model.split(" ", 1)
    device = resolve_device(context.device)
    train, test = read_images(context.data_dir, device)
    rng = np.random.default_rng(seed)
    known = _known(train, sizes.labelled, rng)
    rest = np.setdiff1d(np.arange(len(train.digits)), known)
    bags = draw_shares(train, rest, rng.integers(sizes.smallest, sizes.largest + 1, sizes.bags), rng)
    test_bags = draw_shares(
        test, np.arange(len(test.digits)), rng.integers(sizes.smallest, sizes.largest + 1, sizes.tested), rng
    )
    phi = network().to(device)
    if way == "all labels":
        pretrain(phi, train, rest, steps=sizes.limit_pretraining)
    else:
        pretrain(phi, train, known, steps=sizes.pretraining)
    before = recognised(phi, test)
    encoder, peak = _fit(pool, way, phi, train, bags, sizes, rng)
    encoder.eval()
    with torch.no_grad():
        codes = [encoder.stream(_source(test, [bag], 4096)) for bag in test_bags]
    predicted, truth = torch.cat(codes).softmax(1), shares_of(test, test_bags)
    many = truth[:, NINE].cpu().numpy() > 1 / DIGITS
    error = 100 * float((predicted - truth).abs().mean())
    after = recognised(phi, test)
    return {
        "error": error,
        "auroc": 100 * auroc(predicted[:, NINE].cpu().numpy(), many),
        "before": before,
        "after": after,
        "peak": peak,
        "summary": f"error {error:.2f} points, images {before:.1f} % to {after:.1f} %",
    }


def pretrain(phi: nn.Module, images: Images, numbers: np.ndarray, *, steps: int) -> None:
    """Train on the digits of single images."""
    optimizer = torch.optim.AdamW(phi.parameters(), 1e-3, weight_decay=1e-2)
    size = min(128, max(32, len(numbers) // 100))
    for _ in range(steps):
        drawn = numbers[torch.randint(len(numbers), (size,)).numpy()]
        digits = torch.from_numpy(images.digits[drawn]).to(images.pixels.device)
        optimizer.zero_grad()
        cross_entropy((phi(images.take(drawn)) + 1e-8).log(), digits).backward()
        optimizer.step()


@torch.no_grad()
def recognised(phi: nn.Module, images: Images) -> float:
    """Return the percentage of images whose digit has the highest probability."""
    numbers = np.arange(len(images.digits))
    predicted = torch.cat([phi(images.take(part)).argmax(1) for part in np.array_split(numbers, 10)])
    return 100 * float((predicted.cpu().numpy() == images.digits).mean())


def _known(images: Images, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of the labelled images, the same number for each digit."""
    per_digit = count // DIGITS
    return np.concatenate(
        [rng.choice(np.flatnonzero(images.digits == d), per_digit, replace=False) for d in range(DIGITS)]
    )


def _fit(
    pool: str, way: str, phi: nn.Module, images: Images, bags: list[np.ndarray], sizes: Large, rng: np.random.Generator
) -> tuple[MergeableEncoder, int | None]:
    """Return the encoder after both stages and, on a GPU, the peak memory of the second beyond the base."""
    device = images.pixels.device
    shares = shares_of(images, bags)
    pooling = make_encoder(pool, DIGITS, nn.Identity()).to(device)
    with torch.no_grad():
        features = [torch.cat([phi(images.take(p)) for p in np.array_split(bag, 4)]) for bag in bags]

    def cached(rows: np.ndarray) -> Tensor:
        return pooling(Sets.from_list([features[row] for row in rows]))

    _train(pooling, cached, shares, sizes.head_epochs, sizes.head_rate, sizes.batch, rng)
    encoder = make_encoder(pool, SHAPE, phi).to(device)
    if way in ("frozen", "all labels"):
        _train(pooling, cached, shares, sizes.epochs, sizes.rate, sizes.batch, rng)
        encoder.load_state_dict(pooling.state_dict(), strict=False)
        return encoder, None
    encoder.load_state_dict(pooling.state_dict(), strict=False)
    features.clear()
    synchronize(device)
    reset_peak(device)
    base = memory_now(device)

    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))

    def through(rows: np.ndarray) -> Tensor:
        return code(encoder, images, [bags[row] for row in rows], way, sizes.chunk, rng, generator)

    _train(encoder, through, shares, sizes.epochs, sizes.rate, sizes.batch, rng)
    return encoder, memory_peak(device) - base if device.type == "cuda" else None


def _train(
    module: nn.Module,
    logits: Callable[[np.ndarray], Tensor],
    shares: Tensor,
    epochs: int,
    rate: float,
    batch: int,
    rng: np.random.Generator,
) -> None:
    """Fit the shares of the digits by cross entropy. The rate rises for a tenth of the steps, then falls."""
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=1e-2)
    groups = math.ceil(len(shares) / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, steps=epochs * groups))
    module.train()
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(shares)), groups):
            optimizer.zero_grad()
            cross_entropy(logits(rows), shares[torch.from_numpy(rows).to(shares.device)]).backward()
            optimizer.step()
            schedule.step()


def _rate(step: int, steps: int) -> float:
    done = step / steps
    return min(1.0, 10 * done + 0.1, (1 + math.cos(math.pi * done)) / 2)


def code(
    encoder: MergeableEncoder,
    images: Images,
    bags: Sequence[np.ndarray],
    way: str,
    chunk: int,
    rng: np.random.Generator,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the logits of bags, with the gradient of one of the `WAYS`."""
    if way == "subset":
        return encoder(_random_chunks(images, [rng.choice(bag, min(chunk, len(bag)), replace=False) for bag in bags]))
    return encoder.stream(_source(images, bags, chunk), gradient=way, generator=generator)


def _source(images: Images, bags: Sequence[np.ndarray], chunk: int) -> Callable[[], Iterator[Sets]]:
    """Return a function that yields the bags chunk by chunk; only the images of one chunk are floats."""
    longest = max(len(bag) for bag in bags)
    return lambda: (_random_chunks(images, [bag[a : a + chunk] for bag in bags]) for a in range(0, longest, chunk))


def _random_chunks(images: Images, numbers: Sequence[np.ndarray]) -> Sets:
    values = images.take(np.concatenate(numbers))
    return Sets.from_lengths(values, [len(part) for part in numbers]).to(values.device)

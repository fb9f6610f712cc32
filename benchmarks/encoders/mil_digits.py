"""Bags of MNIST images: small ones, with or without a nine, and large ones, to predict the shares of the digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.encoders.mil_folds import Training, auroc, fit_classifier
from benchmarks.encoders.mil_models import POOLS, Classifier, probability
from benchmarks.lib.data import data_folder, read_arrays
from benchmarks.lib.records import Record, RunContext
from setgrad.selector import resolve_device
from setgrad.sets import Sets

SHAPE = (1, 28, 28)
DIGITS = 10
NINE = 9
# Published: bags of about ten images, the deviation two (Ilse et al., 2018).
MEAN_SIZE, SIZE_DEVIATION = 10, 2


@final
@dataclass(frozen=True)
class Images:
    """One half of MNIST: bytes `(n, 28, 28)` on a device, and the digits."""

    pixels: Tensor
    digits: np.ndarray

    def take(self, numbers: np.ndarray) -> Tensor:
        """Return images `(len(numbers), 1, 28, 28)` from 0 to 1."""
        return self.pixels[torch.as_tensor(numbers, device=self.pixels.device)][:, None].float() / 255


def read_images(data_dir: str | Path | None, device: torch.device) -> tuple[Images, Images]:
    """Return the training and the test half."""
    path = data_folder(data_dir, "mnist", "the images of MNIST") / "mnist.npz"
    x, y, test_x, test_y = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    first, second = ((torch.from_numpy(a).to(device), b.astype(np.int64)) for a, b in ((x, y), (test_x, test_y)))
    return Images(*first), Images(*second)


def small_bags(images: Images, count: int, rng: np.random.Generator) -> tuple[Sets, Tensor]:
    """Return bags of about ten images; every second bag has at least one nine."""
    nines, others = (np.flatnonzero((images.digits == NINE) == flag) for flag in (True, False))
    bags = []
    for number in range(count):
        size = max(1, round(rng.normal(MEAN_SIZE, SIZE_DEVIATION)))
        # As many nines as a random bag has, given that it has one or none.
        held = 0 if number % 2 else max(1, int(rng.binomial(size, 1 / DIGITS)))
        drawn = np.concatenate([rng.choice(nines, held), rng.choice(others, size - held)])
        bags.append(rng.permutation(drawn))
    values = images.take(np.concatenate(bags))
    sets = Sets.from_lengths(values, [len(bag) for bag in bags]).to(values.device)
    return sets, torch.arange(count, device=values.device) % 2 == 0


def network(dim: int) -> nn.Module:
    """Return the two convolutions of LeNet as Ilse et al. use it, and a layer of `dim`."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(1),
        nn.Linear(800, dim),
        nn.ReLU(),
    )


def learn_small(bags: int, model: str, seed: int, context: RunContext, *, steps: int, tested: int) -> Record:
    """Train network and pooling from the labels of bags alone; test on bags of the other half."""
    device = resolve_device(context.device)
    train, test = read_images(context.data_dir, device)
    rng = np.random.default_rng(seed)
    sets, labels = small_bags(train, bags, rng)
    test_sets, truth = small_bags(test, tested, rng)
    options = Training(steps=steps)
    classifier = Classifier(network(options.dim), POOLS[model](options.dim)).to(device)
    fit_classifier(classifier, sets, labels.float(), np.arange(bags), options)
    with torch.no_grad():
        parts = [probability(classifier(test_sets[i : i + 200])) for i in range(0, tested, 200)]
    predicted = torch.cat(parts).cpu().numpy()
    right, area = (
        100 * float(((predicted > 0.5) == truth.cpu().numpy()).mean()),
        100 * auroc(predicted, truth.cpu().numpy()),
    )
    return {"accuracy": right, "auroc": area, "summary": f"accuracy {right:.1f}, AUROC {area:.1f}"}


def draw_shares(
    images: Images, pool: np.ndarray, sizes: Sequence[int] | np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the indices of the images of large bags, whose shares of the digits are uniform over the simplex.

    A digit that a bag holds more often than there are images of it is drawn with repetition.
    """
    by_digit = [pool[images.digits[pool] == digit] for digit in range(DIGITS)]
    bags = []
    for size in sizes:
        counts = rng.multinomial(size, rng.dirichlet(np.ones(DIGITS)))
        drawn = [rng.choice(has, k, replace=k > len(has)) for has, k in zip(by_digit, counts, strict=True)]
        bags.append(rng.permutation(np.concatenate(drawn)))
    return bags


def shares_of(images: Images, bags: Sequence[np.ndarray]) -> Tensor:
    """Return the share of every digit in each bag, `(b, 10)`, on the device of the images."""
    counts = np.stack([np.bincount(images.digits[bag], minlength=DIGITS) / len(bag) for bag in bags])
    return torch.from_numpy(counts).float().to(images.pixels.device)

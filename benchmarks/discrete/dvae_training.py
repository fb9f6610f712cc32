"""One trial of the discrete VAE: train all seeds side by side, then test with exact samples and divergences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.discrete.dvae_distribution import choice_distribution, divergence, quick_divergence, softmax_divergence
from benchmarks.discrete.dvae_methods import EstimatorSampler, Sampler, distribution_scale, make_sampler
from benchmarks.discrete.replicas import Replicas, make_adam
from benchmarks.lib.data import data_folder, read_arrays
from benchmarks.lib.records import Record, RunContext
from setgrad.discrete import AIMLE
from setgrad.errors import DataError, SolverError
from setgrad.selector import resolve_device

GROUPS, ITEMS, PIXELS = 20, 20, 784
HELD_OUT = 10_000
# Factors of the logits, of which validation images choose one. The distribution of the sampler need not be the best.
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Fields of a record that have one entry for each replica.
SCORES = ("nelbo", "tuned", "validation", "error", "papers", "papers / S")


@final
@dataclass(frozen=True)
class Trial:
    """One method with one value of its tuned option, for `replicas` seeds from 0 on."""

    k: int
    model: str
    option: float
    noise: str
    loss: str
    samples: int
    replicas: int
    epochs: int
    batch: int = 100
    rate: float = 1e-3
    # At most this many images for training, and for validation and test.
    trained: int = 50_000
    tested: int = 10_000
    # Exact samples of a test image.
    drawn: int = 10
    widths: tuple[int, ...] = (512, 256)

    @property
    def seed(self) -> int:
        """The seed of torch's global generator, which draws the noise of all replicas."""
        return 0

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        option = f" {self.option:g}" if self.option else ""
        return f"k = {self.k}, {self.model}{option}, {self.noise or 'exact'}, S = {self.samples}, {self.loss}"


@final
class Autoencoder(nn.Module):
    """Maps an image to the logits of 20 choices among 20 items, and 20 choices to an image."""

    def __init__(self, widths: tuple[int, ...], replicas: int) -> None:
        super().__init__()
        seeds = tuple(range(replicas))
        self.encoder = Replicas((PIXELS, *widths, GROUPS * ITEMS), seeds)
        self.decoder = Replicas((GROUPS * ITEMS, *reversed(widths), PIXELS), tuple(1000 + seed for seed in seeds))

    def theta(self, images: Tensor) -> Tensor:
        """Return logits (replicas, images, groups, items) of images (replicas, images, pixels)."""
        logits: Tensor = self.encoder(images)
        return logits.unflatten(-1, (GROUPS, ITEMS))

    def losses(self, z: Tensor, images: Tensor) -> Tensor:
        """Return cross-entropies (S, replicas, images) of pixels for choices (S, replicas, images, groups, items)."""
        samples, replicas, count = z.shape[:3]
        logits = self.decoder(z.movedim(0, 1).reshape(replicas, samples * count, -1))
        truth = images[:, None].expand(-1, samples, -1, -1)
        logits = logits.unflatten(1, (samples, count))
        each = nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").sum(-1)
        return each.movedim(1, 0)


def penalty(theta: Tensor, trial: Trial) -> Tensor:
    """Return the divergence that a loss adds for each image: the true one, the published one, or the latter over S."""
    if trial.loss == "elbo":
        return quick_divergence(theta * distribution_scale(trial.noise, trial.k), trial.k).sum(-1)
    divergences = softmax_divergence(theta).sum(-1)
    return divergences / trial.samples if trial.loss == "papers / S" else divergences


def read_parts(trial: Trial, data_dir: str | Path | None, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return training, validation and test images, (n, pixels) in bytes: 50,000, 10,000 and 10,000 as published."""
    path = data_folder(data_dir, "mnist", "the images of MNIST") / "mnist.npz"
    known, unseen = (torch.from_numpy(part).flatten(1) for part in read_arrays(path, ("x_train", "x_test")))
    held = min(HELD_OUT, len(known) // 6)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(known)))
    train, validation = known[order[held:]][: trial.trained], known[order[:held]][: trial.tested]
    return train.to(device), validation.to(device), unseen[: trial.tested].to(device)


def batches(images: Tensor, trial: Trial) -> Iterator[Tensor]:
    """Yield batches (replicas, batch, pixels) from 0 to 1 of one epoch; each replica has its own order."""
    draws = [torch.Generator().manual_seed(seed) for seed in range(trial.replicas)]
    for _ in range(trial.epochs):
        orders = torch.stack([torch.randperm(len(images), generator=draw) for draw in draws]).to(images.device)
        for first in range(0, len(images) - trial.batch + 1, trial.batch):
            yield images[orders[:, first : first + trial.batch]].float() / 255


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train and test."""
    device = resolve_device(context.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    train, validation, test = read_parts(trial, context.data_dir, device)
    model = Autoencoder(trial.widths, trial.replicas).to(device)
    sampler = make_sampler(
        trial.model, k=trial.k, option=trial.option, noise=trial.noise, samples=trial.samples, replicas=trial.replicas
    ).to(device)
    try:
        curve, published = fit(model, sampler, train, validation[:2000], trial)
        return {"curve": curve, "published": published, **examine(model, sampler, validation, test, trial)}
    except (DataError, SolverError) as error:
        if all(weights.isfinite().all() for weights in model.parameters()):
            raise
        # Diverging weights are a result. Replicas are trained together, so one of them ends all.
        lost = dict.fromkeys(SCORES, [math.nan] * trial.replicas)
        return {"curve": [], "published": [], **lost, "factor": [], "alpha": [], "summary": f"diverged: {error}"}


def fit(
    model: Autoencoder, sampler: Sampler, train: Tensor, shown: Tensor, trial: Trial
) -> tuple[list[list[float]], list[list[float]]]:
    """Train; return negative ELBO and published loss of the images `shown` after each epoch, for each replica."""
    adam = make_adam(model, trial.rate)
    scale = torch.full((trial.replicas,), distribution_scale(trial.noise, trial.k), device=train.device)
    steps = max(1, len(train) // trial.batch)
    curve, published = [], []
    for number, images in enumerate(batches(train, trial), 1):
        theta = model.theta(images)
        # Sums, not means: the lambda of IMLE is relative to the gradient of one image. Adam ignores the scale.
        loss = sampler(theta, partial(model.losses, images=images)).sum() + penalty(theta, trial).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if number % steps == 0:
            curve.append(bound(model, shown, trial.k, scale, drawn=1).tolist())
            error, soft = as_published(model, sampler, shown)
            published.append((error + soft).tolist())
    return curve, published


def examine(model: Autoencoder, sampler: Sampler, validation: Tensor, test: Tensor, trial: Trial) -> Record:
    """Return the scores of the test images, as lists with one entry for each replica."""
    own = torch.full((trial.replicas,), distribution_scale(trial.noise, trial.k), device=test.device)
    tried = torch.stack([bound(model, validation, trial.k, factor * own, drawn=1) for factor in SCALES])
    best, which = tried.min(0)
    factor = torch.tensor(SCALES, device=test.device)[which]
    exact, tuned = (bound(model, test, trial.k, scale, drawn=trial.drawn) for scale in (own, factor * own))
    error, soft = as_published(model, sampler, test)
    scores = {
        "nelbo": exact,
        "tuned": tuned,
        "validation": best,
        "factor": factor,
        "error": error,
        "papers": error + soft,
        "papers / S": error + soft / trial.samples,
        "alpha": torch.stack([one.alpha for one in _adaptive(sampler)]) if _adaptive(sampler) else torch.tensor([]),
    }
    summary = f"negative ELBO {statistics.fmean(exact.tolist()):.1f}, scaled {statistics.fmean(tuned.tolist()):.1f}"
    return {**{name: values.tolist() for name, values in scores.items()}, "summary": summary}


def _adaptive(sampler: Sampler) -> list[AIMLE]:
    if not isinstance(sampler, EstimatorSampler):
        return []
    return [one for one in sampler.estimators if isinstance(one, AIMLE)]


@torch.no_grad()
def bound(model: Autoencoder, images: Tensor, k: int, scale: Tensor, *, drawn: int) -> Tensor:
    """Return the mean negative ELBO of each replica, with exact samples and divergence of the logits scale * theta."""
    total = torch.zeros_like(scale)
    for part in images.split(500):
        batch = _shared(part, len(scale))
        theta = model.theta(batch) * scale[:, None, None, None]
        errors = model.losses(choice_distribution(theta, k).sample(drawn), batch).mean(0)
        total += (errors + divergence(theta, k).sum(-1)).sum(-1)
    return total / len(images)


@torch.no_grad()
def as_published(model: Autoencoder, sampler: Sampler, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy with the points of training, also soft ones, and the divergence of the softmax."""
    learns = sampler.training
    sampler.eval()
    replicas = len(model.encoder.biases[0])
    errors, soft = torch.zeros(2, replicas, device=images.device)
    for part in images.split(500):
        batch = _shared(part, replicas)
        theta = model.theta(batch)
        errors += model.losses(sampler.draw(theta), batch).mean(0).sum(-1)
        soft += softmax_divergence(theta).sum((-1, -2))
    sampler.train(learns)
    return errors / len(images), soft / len(images)


def _shared(images: Tensor, replicas: int) -> Tensor:
    return (images.float() / 255).expand(replicas, -1, -1)

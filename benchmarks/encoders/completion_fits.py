"""One trial of image completion: training with a gradient of the context, and a test on growing streams of pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from benchmarks.encoders.pixels import (
    FLOORS,
    Completion,
    Gaussian,
    as_sets,
    draw_order,
    encode,
    growing_codes,
    make_encoder,
    nll,
    places,
    read_images,
)
from benchmarks.lib.data import shift_and_mirror
from benchmarks.lib.records import Record, RunContext
from setgrad.selector import resolve_device

# Encoder and gradient of the context.
CONTENDERS = {
    "deepsets sample": ("deepsets", "sample"),
    "deepsets full": ("deepsets", "full"),
    "deepsets subset": ("deepsets", "subset"),
    "sse sample": ("sse", "sample"),
    "hierarchical sample": ("hierarchical", "sample"),
    "umbc sample": ("umbc", "sample"),
    "umbc full": ("umbc", "full"),
    "umbc subset": ("umbc", "subset"),
    "fspool subset": ("fspool", "subset"),
    "fspool full": ("fspool", "full"),
    "diff-em subset": ("diff-em", "subset"),
    "diff-em full": ("diff-em", "full"),
    "transformer subset": ("transformer", "subset"),
    "transformer full": ("transformer", "full"),
    "gaussian": ("gaussian", "none"),
}
NOISES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15)
SIZES = {"mnist": (50, 100, 200, 300, 400, 500, 784), "olivetti": (50, 100, 200, 300, 400, 500, 1000, 4096)}
PICTURES = 2

# From images and orders of their pixels to mean and deviation of all pixels, for each size of the context.
Predict = Callable[[Tensor, Tensor], Iterable[tuple[Tensor, Tensor]]]


@final
@dataclass(frozen=True)
class Trial:
    """One training run and its test."""

    images: str
    model: str
    seed: int
    steps: int = 3000
    batch: int = 64
    dim: int = 128
    slots: int = 128
    rate: float = 1e-3
    # Pixels of a chunk, and of the contexts of a training step.
    chunk: int = 100
    fewest: int = 100
    most: int = 500
    # Pixels that a training step is scored on; images to train and to test on, at most.
    targets: int = 784
    trained: int = 60_000
    tested: int = 2000
    # Pixels of the largest context of the test.
    largest: int = 4096

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pixels of the contexts of the test."""
        return tuple(size for size in SIZES[self.images] if size <= self.largest)

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.images}, {self.model}, seed {self.seed}"


def images_file(results: Path, images: str, model: str) -> Path:
    """Return the file of a few completed images."""
    return results.parent / f"{results.stem}-images" / f"{images}-{model.replace(' ', '-')}.npz"


def attempt(trial: Trial, context: RunContext, results: str | None) -> Record:
    """Train and test; seed 0 saves a few completed images beside the file of records, if there is one."""
    record, images = measure(trial, context)
    if trial.seed == 0 and results is not None:
        path = images_file(Path(results), trial.images, trial.model)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, allow_pickle=False, **images)
    return record


def measure(trial: Trial, context: RunContext) -> tuple[Record, dict[str, np.ndarray]]:
    """Train and test; return scores, and a few test images as bytes with their completions."""
    device, sizes, floor = resolve_device(context.device), trial.sizes, FLOORS[trial.images]
    train, test = (part.to(device) for part in read_images(trial.images, context.data_dir, trial.seed))
    train, test = train[: trial.trained], test[: trial.tested]
    name, gradient = CONTENDERS[trial.model]
    loss = None
    if name == "gaussian":
        predict = partial(predict_gaussian, fit_gaussian(train, floor), sizes=sizes)
    else:
        model = Completion(make_encoder(name, trial.dim, trial.slots), trial.dim, floor).to(device)
        loss = fit(model, train, trial, gradient)
        predict = partial(predict_network, model.eval(), sizes=sizes, chunk=trial.chunk, in_chunks=gradient == "subset")
    # The same streams of pixels for all models and seeds.
    order = draw_order(len(test), test[0].numel(), torch.Generator().manual_seed(0)).to(device)
    scores, completed = score_contexts(test, order, predict, len(sizes))
    # Ten images of a person follow each other in Olivetti.
    shown = slice(0, None, 10 if trial.images == "olivetti" else 1)
    truth, order, completed = (
        test.flatten(1)[shown][:PICTURES],
        order[shown][:PICTURES],
        completed[:, shown][:, :PICTURES],
    )
    images = {"truth": _bytes(truth), "order": order.cpu().numpy(), "made": _bytes(completed)}
    summary = ", ".join(f"{scores['nll'][sizes.index(n)]:.3f} at {n}" for n in (100, 500))
    return {**scores, "sizes": list(sizes), "loss": loss, "summary": summary}, images


def fit(model: Completion, train: Tensor, trial: Trial, gradient: str) -> float:
    """Train with Adam and a cosine schedule; return the mean loss of the last steps."""
    device = train.device
    generator, rng = torch.Generator(device).manual_seed(trial.seed), np.random.default_rng(trial.seed)
    where = places(*train.shape[1:]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), trial.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trial.steps)
    last_losses = []
    for step in range(trial.steps):
        images = train[torch.randint(len(train), (trial.batch,), generator=generator, device=device)]
        if trial.images == "olivetti":
            images = shift_and_mirror(images, generator)
        order = draw_order(trial.batch, len(where), generator)[:, : rng.integers(trial.fewest, trial.most + 1)]
        code = encode(model.encoder, as_sets(images, where, order), gradient, trial.chunk, rng)
        targets = torch.randperm(len(where), generator=generator, device=device)[: trial.targets]
        mean, deviation = model.decode(code, where[targets])
        loss = nll(mean, deviation, images.flatten(1)[:, targets]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step >= trial.steps - 100:
            last_losses.append(loss.detach())
    return float(torch.stack(last_losses).mean())


def fit_gaussian(train: Tensor, floor: float) -> Gaussian:
    """Return the model with the noise that suits the last sixth of the images best, with contexts of 200 pixels."""
    held = max(1, len(train) // 6)
    few = train[-held:][:100]
    order = draw_order(len(few), few[0].numel(), torch.Generator().manual_seed(1)).to(train.device)[:, :200]
    model = Gaussian(train[:-held], floor)
    scores = {}
    for noise in [noise for noise in NOISES if noise >= floor]:
        model.noise = noise
        scores[noise] = float(nll(*model.predict(few, order), few.flatten(1)).mean())
    return Gaussian(train, min(scores, key=scores.__getitem__))


@torch.no_grad()
def score_contexts(test: Tensor, order: Tensor, predict: Predict, sizes: int) -> tuple[dict[str, list[float]], Tensor]:
    """Return the scores for every size of the context, and the predicted images `(sizes, n, pixels)`."""
    surprise, square, completed = torch.zeros(sizes), torch.zeros(sizes), []
    step = max(1, 200_000 // order.shape[1])
    for start in range(0, len(test), step):
        part, values = test[start : start + step], test[start : start + step].flatten(1)
        means = []
        for number, (mean, deviation) in enumerate(predict(part, order[start : start + step])):
            surprise[number] += float(nll(mean, deviation, values).sum())
            square[number] += float((mean - values).square().sum())
            means.append(mean)
        completed.append(torch.stack(means))
    scores = {"nll": surprise / test.numel(), "rmse": (square / test.numel()).sqrt()}
    return {name: [round(float(v), 5) for v in values] for name, values in scores.items()}, torch.cat(completed, 1)


def predict_network(
    model: Completion, images: Tensor, order: Tensor, *, sizes: Sequence[int], chunk: int, in_chunks: bool
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield the predictions of the network for growing contexts."""
    where = places(*images.shape[1:]).to(images.device)
    for code in growing_codes(model.encoder, images, where, order, sizes, chunk=chunk, in_chunks=in_chunks):
        yield model.decode(code, where)


def predict_gaussian(
    model: Gaussian, images: Tensor, order: Tensor, *, sizes: Sequence[int]
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield the predictions of the normal distribution for growing contexts."""
    for size in sizes:
        # The covariance of the context with all pixels is in memory for every image of a chunk.
        step = max(1, 2**27 // (size * order.shape[1]))
        parts = [model.predict(images[i : i + step], order[i : i + step, :size]) for i in range(0, len(images), step)]
        yield torch.cat([mean for mean, _ in parts]), torch.cat([deviation for _, deviation in parts])


def _bytes(x: Tensor) -> np.ndarray:
    return x.clamp(0, 1).mul(255).round().byte().cpu().numpy()

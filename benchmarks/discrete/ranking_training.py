"""One trial of retrieval: train an embedding on a part of the classes, for all seeds together; rank other classes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, normalize

from benchmarks.discrete.ranking_methods import CLASSIFIER, MODELS, PLAIN
from benchmarks.discrete.replicas import Replicas, make_adam
from benchmarks.lib.data import read_images, shift_and_mirror
from benchmarks.lib.records import Record, RunContext
from setgrad.discrete import Ranking, recall_at_k
from setgrad.selector import resolve_device

# How often a training run is validated.
EVALUATIONS = 10


@final
@dataclass(frozen=True)
class Images:
    """How a collection is used: classes for training, validation and test, and images of each class."""

    classes: tuple[int, int, int]
    # Classes and images of a class in a batch; images of a class to choose and to test with, at most.
    batch: tuple[int, int]
    asked: int
    pool: int
    moved: bool


IMAGES = {
    "olivetti": Images((20, 8, 12), (16, 8), 10, pool=2, moved=True),
    "mnist": Images((5, 2, 3), (5, 24), 400, pool=1, moved=False),
}


@final
@dataclass(frozen=True)
class Trial:
    """One method with one value of its option, for `replicas` seeds from 0 on, each with its own classes."""

    images: str
    model: str
    option: float
    rate: float
    steps: int
    replicas: int
    hidden: int = 256
    dim: int = 64
    decay: float = 1e-3
    # Images of a class to test on, at most, if fewer than usual.
    asked: int = 400

    @property
    def seed(self) -> int:
        """The seed of torch's global generator."""
        return 0

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        option = f" {self.option:g}" if self.option else ""
        return f"{self.images}, {self.model}{option}" + (f", rate {self.rate:g}" if self.rate else "")


@final
@dataclass(frozen=True)
class Split:
    """Bytes (n, height, width) on a device, and indices of the images (classes, images) of each part.

    The test part is drawn from the test half of MNIST; classes of the parts are always different.
    """

    pixels: Tensor
    parts: tuple[Tensor, Tensor, Tensor]
    pool: int
    moved: bool

    def take(self, numbers: Tensor, *, move: torch.Generator | None = None) -> Tensor:
        """Return features of images, about -1 to 1: (*numbers.shape, features); with `move`, shifted and mirrored."""
        images = self.pixels[numbers.flatten()].float() / 127.5 - 1
        if move is not None and self.moved:
            images = shift_and_mirror(images, move)
        return avg_pool2d(images[:, None], self.pool).flatten(1).unflatten(0, numbers.shape)


@lru_cache(maxsize=16)  # reading takes as long as a training run, and a process has many
def read_split(name: str, data_dir: str | Path | None, seed: int, device: torch.device, *, asked: int) -> Split:
    """Return the split of a collection; the seed sets the validation and test classes."""
    rng = np.random.default_rng(seed)
    used = IMAGES[name]
    read = read_images(name, data_dir, rng)
    labels, kinds = read.labels, rng.permutation(np.unique(read.labels))
    # People are separated by class alone; for digits, queries are images of the test half.
    known = np.arange(len(labels)) if name == "olivetti" else np.concatenate(read.parts[:2])
    last = known if name == "olivetti" else read.parts[2]
    groups = np.split(kinds, np.cumsum(used.classes)[:2])
    most = min(asked, used.asked)
    parts = []
    for classes, pool, limit in zip(groups, (known, known, last), (None, most, most), strict=True):
        members = [np.sort(pool[labels[pool] == kind])[:limit] for kind in classes]
        fewest = min(map(len, members))
        parts.append(torch.from_numpy(np.stack([m[:fewest] for m in members])).to(device))
    train, validation, test = parts
    return Split(torch.from_numpy(read.pixels).to(device), (train, validation, test), used.pool, used.moved)


@final
class Embedding(nn.Module):
    """Unit vectors, and one vector for each training class if it is trained as a classifier."""

    def __init__(self, features: int, trial: Trial) -> None:
        super().__init__()
        self.network = Replicas((features, trial.hidden, trial.dim), tuple(range(trial.replicas)))
        classes = IMAGES[trial.images].classes[0] if trial.model == CLASSIFIER else 0
        self.classes = nn.Parameter(torch.randn(trial.replicas, classes, trial.dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings (replicas, images, dim) of features (replicas, images, features)."""
        return normalize(self.network(x), dim=-1)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train if there is something to train, and test; lists of one number for each replica."""
    device = resolve_device(context.device)
    read = partial(read_split, trial.images, context.data_dir, device=device, asked=trial.asked)
    splits = [read(seed) for seed in range(trial.replicas)]
    scores = examine_plain(trial, splits) if trial.model in PLAIN else learn(trial, splits)
    summary = f"MAP {statistics.fmean(scores['map']):.1f}, r@1 {statistics.fmean(scores['recall']):.1f}"
    return {**scores, "summary": summary}


def learn(trial: Trial, splits: list[Split]) -> Record:
    """Train; each replica is tested with the weights that ranked its validation classes best."""
    device = splits[0].pixels.device
    draw = torch.Generator(device).manual_seed(0)
    features = splits[0].take(splits[0].parts[0][:1, :1]).shape[-1]
    model = Embedding(features, trial).to(device)
    adam = make_adam(model, trial.rate, decay=trial.decay)
    validation, test = (gather(splits, part) for part in (1, 2))
    evaluated = {round((i + 1) * trial.steps / EVALUATIONS) for i in range(EVALUATIONS)}
    history = []
    for step in range(1, trial.steps + 1):
        kinds, images = draw_batch(splits, IMAGES[trial.images].batch, draw)
        adam.zero_grad()
        objective(model, images, kinds, trial).backward()
        adam.step()
        if step in evaluated:
            with torch.no_grad():
                history.append([*score(model(validation[0]), validation[1]), *score(model(test[0]), test[1])])
    scores = torch.stack([torch.stack(row) for row in history])
    best = scores[:, 0].argmax(0)
    map_, recall, validated = (scores[best, i, torch.arange(len(best), device=device)] for i in (2, 3, 0))
    curve = [row.tolist() for row in scores[:, 0]]
    return {"map": map_.tolist(), "recall": recall.tolist(), "validation": validated.tolist(), "curve": curve}


def draw_batch(splits: list[Split], shape: tuple[int, int], draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random classes and images of each, (replicas, classes) and (replicas, classes * images, features)."""
    classes, count = shape
    kinds, images = [], []
    for split in splits:
        members = split.parts[0]
        kind = torch.randperm(len(members), generator=draw, device=draw.device)[:classes]
        which = torch.rand(len(kind), members.shape[1], generator=draw, device=draw.device).topk(count, -1).indices
        kinds.append(kind)
        images.append(split.take(members[kind].gather(1, which).flatten(), move=draw))
    return torch.stack(kinds), torch.stack(images)


def objective(model: Embedding, images: Tensor, kinds: Tensor, trial: Trial) -> Tensor:
    """Return the loss of a batch, summed over queries and replicas: lambda is relative to the gradient of one query."""
    codes = model(images)
    count = images.shape[1] // kinds.shape[1]
    if trial.model == CLASSIFIER:
        logits = codes @ normalize(model.classes, dim=-1).mT / trial.option
        return cross_entropy(logits.flatten(0, 1), kinds.repeat_interleave(count, 1).flatten(), reduction="sum")
    labels = torch.arange(kinds.shape[1], device=images.device).repeat_interleave(count)
    similarities, relevant = without_self(codes @ codes.mT, labels)
    return MODELS[trial.model].make(trial.option)(similarities, relevant).sum()


def without_self(similarities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return similarities without the query itself, (replicas, n, n - 1), and which of the others have its class."""
    n = len(labels)
    others = torch.arange(n - 1, device=labels.device) + (
        torch.arange(n - 1, device=labels.device) >= torch.arange(n, device=labels.device)[:, None]
    )
    relevant = labels[others] == labels[:, None]
    return similarities.gather(-1, others.expand(*similarities.shape[:-1], -1)), relevant


def gather(splits: list[Split], part: int) -> tuple[Tensor, Tensor]:
    """Return all images of a part (replicas, images, features) and their classes."""
    fewest = min(split.parts[part].shape[1] for split in splits)
    numbers = [split.parts[part][:, :fewest] for split in splits]
    labels = torch.arange(len(numbers[0]), device=numbers[0].device).repeat_interleave(fewest)
    return torch.stack([s.take(n.flatten()) for s, n in zip(splits, numbers, strict=True)]), labels


def score(codes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean average precision and recall at 1, in percent, with every image as a query to all others."""
    similarities, relevant = without_self(codes @ codes.mT, labels)
    ranks = Ranking()(similarities)
    relevant = relevant.expand_as(ranks)
    recall = recall_at_k(ranks, relevant, k=1).mean(-1)
    return 100 * average_precision(ranks, relevant).mean(-1), 100 * recall


def average_precision(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Return the mean over relevant items of the share of relevant items up to their rank."""
    order = ranks.argsort(-1)
    hits = relevant.gather(-1, order).to(ranks.dtype)
    place = torch.arange(1, ranks.shape[-1] + 1, dtype=ranks.dtype, device=ranks.device)
    return (hits * hits.cumsum(-1) / place).sum(-1) / hits.sum(-1).clamp(min=1)


def examine_plain(trial: Trial, splits: list[Split]) -> Record:
    """Return the scores of features that are not trained by a loss of similarities."""
    scores: dict[str, list[float]] = {"map": [], "recall": [], "validation": []}
    for seed, split in enumerate(splits):
        train, labels = gather_some(split, 500)
        validation, test = (gather([split], part) for part in (1, 2))
        encode = _plain(trial, seed, train, labels)
        with torch.no_grad():
            scores["validation"].append(float(score(encode(validation[0]), validation[1])[0]))
            map_, recall = score(encode(test[0]), test[1])
        scores["map"].append(float(map_))
        scores["recall"].append(float(recall))
    return {**scores, "curve": []}


def gather_some(split: Split, most: int) -> tuple[Tensor, Tensor]:
    """Return training images, at most `most` of a class, and their classes."""
    numbers = split.parts[0][:, :most]
    return split.take(numbers).flatten(0, 1), torch.arange(len(numbers)).repeat_interleave(numbers.shape[1])


def _plain(trial: Trial, seed: int, train: Tensor, labels: Tensor) -> partial[Tensor]:
    mean = train.mean(0)
    if trial.model == "pixels":
        return partial(_centred, mean=mean, directions=None)
    if trial.model == "random network":
        network = Replicas((train.shape[-1], trial.hidden, trial.dim), (seed,)).to(train.device)
        return partial(_random, network=network)
    if trial.model == "pca":
        directions = torch.linalg.svd(train - mean, full_matrices=False).Vh[: int(trial.option)].mT
        return partial(_centred, mean=mean, directions=directions)
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    most = min(int(trial.option), len(labels.unique()) - 1)
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto", n_components=most)
    lda.fit(train.cpu().double().numpy(), labels.numpy())
    directions = torch.from_numpy(np.ascontiguousarray(lda.scalings_[:, :most])).to(train)
    return partial(_centred, mean=mean, directions=directions)


def _centred(x: Tensor, *, mean: Tensor, directions: Tensor | None) -> Tensor:
    x = x - mean
    return normalize(x if directions is None else x @ directions, dim=-1)


def _random(x: Tensor, *, network: Replicas) -> Tensor:
    return normalize(network(x), dim=-1)

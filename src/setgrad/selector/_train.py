"""The training loop: shuffled batches, early stopping, checkpoints after every epoch.

All random numbers of an epoch follow from the seed and the number of the epoch, so a run that was killed goes on
exactly as it would have.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import TrainingError
from setgrad.functions import FreshNoise
from setgrad.inference import AllItems, SampledNegatives, SubsetLoss
from setgrad.selector._allowed import Allowed
from setgrad.selector._constrained import ConstrainedLoss
from setgrad.selector._infer import finite_logits
from setgrad.selector._model import ChoiceModel
from setgrad.selector._rows import RowWeights, can_be_rows, together_pays
from setgrad.selector._weights import Batch, Descent, OwnWeights, Weights, part_of
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.sets import Choices, subset_sizes

LOSSES = ("all", "negatives")
# Draws of the noise that judge an epoch under a constraint.
_JUDGE_SAMPLES = 8
# Validation features so many times as large as those of training are to blame for what a model cannot judge.
_EXTREME = 100
_DRAWING = threading.RLock()


@final
@dataclass(frozen=True)
class TrainOptions:
    """Numbers that steer the training."""

    loss: str
    learning_rate: float
    weight_decay: float
    batch_size: int
    max_epochs: int
    patience: int
    clip: float
    warmup: int
    average: float
    seed: int


@final
@dataclass
class Progress:
    """Where a training run stands; with the state of the optimiser, all that is needed to go on."""

    epoch: int = 0
    best_epoch: int = 0
    best_score: tuple[float, float] = (-1.0, -math.inf)
    history: list[dict[str, float]] = field(default_factory=list)

    def stop(self, options: TrainOptions) -> bool:
        """Whether the run is over."""
        return self.epoch >= options.max_epochs or self.epoch - self.best_epoch >= options.patience


@final
class Trainer:
    """Trains a model in place and keeps the weights of the best epoch."""

    def __init__(
        self,
        model: ChoiceModel,
        train: Choices,
        validation: Choices,
        weights: Tensor | None,
        options: TrainOptions,
        allowed: tuple[Allowed, Allowed] | None = None,
        names: Callable[[int], str] = "validation set {}".format,
    ) -> None:
        self.model, self.train_data, self.validation, self.options = model, train, validation, options
        # What a user calls a validation set.
        self.names = names
        # The constraints on the training and on the validation subsets, if they were chosen under one.
        self.allowed = allowed
        self.weights = None if weights is None else weights.to(train.sets.device)
        # Rows of the items: sets, subsets and weights of a batch are taken with one look at where the sets lie.
        self.rows = train.sets.with_values(torch.arange(train.sets.layout.total, device=train.sets.device))
        self.sizes = subset_sizes(train.subsets)
        self.validation_sizes = subset_sizes(validation.subsets)
        descent = Descent(options.weight_decay, options.clip)
        # A constraint has solvers in its loss, which know nothing of members.
        together = allowed is None and can_be_rows(model) and together_pays(model, train.sets, options.loss)
        self.parts: Weights = RowWeights(model, descent) if together else OwnWeights(model, descent)
        self.progress = Progress()
        self.best = self.parts.average()

    def run(self, report: Callable[[dict[str, float]], None], save: Callable[[Trainer], None] | None) -> Progress:
        """Train until the validation score stops rising, then put the best weights into the model."""
        while not self.progress.stop(self.options):
            report(self._epoch())
            if save is not None:
                save(self)
        self.model.load_state_dict(self.best)
        return self.progress

    def _epoch(self) -> dict[str, float]:
        options, progress, started = self.options, self.progress, time.perf_counter()
        seeds = np.random.SeedSequence([options.seed, progress.epoch]).generate_state(4)
        if self.model.config.phi is None:
            # Nothing of ours draws from torch's own generators, but a phi of the user's own may, for dropout.
            seed_torch(int(seeds[3]), self.train_data.sets.device)
        noise, losses = FreshNoise(int(seeds[0])), self._losses(int(seeds[1]))
        order = np.random.default_rng(seeds[2]).permutation(len(self.train_data))
        batches = np.array_split(order, max(1, math.ceil(len(order) / options.batch_size)))
        total = torch.zeros(2, device=self.train_data.sets.device)
        self.model.train()
        for number, numbers in enumerate(batches):
            step = progress.epoch * len(batches) + number
            total += self._step(numbers, noise, losses(numbers), step) * len(numbers)
        progress.epoch += 1
        mean_loss, settled = (total / len(order)).tolist()
        if not math.isfinite(mean_loss):
            raise self._diverged(f"the loss is {mean_loss}")
        score = self._validate()
        if score > progress.best_score:
            progress.best_score, progress.best_epoch = score, progress.epoch
            self.best = self.parts.average()
        record = {
            "epoch": progress.epoch,
            "loss": mean_loss,
            "validation_jaccard": score[0],
            "validation_loss": -score[1],
            "settled": settled,
            "seconds": time.perf_counter() - started,
        }
        progress.history.append(record)
        return record

    def _diverged(self, what: str) -> TrainingError:
        options = self.options
        return TrainingError(
            f"{what} in epoch {self.progress.epoch}: training diverged. Lower learning_rate (now "
            f"{options.learning_rate}) or clip (now {options.clip}), or keep standardize=True; look for features of "
            "extreme size"
        )

    def _losses(self, seed: int) -> Callable[[np.ndarray], SubsetLoss]:
        """The loss of an epoch, for the training sets with given numbers."""
        if self.allowed is None:
            loss = make_loss(self.options.loss, seed)
            return lambda numbers: loss
        allowed, seeds = self.allowed[0], np.random.default_rng(seed)
        samples = self.model.config.samples
        return lambda numbers: ConstrainedLoss(allowed.take(numbers), samples, int(seeds.integers(2**63)))

    def _step(self, numbers: np.ndarray, noise: FreshNoise, loss: SubsetLoss, step: int) -> Tensor:
        options = self.options
        rows = self.rows.take(numbers)
        sets, subsets = (rows.with_values(part.values[rows.values]) for part in self.train_data)
        weights = None if self.weights is None else self.weights[rows.values]
        batch = Batch(sets, subsets, weights, loss.coordinates(subsets, self.sizes[numbers]), loss)
        rate = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup))
        # The running mean of the weights starts as a plain mean and forgets at the given rate later on.
        keep = min(options.average, (step + 1) / (step + 10))
        return self.parts.step(batch, noise, rate, keep)

    def _validate(self) -> tuple[float, float]:
        sets, subsets = self.validation
        self.model.eval()
        logits = self.parts.infer(sets)
        if not bool(logits.isfinite().all()):
            held, known = (float(self.model.standardised(s).values.abs().max()) for s in (sets, self.train_data.sets))
            if held <= _EXTREME * known:
                raise self._diverged("logits of the validation sets are not finite")
            finite_logits(logits, sets, self.names)
        if self.allowed is None:
            top = pick_top(logits, sets, self.validation_sizes)
            loss = AllItems()(logits, subsets, None, None)
        else:
            # The same noise in every epoch, so that losses can be compared.
            top = self.allowed[1].choose(logits, sets)
            judge = ConstrainedLoss(self.allowed[1], _JUDGE_SAMPLES, self.options.seed)
            loss = judge(logits, subsets, None, None)
        # Rounded, so that among equally good epochs the one with the better likelihood wins.
        return round(float(jaccard(top, subsets).mean()), 5), -float(loss)


@contextmanager
def torch_draws(device: torch.device | None = None) -> Iterator[None]:
    """Torch's own generators, of the CPU and of one device, for us alone; the caller finds them as they were.

    They are one for all threads, so that fits in several threads take turns.
    """
    on_device = device is not None and device.type == "cuda"
    with _DRAWING, torch.random.fork_rng(devices=[device] if on_device else []):
        yield


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's own generators of the CPU and of one device, and no others: the caller puts these two back."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def make_loss(name: str, seed: int) -> SubsetLoss:
    """Make the loss that a name stands for."""
    return AllItems() if name == "all" else SampledNegatives(FreshNoise(seed))


def trainer_state(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors and all plain numbers of a run."""
    tensors = trainer.parts.state() | {f"best.{name}": value for name, value in trainer.best.items()}
    progress = trainer.progress
    numbers = {
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_score": list(progress.best_score),
        "history": progress.history,
    }
    return tensors, numbers


def restore_trainer(trainer: Trainer, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Put a run back where `trainer_state` found it."""
    trainer.parts.restore(tensors)
    device = trainer.model.mean.device
    trainer.best = {name: value.to(device) for name, value in part_of(tensors, "best.").items()}
    trainer.progress = Progress(
        numbers["epoch"], numbers["best_epoch"], tuple(numbers["best_score"]), list(numbers["history"])
    )

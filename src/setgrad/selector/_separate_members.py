"""Members that are trained by themselves: each has its own batches, noise and last epoch.

Two models may be trained so, of which the better one on the validation sets is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from torch import Tensor

from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import resolved
from setgrad.selector._partial_validation import score_sets
from setgrad.selector._tables import PARTIAL_LOSSES
from setgrad.selector._trainable_weights import with_prefix
from setgrad.selector._trainer import Progress, Trainer
from setgrad.selector._training import Training
from setgrad.selector.metrics import is_clear

# Standard errors by which the other model must be better on the validation sets.
_CLEAR = 1.0
# The mean over the members is recorded; seconds are added up.
_MEANS = ("loss", "validation_jaccard", "validation_loss", "converged")


@final
class SeparateMembers(Training):
    """Trains the members side by side, epoch by epoch, until the last one has finished.

    The first member is trained as if it were the only one, and more members leave the others as they are.

    Args:
        models: The model, and another one with as many members that is kept if it is clearly better.
        seed: The seed of the fit.
        make_trainer: Returns the trainer of a model with one member, from the model and the seed of its batches.
    """

    def __init__(
        self, models: Sequence[ChoiceModel], seed: int, make_trainer: Callable[[ChoiceModel, int], Trainer]
    ) -> None:
        others = np.random.SeedSequence(seed).spawn(models[0].config.members - 1)
        seeds = [seed, *(int(other.generate_state(1, np.uint64)[0]) for other in others)]
        self.models = tuple(models)
        runs = [[make_trainer(model.alone(number), own) for number, own in enumerate(seeds)] for model in models]
        self.trainers = [trainer for run in runs for trainer in run]
        self.model, self.kept, first = models[0], runs[0], self.trainers[0]
        self.train_data, self.validation = first.train_data, first.validation
        self.constraints, self.gradient = first.constraints, first.gradient
        self.max_epochs, self.monitor = first.max_epochs, first.monitor

    @property
    def name(self) -> str:
        """What a checkpoint must be of."""
        return "SeparateMembers" if len(self.models) == 1 else "SeparateMembers of two models"

    @property
    def history(self) -> list[dict[str, float]]:
        """The records of the epochs of the model that is kept, up to the last epoch of its longest run."""
        return [self._mean_record(epoch) for epoch in range(_epochs(self.kept))]

    @property
    def best_epoch(self) -> int:
        """The last of the best epochs of the members."""
        return max(trainer.best_epoch for trainer in self.kept)

    @property
    def is_finished(self) -> bool:
        """Whether all members have finished."""
        return all(trainer.is_finished for trainer in self.trainers)

    def run_epoch(self) -> dict[str, float]:
        """Train every unfinished member for one epoch."""
        for trainer in self.trainers:
            # Every member needs an epoch, at least of one batch.
            if not (trainer.is_finished or (self.monitor.is_stopped and trainer.best_epoch)):
                trainer.run_epoch()
        return self._mean_record(_epochs(self.trainers) - 1)

    def load_best(self) -> None:
        """Load the weights of the best epoch of each member, and keep the better model."""
        for trainer in self.trainers:
            trainer.load_best()
        if len(self.models) > 1:
            usual, other = map(self._scores, self.models)
            if is_clear(other - usual, _CLEAR):
                self.model, self.kept = self.models[1], self.trainers[len(self.kept) :]

    def _scores(self, model: ChoiceModel) -> Tensor:
        """Return the score of each of the validation sets with a model."""
        model.eval()
        first = self.trainers[0]
        loss = PARTIAL_LOSSES[resolved(model.config.options.loss)]
        return score_sets(model, first.watched, first.watched_sizes, loss, first.seed, first.processes)[0]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all tensors and all plain values of the members."""
        tensors: dict[str, Tensor] = {}
        numbers = []
        for index, trainer in enumerate(self.trainers):
            own_tensors, own_numbers = trainer.state()
            tensors |= {f"{index}.{name}": value for name, value in own_tensors.items()}
            numbers.append(own_numbers)
        return tensors, {"runs": numbers}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue every member from what `state` returned."""
        for index, (trainer, own) in enumerate(zip(self.trainers, numbers["runs"], strict=True)):
            trainer.restore(with_prefix(tensors, f"{index}."), own)

    def _mean_record(self, epoch: int) -> dict[str, float]:
        """Return the mean record of an epoch, counted from 0."""
        records = [_record_at(trainer.progress, epoch) for trainer in self.kept]
        means = {name: math.fsum(record[name] for record in records) / len(records) for name in _MEANS}
        return {"epoch": epoch + 1, **means, "seconds": math.fsum(record["seconds"] for record in records)}


def _epochs(trainers: Sequence[Trainer]) -> int:
    return max(trainer.progress.epoch for trainer in trainers)


def _record_at(progress: Progress, epoch: int) -> dict[str, float]:
    """Return the record of an epoch; after the last one, that of the best epoch, which took no time."""
    if epoch < progress.epoch:
        return progress.history[epoch]
    return {**progress.history[progress.best_epoch - 1], "seconds": 0.0}

"""The training loop: shuffled batches, early stopping, a checkpoint after every epoch and inside long ones.

All random numbers of a part of an epoch follow from the seed, the number of the epoch and that of the part, so a
resumed run gives the same result as one that was not interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import TrainingError, parameter
from setgrad.functions import FreshNoise
from setgrad.functions.noise import NoiseOfSome
from setgrad.inference import AllItems, PartialSubsetLoss, SubsetLoss, draw_partial_subsets
from setgrad.inference.partial import AtEveryPart
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._batched_inference import check_finite
from setgrad.selector._choice_gradient import ChoiceGradient, FenchelYoungGradient
from setgrad.selector._choice_loss import FenchelYoungLoss
from setgrad.selector._clock import Clock
from setgrad.selector._device import seed_torch
from setgrad.selector._examples import AbstractExamples, EpochPart, LoadedSets
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import resolved
from setgrad.selector._monitor import Monitor
from setgrad.selector._partial_validation import sets_to_validate, validate_completion
from setgrad.selector._processes import ALONE, Processes
from setgrad.selector._shared_examples import load_own
from setgrad.selector._stacked_weights import StackedWeights, can_be_stacked, is_stacking_faster
from setgrad.selector._tables import CONDITIONAL, LOSSES, PARTIAL_LOSSES
from setgrad.selector._trainable_weights import Batch, SeparateWeights, TrainableWeights, with_prefix
from setgrad.selector._training import Training
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.sets import Choices, Layout, subset_sizes

_WARMUP_STEPS = 50
# A better score, and a relative fall of the loss, that are worth more patience. Without the first, the last digits of a
# score near 1 kept training going; without the second, training ended where the score of a slow task stood still.
_NOTABLE_GAIN, _NOTABLE_FALL = 1e-3, 5e-3
# From this score on little can be gained, and a fall of the loss must be larger to be worth more patience.
_PERFECT, _NOTABLE_LOSS = 0.995, 1e-2
# Draws of the noise for the validation loss under a constraint.
_VALIDATION_SAMPLES = 8
# If validation features are this many times as large as those of training, they are the cause of logits that are not
# finite.
_EXTREME = 100


@final
@dataclass
class Progress:
    """The state of a training run beside its tensors.

    Attributes:
        epoch: Number of epochs.
        best_epoch: The epoch whose weights are kept.
        best_score: Its validation score, and minus its loss.
        gain_epoch: The last epoch with a notable gain of the score or fall of the loss, from which patience counts.
        gain_score: The validation score after the last notable gain.
        gain_loss: The validation loss after the last notable fall.
        history: One record for each epoch.
        step: Number of steps.
        part: Number of parts of the running epoch that are done.
        sums: Sums over the sets that were trained on in it: of the loss, and of whether inference converged.
        seen: The number of these sets.
        effort: The number of these sets or rows, as progress is told.
        seconds: How long they took.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: tuple[float, float] = (-1.0, -math.inf)
    gain_epoch: int = 0
    gain_score: float = -1.0
    gain_loss: float | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    part: int = 0
    sums: tuple[float, float] = (0.0, 0.0)
    seen: int = 0
    effort: int = 0
    seconds: float = 0.0


@final
class Trainer(Training):
    """Trains all members with the same batches and keeps the weights of the best epoch.

    Args:
        model: The model.
        train: The training sets.
        validation: The validation sets.
        constraints: The constraints on the training and the validation subsets, if they were chosen under one.
        name_of: Returns the name of a validation set for messages.
        gradient: How training under a constraint is differentiated.
        seed: Seed of the batches and of the noise.
        clock: The time for training; None for no limit.
        monitor: Is told about every batch, and may stop training; None for nobody.
        processes: The processes that train together.
    """

    def __init__(
        self,
        model: ChoiceModel,
        train: AbstractExamples,
        validation: Choices,
        constraints: tuple[BatchConstraint, BatchConstraint] | None = None,
        name_of: Callable[[int], str] = "validation set {}".format,
        gradient: ChoiceGradient | None = None,
        *,
        seed: int,
        clock: Clock | None = None,
        monitor: Monitor | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.model, self.config, self.train_data, self.validation = model, model.config, train, validation
        self.constraints, self.name_of, self.processes = constraints, name_of, processes
        self.gradient = FenchelYoungGradient() if gradient is None else gradient
        options = self.config.options
        self.max_epochs, self.patience = resolved(options.max_epochs), resolved(options.patience)
        self.validation_seconds: float | None = None
        self.seed, self.clock = seed, Clock(None) if clock is None else clock
        self.monitor = Monitor(0, self.max_epochs, train.work) if monitor is None else monitor
        # The sets that batches are taken from.
        self.loaded: LoadedSets | None = None
        self.window = -1
        self.sizes = train.sizes
        self.watched = validation
        if constraints is None and self._partial_loss is not None:
            trained = resolved(options.samples) * train.layout.total
            self.watched = sets_to_validate(validation, trained, self.seed)
        self.watched_sizes = subset_sizes(self.watched.subsets)
        # The loss under a constraint calls solvers, which cannot be mapped over members.
        is_stacked = (
            constraints is None
            and processes.count == 1
            and train.layout.longest <= model.config.largest_whole
            and can_be_stacked(model)
            and is_stacking_faster(model, train.layout, resolved(options.loss))
        )
        weight_decay, clip = options.weight_decay, options.clip
        self.trainable: TrainableWeights = (
            StackedWeights(model, weight_decay=weight_decay, clip=clip)
            if is_stacked
            else SeparateWeights(model, weight_decay=weight_decay, clip=clip, processes=processes)
        )
        self.progress = Progress()
        self.best = self.trainable.average()

    @property
    def history(self) -> list[dict[str, float]]:
        """One record for each epoch."""
        return self.progress.history

    @property
    def best_epoch(self) -> int:
        """The epoch whose weights are kept, counted from 1."""
        return self.progress.best_epoch

    @property
    def is_inside(self) -> bool:
        """Whether the run is between two parts of an epoch."""
        return self.progress.part > 0

    @property
    def is_finished(self) -> bool:
        """Whether no epoch or no time is left, or patience has run out."""
        progress = self.progress
        patience = self.patience
        if self._is_perfect:
            # Little gets better, but the first steps are small.
            patience = min(patience, max(math.ceil(patience / 4), math.ceil(_WARMUP_STEPS / self._steps)))
        is_over = progress.epoch > 0 and self.clock.is_over(self.validation_seconds or 0.0)
        return is_over or progress.epoch >= self.max_epochs or progress.epoch - progress.gain_epoch >= patience

    @property
    def _steps(self) -> int:
        """Number of steps of an epoch."""
        return max(1, math.ceil(len(self.train_data) / resolved(self.config.options.batch_size)))

    @property
    def _is_perfect(self) -> bool:
        return self.progress.best_score[0] >= _PERFECT

    def load_best(self) -> None:
        """Load the weights of the best epoch into the model."""
        self.model.load_state_dict(self.best)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all tensors and all plain values of the run."""
        tensors = self.trainable.state() | {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"gradient.{name}": value for name, value in self.gradient.state().items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from the tensors and values that `state` returned."""
        self.trainable.restore(tensors)
        device = self.model.mean.device
        self.best = {name: value.to(device) for name, value in with_prefix(tensors, "best.").items()}
        self.gradient.restore({name: value.to(device) for name, value in with_prefix(tensors, "gradient.").items()})
        kept = {part.name: numbers[part.name] for part in fields(Progress)}
        pairs = {name: tuple(kept[name]) for name in ("best_score", "sums")}
        self.progress = Progress(**{**kept, **pairs})
        self.clock.before = math.fsum(record["seconds"] for record in self.progress.history) + self.progress.seconds
        self.monitor.in_epoch += self.progress.effort

    def run_epoch(self) -> dict[str, float]:
        """Train for one epoch, or until training is stopped or its time is over, validate, and return the record."""
        with self.clock.running():
            return self._run_epoch()

    def _run_epoch(self) -> dict[str, float]:
        progress, started, before = self.progress, time.perf_counter(), self.progress.seconds
        order = self._seeds(0)[2]
        windows, parts = self.train_data.plan(int(order), resolved(self.config.options.batch_size))
        total = torch.tensor(progress.sums, device=self.train_data.device)
        self.model.train()
        first = parts[progress.part].window if progress.part < len(parts) else len(windows)
        with closing(load_own(self.train_data, windows, parts, first, self._own)) as windows_left:
            for number in range(progress.part, len(parts)):
                part = parts[number]
                if self.loaded is None or part.window != self.window:
                    self.loaded, self.window = next(windows_left), part.window
                is_over = self._run_part(part, number, total, started - before)
                progress.seconds = before + time.perf_counter() - started
                if is_over:
                    break
                progress.part, progress.sums = number + 1, tuple(total.tolist())
                if progress.part < len(parts):
                    self.save_part()
        self.loaded = None
        progress.epoch += 1
        mean_loss, converged = (total / progress.seen).tolist()
        progress.part, progress.seen, progress.effort, progress.sums, progress.seconds = 0, 0, 0, (0.0, 0.0), 0.0
        if not math.isfinite(mean_loss):
            raise self._divergence(f"the loss is {mean_loss}")
        validated = time.perf_counter()
        score = self._validate()
        self.validation_seconds = time.perf_counter() - validated
        if score > progress.best_score:
            progress.best_score, progress.best_epoch = score, progress.epoch
            self.best = self.trainable.average()
        self._note_gain(score[0], -score[1])
        record = {
            "epoch": progress.epoch,
            "loss": mean_loss,
            "validation_jaccard": score[0],
            "validation_loss": -score[1],
            "converged": converged,
            "seconds": before + time.perf_counter() - started,
        }
        progress.history.append(record)
        return record

    def _run_part(self, part: EpochPart, number: int, total: Tensor, started: float) -> bool:
        """Take the steps of a part of an epoch, and return whether training was stopped or its time is over."""
        progress, seeds = self.progress, self._seeds(number)
        if self.config.phi is None:
            # Only a module of the user draws from the global generators of torch, as dropout does.
            seed_torch(int(seeds[3]), self.train_data.device)
        noise, loss_of = FreshNoise(int(seeds[0])), self._losses(int(seeds[1]))
        for indices in part.batches:
            total += self._step(indices, noise, loss_of(indices), progress.step) * len(indices)
            effort = self.train_data.effort(indices)
            progress.seen, progress.effort = progress.seen + len(indices), progress.effort + effort
            progress.step += 1
            self.monitor.batch(effort, self.clock.left)
            reserve = self._reserve(progress.seen, time.perf_counter() - started)
            if self.monitor.decide() or self.clock.is_over(reserve):
                return True
        return False

    def _seeds(self, part: int) -> np.ndarray:
        """Return the seeds of a part of the running epoch: of noise, of the loss, of the order, of torch."""
        numbers = [self.seed, self.progress.epoch, *([part] if part else [])]
        return np.random.SeedSequence(numbers).generate_state(4)

    def _reserve(self, seen: int, seconds: float) -> float:
        """Return about how long the next validation takes, after so many sets of the epoch in so many seconds."""
        if self.validation_seconds is not None:
            return self.validation_seconds
        # Validating a set takes about as long as training on it.
        return seconds * len(self.watched) / seen

    def _note_gain(self, score: float, loss: float) -> None:
        progress = self.progress
        if score >= progress.gain_score + _NOTABLE_GAIN:
            progress.gain_score, progress.gain_epoch = score, progress.epoch
        # A perfect score ends training, whatever the loss.
        if not self._is_perfect and (
            progress.gain_loss is None or loss < progress.gain_loss - _NOTABLE_FALL * abs(loss)
        ):
            progress.gain_loss, progress.gain_epoch = loss, progress.epoch

    def _divergence(self, cause: str) -> TrainingError:
        options = self.config.options
        return TrainingError(
            f"{cause} in epoch {self.progress.epoch}: training diverged. Lower {parameter('learning_rate')} (now "
            f"{options.learning_rate}) or {parameter('clip')} (now {options.clip}), leave {parameter('standardize')} "
            "on, and look for features of extreme size"
        )

    def _losses(self, seed: int) -> Callable[[np.ndarray], SubsetLoss | PartialSubsetLoss]:
        """Return the function that makes the loss for a batch from the indices of its sets."""
        if self.constraints is None:
            loss = self._partial_loss or LOSSES[resolved(self.config.options.loss)](seed)
            return lambda indices: loss
        constraint, seeds = self.constraints[0], np.random.default_rng(seed)
        samples, partial_loss = resolved(self.config.options.samples), self._partial_loss

        def constrained(indices: np.ndarray) -> SubsetLoss | PartialSubsetLoss:
            loss = self.gradient.loss(constraint.take(indices), samples, int(seeds.integers(2**63)))
            return loss if partial_loss is None else AtEveryPart(loss)

        return constrained

    @property
    def _partial_loss(self) -> PartialSubsetLoss | None:
        """The loss at partial subsets; None for a method that infers logits."""
        options = self.config.options
        return PARTIAL_LOSSES[resolved(options.loss)] if options.method == CONDITIONAL else None

    def _step(self, indices: np.ndarray, noise: FreshNoise, loss: SubsetLoss | PartialSubsetLoss, step: int) -> Tensor:
        options = self.config.options
        places = self._own(indices)
        sets, subsets, weights = resolved(self.loaded).take(indices[places])
        if isinstance(loss, PartialSubsetLoss):
            source: FreshNoise | NoiseOfSome = noise
            if self.processes.count > 1:
                layout = Layout.from_lengths(self.train_data.layout.host_lengths[indices], self.train_data.device)
                source = NoiseOfSome(noise, layout, places)
            partial = draw_partial_subsets(subsets, resolved(options.samples), source, half=resolved(options.half))
            batch = Batch(sets, subsets, weights, None, loss, partial)
        else:
            batch = Batch(sets, subsets, weights, loss.coordinates(subsets, self.sizes[indices]), loss)
        rate = resolved(options.learning_rate) * min(1.0, (step + 1) / _WARMUP_STEPS) * self.clock.factor
        # The moving average starts as a plain mean.
        decay = min(options.average, (step + 1) / (step + 10))
        return self.trainable.step(batch, noise, rate, decay)

    def _own(self, indices: np.ndarray) -> np.ndarray:
        """Return the places in a batch of the sets that this process trains on."""
        return self.processes.own(self.train_data.layout.host_lengths[indices])

    def _validate(self) -> tuple[float, float]:
        self.model.eval()
        partial_loss = self._partial_loss
        if self.constraints is None and partial_loss is not None:
            score, loss = self.trainable.evaluate(
                lambda model: validate_completion(
                    model, self.watched, self.watched_sizes, partial_loss, self.seed, self.processes
                )
            )
            if not math.isfinite(loss):
                self._check_logits(self.trainable.infer(self.validation.sets))
                raise self._divergence("gains on the validation sets are not finite")
            # Rounded, so that among equally good epochs the one with the smaller loss wins.
            return round(score, 5), -loss
        sets, subsets = self.validation
        logits = self._check_logits(self.trainable.infer(sets))
        if self.constraints is None:
            picks = pick_top(logits, sets, self.watched_sizes)
            value = AllItems()(logits, subsets, None, None)
        else:
            picks = self.constraints[1].choose(logits, sets)
            # The same noise in every epoch, so that losses can be compared.
            loss_function = FenchelYoungLoss(self.constraints[1], _VALIDATION_SAMPLES, self.seed)
            value = loss_function(logits, subsets, None, None)
        return round(float(jaccard(picks, subsets).mean()), 5), -float(value)

    def _check_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of the validation sets if they are finite; else find out whether the data are the cause."""
        sets = self.validation.sets
        if not bool(logits.isfinite().all()):
            # Some training sets stand for all.
            (some,) = self.train_data.load(self.train_data.windows(0)[:1])
            largest, usual = (float(self.model.prepare(s).values.abs().max()) for s in (sets, some.choices.sets))
            if largest <= _EXTREME * usual:
                raise self._divergence("logits of the validation sets are not finite")
            check_finite(logits, sets, self.name_of)
        return logits

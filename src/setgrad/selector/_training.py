"""What every training run is: epochs until the validation score stops improving, with a state that can be saved."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._choice_gradient import ChoiceGradient
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._model import ChoiceModel
from setgrad.selector._monitor import Monitor
from setgrad.sets import Choices


class Training(abc.ABC):
    """A training run, epoch by epoch, until the validation score stops improving.

    Attributes:
        model: The model, which is trained in place.
        train_data: The training sets.
        validation: The validation sets.
        constraints: The constraints on the training and the validation subsets, if they were chosen under one.
        gradient: How training under a constraint is differentiated.
        max_epochs: Largest number of epochs.
        monitor: Is told about every batch and epoch, and may stop training.
        save_part: Is called between two parts of an epoch, where the run can be saved.
    """

    model: ChoiceModel
    train_data: AbstractExamples
    validation: Choices
    constraints: tuple[BatchConstraint, BatchConstraint] | None
    gradient: ChoiceGradient
    max_epochs: int
    monitor: Monitor
    save_part: Callable[[], None] = staticmethod(lambda: None)

    @property
    @abc.abstractmethod
    def history(self) -> list[dict[str, float]]:
        """One record for each epoch."""

    @property
    @abc.abstractmethod
    def best_epoch(self) -> int:
        """The epoch whose weights are kept, counted from 1."""

    @property
    @abc.abstractmethod
    def is_finished(self) -> bool:
        """Whether no epoch is left, or patience has run out."""

    @property
    def name(self) -> str:
        """What a checkpoint must be of."""
        return type(self).__name__

    @property
    def is_inside(self) -> bool:
        """Whether the run is between two parts of an epoch."""
        return False

    @abc.abstractmethod
    def run_epoch(self) -> dict[str, float]:
        """Train for one epoch and return its record.

        Raises:
            TrainingError: If the loss or the logits are not finite.
        """

    @abc.abstractmethod
    def load_best(self) -> None:
        """Load the weights of the best epoch into the model."""

    @abc.abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all tensors and all plain values of the run."""

    @abc.abstractmethod
    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from the tensors and values that `state` returned."""

    @final
    def run(self, save: Callable[[Training], None] | None) -> None:
        """Train to the end, or until the monitor stops training, then load the best weights into the model.

        Args:
            save: Called with the run after each whole epoch, and inside long ones.

        Raises:
            TrainingError: If the loss or the logits are not finite.
        """
        saved = time.monotonic()
        minutes = self.model.config.options.checkpoint_minutes

        def save_part() -> None:
            nonlocal saved
            if save is not None and time.monotonic() - saved >= 60 * minutes:
                save(self)
                saved = time.monotonic()

        self.save_part = save_part
        while not self.is_finished and not (self.monitor.is_stopped and self.best_epoch):
            record = self.run_epoch()
            # A resumed run continues after a whole epoch. The callback of the user comes last, because it may raise.
            if save is not None and not self.monitor.is_stopped:
                save(self)
                saved = time.monotonic()
            self.monitor.epoch(record)
        self.load_best()

"""Schedules: how a number such as a temperature changes during training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import OptionError


class Schedule(ABC):
    """A number for each training step, counted from 0."""

    @abstractmethod
    def at(self, step: int) -> float:
        """Return the number at a step. Steps after the end have the last number."""


@final
@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The same number at every step.

    Examples:
        >>> ConstantSchedule(0.5).at(100)
        0.5
    """

    start: float

    def at(self, step: int) -> float:
        """Return the number."""
        return self.start


@dataclass(frozen=True)
class _Interpolation(Schedule):
    """From start to end in a number of steps."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptionError(f"steps must be 1 or more, got {self.steps}")

    @abstractmethod
    def _weight(self, progress: float) -> float:
        """Return the weight of the end, for a progress from 0 to 1."""

    def at(self, step: int) -> float:
        """Return the weighted mean of start and end."""
        weight = self._weight(min(step / self.steps, 1.0))
        return (1 - weight) * self.start + weight * self.end


@final
@dataclass(frozen=True)
class LinearSchedule(_Interpolation):
    """From start to end along a straight line.

    Raises:
        OptionError: If steps is below 1.

    Examples:
        >>> [LinearSchedule(1.0, 0.0, steps=4).at(step) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

    def _weight(self, progress: float) -> float:
        return progress


@final
@dataclass(frozen=True)
class CosineSchedule(_Interpolation):
    """From start to end along half a cosine wave: slow at both ends.

    Raises:
        OptionError: If steps is below 1.

    Examples:
        >>> [round(CosineSchedule(1.0, 0.0, steps=4).at(step), 3) for step in (0, 1, 2, 4)]
        [1.0, 0.854, 0.5, 0.0]
    """

    def _weight(self, progress: float) -> float:
        return (1 - math.cos(math.pi * progress)) / 2


@final
@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """Multiply by the same factor at each step, down to `end`.

    Raises:
        OptionError: If the factor is not in (0, 1], or the end is above the start.

    Examples:
        >>> [ExponentialSchedule(1.0, factor=0.5, end=0.2).at(step) for step in (0, 1, 2, 3)]
        [1.0, 0.5, 0.25, 0.2]
    """

    start: float
    factor: float
    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise OptionError(f"factor must be above 0 and at most 1, got {self.factor}")
        if self.end > self.start:
            raise OptionError(f"this schedule falls, so end={self.end} cannot be above start={self.start}; swap them")

    def at(self, step: int) -> float:
        """Return start * factor**step, but at least `end`."""
        return max(self.end, self.start * self.factor**step)


@final
class ScheduledTemperature(nn.Module):
    """A temperature that follows a schedule. `state_dict` saves the current step.

    Pass it to `Tempered` noise, and call `step()` after each training step. The estimator with that noise saves it.
    The step is a Python number, so reading the temperature never waits for a device.

    Args:
        schedule: A `Schedule`, or a constant. Every value must be finite and 0 or more.

    Raises:
        OptionError: If the first value is negative or not finite.

    Examples:
        >>> temperature = ScheduledTemperature(LinearSchedule(1.0, 0.5, steps=10))
        >>> for _ in range(5):
        ...     temperature.step()
        >>> temperature.value
        0.75
    """

    def __init__(self, schedule: Schedule | float) -> None:
        super().__init__()
        self.schedule = schedule if isinstance(schedule, Schedule) else ConstantSchedule(float(schedule))
        self.steps = 0
        self.value  # noqa: B018  a wrong start should fail here, not in the first forward pass

    @property
    def value(self) -> float:
        """The current temperature.

        Raises:
            OptionError: If the schedule has a negative or nonfinite value at this step.
        """
        value = self.schedule.at(self.steps)
        if not 0 <= value < math.inf:
            raise OptionError(
                f"the temperature at step {self.steps} is {value}; it must be finite and 0 or more: change the schedule"
            )
        return value

    def step(self) -> None:
        """Advance by one step."""
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        """Return the current step, for `state_dict`."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the current step, for `load_state_dict`."""
        self.steps = int(state)

    def extra_repr(self) -> str:
        """Return the schedule and the current step, for print(model)."""
        return f"{self.schedule}, steps={self.steps}"

"""How a number such as a temperature changes while training goes on."""

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
        """The number at a step; steps beyond the end keep the last one."""


@final
@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The same number always.

    Example:
        >>> ConstantSchedule(0.5).at(100)
        0.5
    """

    start: float

    def at(self, step: int) -> float:
        """The number."""
        return self.start


@final
@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """From start to end in a straight line.

    Example:
        >>> [LinearSchedule(1.0, 0.0, steps=4).at(step) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def at(self, step: int) -> float:
        """A point of the line."""
        share = min(step / self.steps, 1.0)
        return (1 - share) * self.start + share * self.end


@final
@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """From start to end along half a wave: slow at both ends.

    Example:
        >>> [round(CosineSchedule(1.0, 0.0, steps=4).at(step), 3) for step in (0, 1, 2, 4)]
        [1.0, 0.854, 0.5, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def at(self, step: int) -> float:
        """A point of the wave."""
        share = (1 - math.cos(math.pi * min(step / self.steps, 1.0))) / 2
        return (1 - share) * self.start + share * self.end


@final
@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """Multiply by the same factor at each step, down to `end`.

    Example:
        >>> [ExponentialSchedule(1.0, factor=0.5, end=0.2).at(step) for step in (0, 1, 2, 3)]
        [1.0, 0.5, 0.25, 0.2]
    """

    start: float
    factor: float
    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise OptionError(f"factor must lie above 0 and not above 1, got {self.factor}")
        if self.end > self.start:
            raise OptionError(f"this schedule falls, so end={self.end} cannot lie above start={self.start}; swap them")

    def at(self, step: int) -> float:
        """A point of the curve."""
        return max(self.end, self.start * self.factor**step)


@final
class Temperature(nn.Module):
    """A scheduled number with its place in the schedule, which `state_dict` saves.

    Give it to `Tempered` noise, and call `step()` after each training step. The estimator with that noise saves it.
    The place is kept on the host, so that reading the temperature never waits for a device.

    Args:
        schedule: A `Schedule`, or a number that stays. Every value must be finite and 0 or more.

    Example:
        >>> temperature = Temperature(LinearSchedule(1.0, 0.5, steps=10))
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
        """The temperature now."""
        value = self.schedule.at(self.steps)
        if not 0 <= value < math.inf:
            raise OptionError(
                f"the temperature at step {self.steps} is {value}; it must be finite and 0 or more: mend the schedule"
            )
        return value

    def step(self) -> None:
        """Go on by one step."""
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        """The place, for `state_dict`."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """The place, from `load_state_dict`."""
        self.steps = int(state)

    def extra_repr(self) -> str:
        """Schedule and place."""
        return f"{self.schedule}, steps={self.steps}"


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise OptionError(f"steps must be 1 or more, got {steps}")

"""Generated days of a factory that chooses in which hours to run a machine, within a budget of energy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from setgrad.datasets._table_task import TableTask, resolve_two, stack_sets
from setgrad.datasets._task import spawn_generators
from setgrad.discrete import Knapsack

_HOURS, _NEEDS, _BUDGET = 24, (3, 5, 7), 40
_DEFAULT_COUNTS = (200, 100)
_DESCRIPTION = (
    "One row for each hour of a day, and whether the machine ran. A run in an hour needs 3, 5 or 7 units of energy, 40 "
    "may be used in a day, and the hours with the largest total saving were chosen. The saving of an hour is known "
    "afterwards only; forecasts of wind, sun and demand, the hour and the day hint at it."
)


def make_energy(*, random_state: int = 0, n_train: int | None = None, n_test: int | None = None) -> TableTask:
    """Return the tables of the factory: 200 days to learn from and 100 to test on by default."""
    import pyarrow as pa

    counts = resolve_two(n_train, n_test, _DEFAULT_COUNTS)
    types = {
        "day": pa.date32(),
        "hour": pa.int64(),
        "wind": pa.float64(),
        "sun": pa.float64(),
        "demand": pa.float64(),
        "weekend": pa.bool_(),
        "energy": pa.int64(),
        "saving": pa.float64(),
        "run": pa.bool_(),
    }
    train, test = (
        stack_sets(_draw_days(rng, count, first), types)
        for rng, count, first in zip(spawn_generators(random_state, 2), counts, (0, counts[0]), strict=True)
    )
    return TableTask("energy", _DESCRIPTION, train, test, "day", "hour", "run")


def _draw_days(rng: np.random.Generator, count: int, first: int) -> Iterator[dict[str, Any]]:
    """Yield the columns of each day."""
    import torch

    hour = np.arange(_HOURS)
    for number in range(first, first + count):
        day = np.datetime64("2026-01-01", "D") + np.timedelta64(number, "D")
        weekend = bool((day.astype(np.int64) + 3) % 7 >= 5)
        wind = np.clip(
            rng.uniform(2, 12) + 2 * np.sin(2 * np.pi * (hour - rng.integers(24)) / 24) + rng.normal(0, 0.7, _HOURS),
            0,
            None,
        )
        sun = np.clip(np.sin(np.pi * (hour - 6) / 12), 0, None) * rng.uniform(0.2, 1) + rng.uniform(0, 0.05, _HOURS)
        peaks = np.exp(-((hour - 8) ** 2) / 8) + 1.2 * np.exp(-((hour - 19) ** 2) / 10)
        demand = (30 if weekend else 40) + 15 * peaks * (0.6 if weekend else 1.0) + rng.normal(0, 1.5, _HOURS)
        # Cheap power is what wind and sun leave above the demand; a gust above 13 stops the turbines.
        turning = np.where(wind > 13, 0, wind**2 / 10)
        saving = np.clip(25 + 1.5 * turning + 14 * sun - 0.6 * demand + rng.normal(0, 2, _HOURS), 0.5, None).round(1)
        energy = rng.choice(_NEEDS, _HOURS)
        run = Knapsack(torch.from_numpy(energy), budget=_BUDGET)(torch.from_numpy(saving)) > 0.5
        yield {
            "day": day.item(),
            "hour": hour,
            "wind": wind.round(1),
            "sun": sun.round(2),
            "demand": demand.round(1),
            "weekend": weekend,
            "energy": energy,
            "saving": saving,
            "run": run.numpy(),
        }

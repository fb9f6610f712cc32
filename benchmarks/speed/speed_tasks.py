"""Tasks on which fits and predictions are timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from setgrad.datasets import Task, load_task
from setgrad.sets import Choices, Sets

TABLE, ROWS = "table", "rows"
NAMES = ("moons", "digits", TABLE, "amazon:bath:farthest", ROWS)
# Training sets and features of the tasks that are drawn here; `rows` has 165,000 rows to train on.
DRAWN = {TABLE: (5000, 20), ROWS: (5500, 8)}
_ITEMS = 30


def load_speed_task(name: str, data_dir: Path | None, *, quick: bool) -> Task:
    """Return a task by name."""
    if name in DRAWN:
        count, features = DRAWN[name]
        counts = (60, 20, 20) if quick else (count, 1000, 1000)
        train, validation, test = (make_table(some, seed, features) for seed, some in enumerate(counts, 1))
        return Task(name, "", train, validation, test, "drawn here")
    sizes: dict[str, Any] = (
        {"n_train": 60, "n_validation": 20, "n_test": 20} if quick and not name.startswith("amazon") else {}
    )
    return load_task(name, data_dir=data_dir, **sizes)


def make_table(count: int, seed: int, features: int) -> Choices:
    """Draw sets of 30 items, of which 3 to 8 are chosen one by one: good ones, but not alike."""
    weights = np.random.default_rng(0)
    linear, curved = weights.standard_normal(features), weights.standard_normal((features, 8))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, _ITEMS, features)).astype(np.float32)
    worth = x @ linear / np.sqrt(features) + 0.8 * np.square(np.tanh(x @ curved / 3)).sum(-1)
    worth += 0.3 * rng.gumbel(size=worth.shape)
    units = x[..., :6] / np.linalg.norm(x[..., :6], axis=-1, keepdims=True)
    alike = units @ units.transpose(0, 2, 1)
    sizes = rng.integers(3, 9, count)
    chosen, closest = np.zeros(worth.shape, dtype=bool), np.zeros(worth.shape)
    for step in range(sizes.max()):
        rows = np.flatnonzero(step < sizes)
        best = np.where(chosen, -np.inf, worth - 1.5 * closest)[rows].argmax(1)
        chosen[rows, best] = True
        closest[rows] = np.maximum(closest[rows], alike[rows, best])
    sets = Sets.from_lengths(torch.from_numpy(x.reshape(-1, features)), [_ITEMS] * count)
    return Choices(sets, sets.with_values(torch.from_numpy(chosen.reshape(-1))))

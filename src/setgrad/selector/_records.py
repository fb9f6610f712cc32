"""Checks of the records of a run that are read from a file: reports and resumed runs rely on their types."""

from __future__ import annotations

import math
from typing import Any

# What reports read from the record of an epoch.
_READ = {"epoch", "loss", "validation_jaccard"}


def check_history(history: Any) -> None:
    """Raise a ValueError if this is not a list with a record of numbers for each epoch."""
    is_list = isinstance(history, list) and all(
        isinstance(row, dict) and row.keys() >= _READ and all(map(is_number, row.values())) for row in history
    )
    if not is_list or not history:
        raise ValueError("history is not a list of epochs")


def validation_score(config: dict[str, Any]) -> Any:
    """Return the validation score of the weights that a saved model has."""
    # Models of earlier versions have those of an epoch.
    return config.get("validation_score", config["history"][config["best_epoch"] - 1]["validation_jaccard"])


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not True or False; it may be NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return is_number(value) and abs(value) < 2**1000 and math.isfinite(value)

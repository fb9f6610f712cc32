"""What a fit and picks need of Ray, which is imported where it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from setgrad.errors import MissingDependencyError, OptionError, parameter


def check_ray() -> None:
    """Raise a MissingDependencyError if Ray is not installed."""
    try:
        import ray.train.torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError('a cluster needs Ray: pip install "setgrad[cluster]"') from error


def check_count(name: str, value: Any, least: int) -> None:
    """Raise an OptionError unless an argument is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise OptionError(f"{parameter(name)} must be a whole number of at least {least}, not {value!r}")


def check_resources(resources: Any) -> dict[str, float]:
    """Return what Ray sets aside for each process; without a wish one CPU.

    Raises:
        OptionError: If these are no names with numbers.
    """
    if resources is None:
        return {"CPU": 1}
    if not isinstance(resources, Mapping) or not all(
        isinstance(name, str) and isinstance(number, int | float) and number >= 0 for name, number in resources.items()
    ):
        raise OptionError(f"{parameter('resources')} must be names with numbers, such as {{'CPU': 4, 'GPU': 1}}")
    return {"CPU": 1, **resources}


def shared_paths(table: Any) -> Any:
    """Return the table as other processes can open it, with whole paths in place of those from the working folder.

    Raises:
        OptionError: If it is not named by paths or addresses.
    """
    if isinstance(table, list | tuple):
        return [shared_paths(one) for one in table]
    if not isinstance(table, str | os.PathLike):
        raise OptionError(
            f"a cluster reads a table from files that all machines can open, not from {type(table).__name__}; write it "
            "to Parquet files and name them"
        )
    text = os.fspath(table)
    return text if "://" in text else str(Path(text).resolve())

"""Figures with Matplotlib, if it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def has_matplotlib() -> bool:
    """Return whether Matplotlib can be imported."""
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    # Without pyplot, which would keep figures in memory and choose a window system.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, dpi: int = 110) -> list[Path]:
    """Write a figure, and return its path as a list, as a report needs it."""
    figure.savefig(path, dpi=dpi)
    return [path]

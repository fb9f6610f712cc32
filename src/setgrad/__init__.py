"""setgrad learns to choose: subset selection with machine learning, on PyTorch."""

import importlib
from typing import Any

from setgrad import errors as errors
from setgrad.sets import Choices as Choices
from setgrad.sets import Sets as Sets

__version__ = "0.1.0"

# Rooms and names that are imported when first used, so that `import setgrad` stays quick.
_ROOMS = ("sets", "implicit", "discrete", "encoders", "functions", "inference", "selector", "datasets", "report", "cli")
_NAMES = {
    "read_table": "setgrad.sets",
    "write_table": "setgrad.sets",
    "SubsetSelector": "setgrad.selector",
    "load": "setgrad.selector",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"setgrad.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'setgrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS, *_NAMES])

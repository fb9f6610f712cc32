"""Work that `torch.compile` cannot trace, done outside of its graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def untraced(function: Callable[..., Result], *given: Any) -> Result:
    """Call a function; where `torch.compile` is at work, with a break in its graph.

    Not a decorator: `torch.compiler.disable` imports the compiler, which takes as long as torch itself.
    """
    if not torch.compiler.is_compiling():
        return function(*given)
    result: Result = torch.compiler.disable(function)(*given)
    return result

"""The device that a benchmark runs on."""

from __future__ import annotations

import torch

from setgrad.errors import OptionError


def resolve_device(name: str | None) -> torch.device:
    """Return the device of this name; without a name, a GPU if there is one."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device cuda needs a GPU, and torch finds none; use --device cpu")
    return device

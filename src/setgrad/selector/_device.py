"""The device that a selector runs on."""

from __future__ import annotations

import torch

from setgrad.errors import OptionError, parameter


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the device with this name, or a GPU if there is one and the CPU otherwise.

    Args:
        device: "cpu", "cuda", "cuda:1", a device of torch, or None.

    Returns:
        The device.

    Raises:
        OptionError: If the name is unknown, or there is no such device.

    Examples:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = parameter("device")
    try:
        result = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"unknown {name} {device!r}: {str(error).splitlines()[0]}") from None
    if result.type not in ("cpu", "cuda"):
        raise OptionError(
            f"{name}={str(device)!r} is not supported: setgrad runs on 'cpu' and 'cuda'; other devices lack float64 or "
            "are not tested"
        )
    if result.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"{name}={str(device)!r} needs a GPU, and torch finds none; use {name}='cpu'")
    return result

"""The device that a selector runs on, and the global random generators of torch, which modules of users draw from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from setgrad.errors import OptionError, parameter

_LOCK = threading.RLock()


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
    try:
        result = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"unknown {parameter('device')} {device!r}: {str(error).splitlines()[0]}") from None
    if result.type not in ("cpu", "cuda"):
        raise OptionError(
            f"{parameter('device')}={str(device)!r} is not supported: setgrad runs on 'cpu' and 'cuda'; other "
            "devices lack float64 or are not tested"
        )
    if result.type == "cuda" and not torch.cuda.is_available():
        name = parameter("device")
        raise OptionError(f"{name}={str(device)!r} needs a GPU, and torch finds none; use {name}='cpu'")
    return result


@contextmanager
def isolated_torch_rng(device: torch.device | None = None) -> Iterator[None]:
    """Restore the global generators of the CPU and of one device when the block ends.

    All threads share these generators, so fits in several threads run such blocks one after the other.
    """
    has_own_generator = device is not None and device.type == "cuda"
    with _LOCK, torch.random.fork_rng(devices=[device] if has_own_generator else []):
        yield


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the global generators of the CPU and of one device, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)

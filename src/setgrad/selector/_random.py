"""The global random generators of torch, which the weights and modules of users draw from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.RLock()


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

"""What several tests of benchmarks share."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

CPU = torch.device("cpu")
Seeded = Callable[..., AbstractContextManager[None]]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

"""What several tests of the package share."""

import pytest
import torch
from torch import Tensor

# The first use of forward mode makes torch 2.13 warn.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

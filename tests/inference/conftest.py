"""The function that most tests of mean field use."""

import pytest

from setgrad.functions import DeepSetFunction
from tests.inference.oracle import amplify


@pytest.fixture
def make(seeded):
    """A function whose items interact more strongly for larger factors."""

    def build(factor: float, phi: str = "mlp", seed: int = 0, dim: int = 6, units: int = 16) -> DeepSetFunction:
        with seeded(seed):
            function = DeepSetFunction(2, phi, dim=dim, hidden=(units, units)).double()
        amplify(function.rho, factor)
        return function

    return build

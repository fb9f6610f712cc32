"""Features of integer dtypes give the same result as floats."""

import pytest
import torch

from setgrad.selector import SubsetSelector
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY


def draw(kind):
    """Return sets of 4 items with features 0 or 1; the first feature tells whether an item is chosen."""
    values = torch.randint(2, (160, 2), generator=torch.Generator().manual_seed(0))
    sets = Sets.from_lengths(values.to(kind), [4] * 40)
    return Choices(sets, sets.with_values(values[:, 0] > 0))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers_are_standardised_as_floats(kind):
    choices, real = draw(kind), draw(torch.float64)
    fitted = SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 2}).fit(*choices)
    deviation = fitted.model_.deviation
    assert ((deviation > 0.4) & (deviation < 0.6)).all()
    result = fitted.predict_proba(choices.sets).values
    assert result.dtype == (torch.float64 if choices.sets.values.element_size() >= 4 else torch.float32)
    assert torch.allclose(result.double(), fitted.predict_proba(real.sets).values, atol=1e-6)

"""Features that are counts or bytes: a selector sees the same numbers as when they come as floats."""

import pytest
import torch

from setgrad.selector import SubsetSelector
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY


def draw(kind):
    """Sets of 4 items with features 0 or 1, the first of which says whether an item is chosen."""
    values = torch.randint(2, (160, 2), generator=torch.Generator().manual_seed(0))
    sets = Sets.from_lengths(values.to(kind), [4] * 40)
    return Choices(sets, sets.with_values(values[:, 0] > 0))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_they_are_standardised_as_real_numbers(kind):
    choices, real = draw(kind), draw(torch.float64)
    fitted = SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 2}).fit(*choices)
    deviation = fitted.model_.deviation
    assert ((deviation > 0.4) & (deviation < 0.6)).all()
    found = fitted.predict_proba(choices.sets).values
    assert found.dtype == (torch.float64 if choices.sets.values.element_size() >= 4 else torch.float32)
    assert torch.allclose(found.double(), fitted.predict_proba(real.sets).values, atol=1e-6)

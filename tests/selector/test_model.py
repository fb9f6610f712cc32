"""The trainable part of a selector: what its inference is made of."""

import pytest
import torch

from setgrad.functions import Bernoulli, ItemNoise
from setgrad.selector import SubsetSelector
from tests.selector.conftest import TINY


@pytest.mark.parametrize("method", ["amortised", "copula"])
def test_mean_field_starts_where_the_recognition_network_says(choices, method):
    model = SubsetSelector(**{**TINY, "method": method, "max_epochs": 1}).fit(*choices).model_
    sets, estimator = choices.sets, Bernoulli(8, ItemNoise(choices.sets))
    with torch.no_grad():
        bound = model.bind(sets)
        found = model.infer(bound, ItemNoise(sets), samples=8).logits
        start = torch.sigmoid(model.each()[0].recognition.start(bound.sets))
        torch.testing.assert_close(found, estimator.gradient(bound, start))
        assert not torch.allclose(found, estimator.gradient(bound, torch.full_like(start, 0.5)))

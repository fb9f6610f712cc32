"""The parts of a model that the options name."""

import pytest
import torch

from setgrad.encoders import ContextItems, MLPItems
from setgrad.encoders.attention import InducedAttention
from setgrad.functions import Bernoulli, ItemNoise
from setgrad.selector import SubsetSelector
from tests.selector.conftest import TINY, first_member


@pytest.mark.parametrize("method", ["amortised", "copula", "free-copula"])
def test_mean_field_starts_from_the_recognition_network(choices, method):
    model = SubsetSelector(**{**TINY, "method": method, "max_epochs": 1}).fit(*choices).model_
    sets, estimator = choices.sets, Bernoulli(8, ItemNoise(choices.sets))
    with torch.no_grad():
        bound = model.bind(sets)
        result = model.infer(bound, ItemNoise(sets), samples=8).logits
        start = torch.sigmoid(model.each()[0].recognition.start(bound.sets))
        torch.testing.assert_close(result, estimator.gradient(bound, start))
        assert not torch.allclose(result, estimator.gradient(bound, torch.full_like(start, 0.5)))


def test_attention_can_follow_a_phi(choices):
    options = {**TINY, "phi": "mlp+context", "layers": 2, "heads": 2, "attention": "induced", "max_epochs": 1}
    phi = first_member(SubsetSelector(**options).fit(*choices)).function.phi
    assert [(type(block), block.heads) for block in phi.then.blocks] == 2 * [(InducedAttention, 2)]
    assert isinstance(phi.first, MLPItems) and isinstance(phi.then, ContextItems)
    assert (phi.first.out_dim, phi.out_dim) == (16, 16)

"""Old names of the package `setgrad.inference`, and strings that were replaced by objects."""

import pytest
import torch

from setgrad import inference
from setgrad.functions import DeepSetFunction, Exact
from setgrad.inference import BatchFrobeniusScale, BatchNuclearScale, L2Scale, contraction, mean_field
from setgrad.sets import Sets


@pytest.mark.parametrize(
    ("old", "new"),
    [("Implicit", "ImplicitMeanField"), ("OneStep", "OneStepMeanField"), ("Unrolled", "UnrolledMeanField")],
)
def test_an_old_name_still_works_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=rf"inference\.{old} is now setgrad\.inference\.{new}; .* in 0\.3\.0"):
        assert getattr(inference, old) is getattr(inference, new)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = inference.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "scale"),
    [("l2", L2Scale()), ("frobenius-batch", BatchFrobeniusScale()), ("nuclear-batch", BatchNuclearScale())],
)
def test_the_name_of_a_scale_still_works_with_a_warning(name, scale, seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=4, hidden=(4,))
        sets = Sets.from_lengths(torch.randn(5, 2), [3, 2])
    for compute, attribute in ((mean_field, "logits"), (contraction, "factor")):
        with pytest.warns(
            DeprecationWarning, match=rf"scale='{name}' is now scale={type(scale).__name__}\(\); .* 0\.3\.0"
        ):
            old = compute(function, sets, estimator=Exact(), scale=name)
        new = compute(function, sets, estimator=Exact(), scale=scale)
        assert torch.equal(getattr(old, attribute), getattr(new, attribute))

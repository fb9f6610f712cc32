"""What a fit or a prediction cannot make sense of is refused by name, before work is lost; what it can, it takes."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.selector import SubsetSelector
from setgrad.sets import Sets
from tests.selector.conftest import TINY


@pytest.mark.parametrize("method", ["unrolled", "direct"])
def test_a_validation_set_beyond_the_model_is_named_before_the_work(choices, method):
    values = choices.sets.values.clone()
    values[choices.sets.layout.ids == 2] = 9.96921e36
    held = (choices.sets.with_values(values), choices.subsets)
    selector = SubsetSelector(**{**TINY, "method": method})
    with pytest.raises(DataError, match="features of validation set 2 are too large"):
        selector.fit(*choices, validation=held)
    assert not hasattr(selector, "model_")


def test_phis_that_could_never_predict_are_refused_before_the_work(choices, seeded):
    class Casts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 8)

        def forward(self, x):
            return self.net(x.float())

    class Halves(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).half()

    with seeded(0):
        casts, halves, tuples = Casts(), Halves(2, 8), torch.nn.GRU(2, 8)
    for phi in (casts, halves):
        with pytest.raises(OptionError, match=r"phi must run in torch.float32, and in float64"):
            SubsetSelector(**{**TINY, "phi": phi}).fit(*choices)
    with pytest.raises(ShapeError, match="one item gave a tuple"):
        SubsetSelector(**{**TINY, "phi": tuples}).fit(*choices)


def test_fits_in_threads_are_the_same_as_alone(choices, seeded):
    with seeded(0):
        phis = ("context", torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.3)))
    for phi in phis:

        def fit(_=None, phi=phi):
            return SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 2}).fit(*choices).decision_function(choices.sets)

        alone, state = fit(), torch.get_rng_state()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(fit, range(4)))
        assert all(torch.equal(one.values, alone.values) for one in found)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_learned_function_takes_what_predict_takes(choices):
    selector = SubsetSelector(**TINY).fit(*choices)
    items = list(choices.sets)
    picks = selector.predict(items)
    bound = selector.function_.bind(choices.sets)
    assert torch.equal(selector.function_.value(items, picks), bound.value(picks.values[None]))
    assert torch.equal(selector.function_.gains(items, picks), bound.gains(picks.values[None]))


def test_scores_that_are_no_numbers_are_refused(choices):
    selector = SubsetSelector(**TINY).fit(*choices)
    scores = selector.decision_function(choices.sets)
    values = scores.values.clone()
    values[choices.sets.layout.ids == 3] = math.nan
    with pytest.raises(DataError, match="scores of set 3 are not all finite"):
        selector.predict(choices.sets, scores=scores.with_values(values))


def test_sets_without_items_do_not_change_the_smallest_size(choices):
    one = [[0]] * len(choices)
    empty = Sets.from_lengths(choices.sets.values, [*choices.sets.layout.host_lengths, 0])
    for held in (None, (choices.sets, one)):
        assert SubsetSelector(**TINY).fit(empty, [*one, []], validation=held).min_size_ == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": np.array(["direct"])}, "unknown method"),
        ({"checkpoint": 3}, "checkpoint must be the name"),
    ],
)
def test_options_of_the_wrong_kind(choices, options, message):
    with pytest.raises(OptionError, match=message):
        SubsetSelector(**{**TINY, **options}).fit(*choices)
    fitted = SubsetSelector(**{**TINY, "standardize": np.bool_(True)}).fit(*choices)
    with pytest.raises(OptionError, match="size must be a whole number"):
        fitted.predict(choices.sets, size=[[1], [2, 3]])


def test_a_fit_in_inference_mode_is_the_same(choices):
    wanted = SubsetSelector(**TINY).fit(*choices).decision_function(choices.sets).values
    with torch.inference_mode():
        items = choices.sets.with_values(choices.sets.values * 1)
        found = SubsetSelector(**TINY).fit(items, choices.subsets).decision_function(choices.sets).values
    assert torch.equal(found, wanted)

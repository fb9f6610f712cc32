"""Unusual input: it works, or an error names it before any work is lost."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.selector import SubsetSelector
from setgrad.sets import Sets
from tests.selector.conftest import TINY


@pytest.mark.parametrize("method", ["unrolled", "direct"])
def test_a_validation_set_with_extreme_features_is_named(choices, method):
    values = choices.sets.values.clone()
    values[choices.sets.layout.ids == 2] = 9.96921e36
    held = (choices.sets.with_values(values), choices.subsets)
    selector = SubsetSelector(**{**TINY, "method": method})
    with pytest.raises(DataError, match="features of validation set 2 are so large"):
        selector.fit(*choices, validation=held)
    assert not hasattr(selector, "model_")


def test_phis_that_cannot_run_in_both_dtypes_raise(choices, seeded):
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
        with pytest.raises(OptionError, match=r"phi must run in torch.float32 and in float64"):
            SubsetSelector(**{**TINY, "phi": phi}).fit(*choices)
    with pytest.raises(ShapeError, match="one item it gave a tuple"):
        SubsetSelector(**{**TINY, "phi": tuples}).fit(*choices)


def test_fits_in_threads_give_the_same_result(choices, seeded):
    with seeded(0):
        phis = ("context", torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.3)))
    for phi in phis:

        def fit(_=None, phi=phi):
            return SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 2}).fit(*choices).decision_function(choices.sets)

        alone, state = fit(), torch.get_rng_state()
        with ThreadPoolExecutor(4) as pool:
            result = list(pool.map(fit, range(4)))
        assert all(torch.equal(one.values, alone.values) for one in result)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_learned_function_accepts_what_predict_accepts(choices):
    selector = SubsetSelector(**TINY).fit(*choices)
    items: Any = list(choices.sets)
    picks = selector.predict(items)
    bound = selector.function_.bind(choices.sets)
    assert torch.equal(selector.function_.value(items, picks), bound.value(picks.values[None]))
    assert torch.equal(selector.function_.gains(items, picks), bound.gains(picks.values[None]))


def test_scores_that_are_not_finite_raise(choices):
    selector = SubsetSelector(**TINY).fit(*choices)
    scores = selector.decision_function(choices.sets)
    values = scores.values.clone()
    values[choices.sets.layout.ids == 3] = math.nan
    with pytest.raises(DataError, match="scores of set 3 are not finite"):
        selector.predict(choices.sets, scores=scores.with_values(values))


def test_sets_without_items_do_not_change_the_smallest_size(choices):
    one = [[0]] * len(choices)
    empty = Sets.from_lengths(choices.sets.values, [*choices.sets.layout.host_lengths, 0])
    for held in (None, (choices.sets, one)):
        assert SubsetSelector(**TINY).fit(empty, [*one, []], validation=held).min_size_ == 1


def test_a_boolean_of_numpy_is_an_option(choices):
    SubsetSelector(**{**TINY, "standardize": np.bool_(True), "max_epochs": 1}).fit(*choices)


def test_a_fit_in_inference_mode_gives_the_same_result(choices):
    wanted = SubsetSelector(**TINY).fit(*choices).decision_function(choices.sets).values
    with torch.inference_mode():
        items = choices.sets.with_values(choices.sets.values * 1)
        result = SubsetSelector(**TINY).fit(items, choices.subsets).decision_function(choices.sets).values
    assert torch.equal(result, wanted)

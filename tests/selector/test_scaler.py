"""The scale of features: a few values far away do not flatten the others, and numbers of any size keep their order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import setgrad as sg
from setgrad.errors import DataError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._moments import column_moments
from setgrad.selector._scaler import compress, fit_scale, name_features
from tests.models import rewrite
from tests.selector.conftest import TINY

NO_CODES = torch.zeros(3, dtype=torch.bool)
name_of = name_features(None)


def normal(rows=2000, columns=3, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scale_of(values, codes=NO_CODES):
    return fit_scale(values, column_moments(values), codes, name_of)


def test_usual_features_have_mean_and_standard_deviation():
    rare = (normal(seed=1) > 2.5).double()
    for values in (normal() * 3 + 5, normal().exp(), rare, rare * normal(seed=2), normal().round()):
        scale = scale_of(values)
        assert torch.equal(scale.centre, values.mean(0))
        assert torch.equal(scale.spread, values.std(0, correction=0))
        assert not scale.compressed.any()


@pytest.mark.parametrize("far", [1e12, -1e30, 1e150])
def test_one_value_far_away_does_not_change_the_scale_of_the_others(far):
    values = normal()
    values[3, 1] = far
    with pytest.warns(RuntimeWarning, match=r"^feature 1 \(counted from 0\): a few values are so far away"):
        scale = scale_of(values)
    assert scale.compressed.tolist() == [False, True, False]
    # The median is 0 and the spread 1, up to sampling.
    assert abs(scale.centre[1]) < 0.1 and abs(scale.spread[1] - 1) < 0.1


def test_values_that_most_items_share_do_not_hide_the_spread_of_the_rest():
    """As a price that few items have."""
    values = normal()
    values[: len(values) * 9 // 10] = 0
    values[-1, 2] = 1e12
    with pytest.warns(RuntimeWarning, match="feature 2"):
        assert 0.7 < scale_of(values).spread[2] < 1.3


def test_heavy_tails_are_scaled_by_quantiles():
    from scipy.stats import t

    values = normal()
    values[:, 0] = torch.from_numpy(t.ppf((np.arange(len(values)) + 0.5) / len(values), 1))
    with pytest.warns(RuntimeWarning, match="feature 0"):
        scale = scale_of(values)
    np.testing.assert_allclose(scale.spread[0], t.ppf(0.95, 1) / 1.645, rtol=0.02)


def test_codes_stay_as_they_are():
    values = normal()
    values[:, 1] = 0
    values[0, 1] = 1e6
    codes = torch.tensor([False, True, False])
    scale = scale_of(values, codes)
    assert (scale.centre[1], scale.spread[1], scale.compressed.any()) == (0, 1, False)


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e-150, 1e100])
def test_a_feature_in_a_tiny_unit_is_not_constant(unit):
    scale = scale_of(normal() * unit)
    torch.testing.assert_close(scale.spread / unit, normal().std(0, correction=0), rtol=1e-10, atol=0)


def test_differences_that_are_rounding_are_named():
    values = normal()
    values[:, 2] = 1e9 + torch.arange(len(values), dtype=torch.float64).remainder(2) * 1e-6
    with pytest.warns(RuntimeWarning, match=r"feature 2 .* differ by no more than rounding"):
        scale = scale_of(values)
    assert scale.spread[2] == torch.inf
    # Equal values are no surprise.
    values[:, 2] = 1e9
    assert scale_of(values).spread[2] == torch.inf


def test_values_whose_squares_overflow_raise():
    with pytest.raises(DataError, match=r"feature 0 \(counted from 0\) are so large"):
        scale_of(normal() * 1e200)


def test_many_features_are_counted():
    values = normal(columns=70)
    values[0] = 1e9
    with pytest.warns(RuntimeWarning, match=r"feature 4 \(counted from 0\) and 65 more: a few"):
        assert scale_of(values, torch.zeros(70, dtype=torch.bool)).compressed.all()


def test_compression_is_linear_near_0_and_increases_everywhere():
    near = torch.linspace(-4, 4, 101, dtype=torch.float64)
    assert torch.equal(compress(near), near)
    far = torch.tensor([3.99, 4.0, 4.01, 10.0, 1e3, 1e6, 1e12, 1e300], dtype=torch.float64)
    assert (compress(far).diff() > 0).all() and compress(far)[-1] < 700
    assert torch.equal(compress(-far), -compress(far))
    # Smooth at the border.
    border = torch.tensor([4 - 1e-9, 4 + 1e-9], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(compress(border).sum(), border)
    torch.testing.assert_close(gradient, torch.ones(2, dtype=torch.float64))


def draw_table(far, sets=60, size=8, seed=0):
    """Return a table whose items with a large price are chosen; one price may be far away."""
    draw = np.random.default_rng(seed)
    price = draw.normal(size=sets * size)
    chosen = price > 0.7
    # In all sets, so that it is among those of training.
    price[::80] = far
    names = {"set": np.repeat(np.arange(sets), size), "price": price, "other": draw.normal(size=len(price))}
    return pd.DataFrame({**names, "chosen": chosen})


def fit(frame, columns=None):
    selector = SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 8})
    return selector.fit(frame, set_id="set", chosen="chosen", columns=columns)


def test_a_fit_names_the_column_and_is_saved_with_its_scale(tmp_path):
    frame = draw_table(1e12)
    with pytest.warns(RuntimeWarning, match=r"^column 'price': a few values are so far away"):
        selector = fit(frame)
    assert selector.model_.compressed.tolist() == [True, False]
    selector.save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert torch.equal(again.model_.compressed, selector.model_.compressed)
    probability = selector.predict(frame)["probability"]
    pd.testing.assert_series_equal(again.predict(frame)["probability"], probability)
    # A set alone has the probabilities that it has among others.
    first = selector.predict(frame[frame["set"] == 1])["probability"]
    np.testing.assert_allclose(first, probability[frame["set"] == 1], rtol=0, atol=1e-12)


def test_one_value_far_away_costs_no_score():
    usual = draw_table(0.0, seed=1)
    plain = fit(draw_table(0.0)).score(usual)
    with pytest.warns(RuntimeWarning, match="column 'price'"):
        assert fit(draw_table(1e12)).score(usual) > plain - 0.1


def test_models_without_this_scale_load(fitted, tmp_path):
    from setgrad._files import from_tensor_bytes, tensor_bytes

    fitted.save(tmp_path / "model")
    tensors = from_tensor_bytes((tmp_path / "model" / "weights.safetensors").read_bytes())[0]
    del tensors["compressed"]
    rewrite(tmp_path / "model", "weights.safetensors", tensor_bytes(tensors))
    again = load(tmp_path / "model", device="cpu")
    assert {name: t.shape for name, t in again.model_.state_dict().items()} == {
        name: t.shape for name, t in fitted.model_.state_dict().items()
    }
    assert not again.model_.compressed.any()


@pytest.mark.parametrize("offset", [2**53, -(2**60)])
def test_whole_numbers_with_too_many_digits_are_refused(offset, tmp_path):
    """They would be equal as floating-point numbers."""
    frame = draw_table(0.0)
    frame["time"] = offset + np.arange(len(frame)) * (1 if offset > 0 else -1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, tmp_path / "t.csv"):
        with pytest.raises(DataError, match=r"column 'time', row .*more digits than a number keeps; .*subtract"):
            sg.read_table(table, set_id="set", chosen="chosen", features=["time"])
    with pytest.raises(DataError, match=r"column 'time', row .*more digits than a number keeps"):
        fit(frame, columns={"time": "number"})
    items = frame["time"].to_numpy().reshape(60, 8, 1)
    with pytest.raises(DataError, match=r"whole numbers beyond 2\*\*53"):
        SubsetSelector(**TINY).fit(items, frame["chosen"].to_numpy().reshape(60, 8))


def test_close_numbers_far_from_0_keep_their_differences():
    """In float32 1e9 + 1 is 1e9, so they are read and centred in float64."""
    plain, far = draw_table(0.0), draw_table(0.0)
    far["price"] = 1e9 + far["price"]
    assert fit(far).score(far) > fit(plain).score(plain) - 0.05
    arrays = [frame[["price", "other"]].to_numpy().reshape(60, 8, 2) for frame in (plain, far)]
    chosen = plain["chosen"].to_numpy().reshape(60, 8)
    scores = [
        SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 8}).fit(items, chosen).score(items, chosen)
        for items in arrays
    ]
    assert scores[1] > scores[0] - 0.05

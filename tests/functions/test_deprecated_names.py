"""Old names of the package `setgrad.functions`."""

import pytest

from setgrad import functions


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DeepSet", "DeepSetFunction"),
        ("Direct", "ItemScores"),
        ("Estimator", "ExtensionEstimator"),
        ("Fresh", "FreshNoise"),
        ("Frozen", "FrozenNoise"),
        ("Horse", "HorseFunction"),
        ("Inset", "InsetFunction"),
        ("Noise", "NoiseSource"),
    ],
)
def test_an_old_name_still_works_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=rf"functions\.{old} is now setgrad\.functions\.{new}; .* in 0\.3\.0"):
        assert getattr(functions, old) is getattr(functions, new)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = functions.no_such_name  # type: ignore[attr-defined]

"""The benchmark of several processes: how far fits are apart."""

from benchmarks.speed.processes import _difference


def test_fits_are_as_far_apart_as_their_largest_difference():
    first = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    assert _difference(first, [{"epoch": 1, "loss": 2.25}, {"epoch": 2, "loss": 1.125}]) == 0.25
    assert _difference(first, first) == 0.0
    assert _difference(first, first[:1]) == float("inf")
    assert _difference(first, [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "score": 1.0}]) == float("inf")

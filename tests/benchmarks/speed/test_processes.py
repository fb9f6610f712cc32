"""The benchmark of several processes: how far fits are apart."""

from benchmarks.speed.processes import _COMPARED, _difference


def test_fits_are_as_far_apart_as_in_their_worst_epoch():
    first = [dict.fromkeys(_COMPARED, value) for value in (2.0, 1.0)]
    other = [{**first[0], "loss": 2.25}, {**first[1], "loss": 1.125, "validation_jaccard": 0.5}]
    assert _difference(first, other) == {"loss": 0.25, "validation_loss": 0.0, "validation_jaccard": 0.5}
    assert _difference(first, first[:1]) == dict.fromkeys(_COMPARED, float("inf"))

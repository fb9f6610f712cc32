"""The experiment about where mean field starts: its networks, and the scores that belong together."""

from functools import partial

import pytest
import torch

from benchmarks.lib.records import RunContext
from benchmarks.selection import copula
from benchmarks.selection.copula import VARIANTS, ScaledStart, Trial, fit, show
from setgrad.encoders import LinearItems
from setgrad.functions import FreshNoise
from setgrad.selector._tables import RECOGNITIONS
from setgrad.sets import Sets
from tests.benchmarks.helpers import Seeded


def test_a_scaled_start_has_the_draws_of_its_network(seeded: Seeded) -> None:
    with seeded(0):
        network = ScaledStart(LinearItems(2, 8), (8,), factor=0.1)
        sets = Sets.from_list([torch.randn(4, 2), torch.randn(2, 2)])
    torch.testing.assert_close(network.start(sets), 0.1 * network.inner.start(sets))
    draws = [one.draw(sets, FreshNoise(0), 3).scores for one in (network, network.inner)]
    assert torch.equal(*draws)


def test_a_start_at_a_half_is_that_of_diffmf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copula, "_MANY_DRAWS", 50)
    monkeypatch.setitem(VARIANTS, "copula-x0", ("equivset-copula", partial(ScaledStart, factor=0.0)))
    usual = RECOGNITIONS["copula"]
    records = []
    for name in ("copula-x0", "half"):
        trial = Trial("moons", name, 0, "", quick=True)
        records.append({"task": "moons", "variant": name, **fit(trial, RunContext(device="cpu"))})
    assert RECOGNITIONS["copula"] is usual
    found = records[0]
    assert found["true_size"] == found["from_half"]
    assert found["distance"] == 0
    # The start does not tell items apart, so it chooses the first ones.
    assert found["start"] < 60
    assert 0 < found["estimate"] < found["independent"]
    assert found["entropy"] < found["independent"]
    lines = show(records).splitlines()
    assert len(lines) == 4 and f"| {found['true_size']:.1f} |" in " ".join(lines[2].split())

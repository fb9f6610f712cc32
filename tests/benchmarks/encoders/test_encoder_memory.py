"""The benchmark of encoder memory: gradients agree, the file is as described, peaks grow where they should."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.encoders import encoder_memory
from tests.benchmarks.helpers import CPU


def test_items_do_not_depend_on_their_number(tmp_path: Path) -> None:
    few, more = (np.load(encoder_memory.write_items(tmp_path / f"{n}.npy", n)) for n in (70, 150))
    assert few.shape == (70, 16) and few.dtype == np.float32
    np.testing.assert_array_equal(few, more[:70])


@pytest.mark.parametrize("passes", [1, 3])
def test_ways_give_one_gradient(tmp_path: Path, passes: int) -> None:
    path = str(encoder_memory.write_items(tmp_path / "items.npy", 250))
    found = {}
    for way in encoder_memory.WAYS if passes == 1 else ("full", "exact"):
        encoder = encoder_memory.make_encoder(CPU, passes)
        encoder_memory.step(encoder, encoder_memory.Case(path, 250, way, chunk=60, passes=passes))
        found[way] = torch.cat([g.flatten() for g in encoder_memory.gradients(encoder)])
    for way, gradient in found.items():
        assert float((gradient - found["full"]).norm() / found["full"].norm()) < 1e-5, way
    # The gradient reaches the first layer.
    first = next(encoder.phi.parameters()).grad
    assert first is not None and float(first.norm()) > 1e-3 * float(found["full"].norm())


def test_peak_of_the_whole_graph_grows_and_that_of_two_passes_does_not(tmp_path: Path) -> None:
    few, many = (encoder_memory.write_items(tmp_path / f"{n}.npy", n) for n in (4000, 20_000))
    full = [
        encoder_memory.peak_of(encoder_memory.Case(str(path), 0, "full", chunk=1000), CPU).step for path in (few, many)
    ]
    exact = [
        encoder_memory.peak_of(encoder_memory.Case(str(path), 0, "exact", chunk=1000), CPU).step for path in (few, many)
    ]
    # Two layers of 256 and 128 numbers, keys and values of 256: the backward pass needs at least these.
    assert full[1] - full[0] > 16_000 * 4 * (256 + 128 + 256)
    assert exact[1] - exact[0] < (full[1] - full[0]) / 10


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.encoders.encoder_memory.SIZES", (300, 600))
    monkeypatch.setattr("benchmarks.encoders.encoder_memory.LARGEST", {"exact": 600, "full": 300, "checkpoint": 600})
    monkeypatch.setattr("benchmarks.encoders.encoder_memory.REPEATS", 1)
    # The test above starts processes; here one is enough.
    monkeypatch.setattr("benchmarks.encoders.encoder_memory.peak_of", encoder_memory.peak_here)
    file = tmp_path / "memory.json"
    arguments = ["encoder-memory", "--quick", "--folder", str(tmp_path), "--json", str(file)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "| 300 " in shown and "target: at most 5%" in shown
    small, large = json.loads(file.read_text())["rows"]
    assert set(small) == {"items", *encoder_memory.WAYS} and "full" not in large
    assert list(tmp_path.iterdir()) == [file], "nothing is left behind"


def test_spread_and_turns(tmp_path: Path) -> None:
    assert encoder_memory.relative_spread([100, 104, 102]) == pytest.approx(0.04)
    cases = [
        encoder_memory.Case(str(encoder_memory.write_items(tmp_path / "items.npy", 40)), 40, way)
        for way in encoder_memory.WAYS
    ]
    assert list(encoder_memory.time_cases(cases, CPU)) == list(encoder_memory.WAYS)

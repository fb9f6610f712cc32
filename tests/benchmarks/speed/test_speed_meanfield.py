"""Steps train, peaks are real, the fit of the exponent is right. No test asserts a time."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.lib.timing import growth_exponent, time_in_turns
from benchmarks.speed.step_memory import peak_here, peak_of
from benchmarks.speed.steps import MODELS, WAYS, Case, make_batch, make_step
from tests.benchmarks.helpers import CPU


def test_batch_is_what_the_case_says() -> None:
    sets, subsets = make_batch(Case(3, 40), CPU)
    assert sets.layout.host_lengths.tolist() == [40, 40, 40]
    assert [int(mask.sum()) for mask in subsets] == [4, 4, 4]


def test_both_ways_start_from_the_same_networks_and_learn() -> None:
    batch = make_batch(Case(4, 20), CPU)
    first = {}
    for way in WAYS:
        step = make_step(Case(4, 20, way), CPU)
        losses = [float(step(batch)) for _ in range(40)]
        first[way] = losses[0]
        assert sum(losses[-5:]) < sum(losses[:5])
    # Summed over 2 chosen items and 2 others of each set; psi near 1/2 costs ln 2 an item.
    assert first["setgrad"] == pytest.approx(first["mask-tensor"], rel=0.1)


def test_default_model_trains_on_all_items() -> None:
    step = make_step(Case(2, 30, model="context"), CPU)
    batch = make_batch(Case(2, 30), CPU)
    losses = [float(step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert MODELS == ("paper", "context")


def test_rounds_are_interleaved_and_the_warm_up_is_not_counted() -> None:
    calls: list[str] = []
    timings = time_in_turns([lambda: calls.append("a"), lambda: calls.append("b")], CPU, 3)
    assert calls == ["a", "b"] * 5
    assert len(timings) == 2


def test_peak_in_a_new_process_includes_a_large_step() -> None:
    large = Case(1, 400, "mask-tensor")
    # Masks with and without the item are alive at once: 2 x 5 x 400 x 400 numbers of 4 bytes, at the least.
    peak = peak_of(large, CPU)
    assert peak.step > 2 * 5 * 400 * 400 * 4
    assert peak.base > 50e6, "an interpreter with torch is larger than this"
    assert peak.total == peak.base + peak.step


def test_peak_in_this_process_counts_from_the_base() -> None:
    peak = peak_here(Case(1, 30), CPU)
    assert peak.step >= 0
    assert peak.seconds > 0


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_exponent_of_a_power_law(power: float) -> None:
    items = [1000, 3000, 10_000]
    assert growth_exponent(items, [7.0 * n**power for n in items]) == pytest.approx(power)


def test_command_writes_tables_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The test of a new process starts one; here one is enough.
    monkeypatch.setattr("benchmarks.speed.speed_meanfield.peak_of", peak_here)
    file = tmp_path / "speed.json"
    assert main(["speed-meanfield", "--quick", "--parts", "speed", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "| B=8, n=20, k=2" in shown
    stored = json.loads(file.read_text())
    assert stored["benchmark"] == "speed-meanfield"
    assert [row["items"] for row in stored["speed"]] == [20]
    assert all(row["ratio"] == row["mask_tensor"]["clock"] / row["setgrad"]["clock"] for row in stored["speed"])

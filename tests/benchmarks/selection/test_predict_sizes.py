"""Sets of all sizes are measured, and a result that depends on the batch fails. No test asserts a time."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.selection.predict_sizes import MIXED, SIZES, compare_mixed, fit_model, make_set, measure, measure_sizes
from setgrad import SubsetSelector
from setgrad.sets import Sets
from tests.benchmarks.helpers import CPU


@pytest.fixture(scope="module")
def selector() -> SubsetSelector:
    return fit_model("induced", CPU, quick=True)


def test_claimed_sizes_are_covered() -> None:
    assert (SIZES[0], SIZES[-1]) == (1, 100_000)
    assert (min(MIXED), max(MIXED)) == (1, 10_000)


@pytest.mark.parametrize("items", [1, 10, 37])
def test_a_set_has_the_requested_size(items: int) -> None:
    sets, subsets = make_set(items)
    assert sets.layout.host_lengths.tolist() == [items]
    assert int(subsets.values.sum()) == max(1, items // 10)


def test_peak_grows_with_the_set(selector: SubsetSelector) -> None:
    selector.predict(make_set(10).sets)
    cost = measure(selector, 1000, CPU)
    # Flipped subsets alone: 20 samples, 1000 items, 256 units in float64.
    assert cost.peak > 20 * 1000 * 256 * 8
    assert 0 <= cost.score <= 1


def test_sets_of_a_mixed_batch_are_as_alone(selector: SubsetSelector) -> None:
    found = compare_mixed(selector, [30, 1, 200, 7], CPU)
    assert found["same"] == found["sets"] == 4
    assert found["largest_difference"] == 0


def test_a_result_that_depends_on_the_batch_fails(selector: SubsetSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    true = SubsetSelector.decision_function

    def leaky(self: SubsetSelector, sets: Sets) -> Sets:
        logits = true(self, sets)
        return logits.with_values(logits.values + 1e-6 * (len(sets) - 1))

    monkeypatch.setattr(SubsetSelector, "decision_function", leaky)
    found = compare_mixed(selector, [30, 1, 200], CPU)
    assert found["same"] < found["sets"]
    assert found["largest_difference"] > 1e-7


def test_out_of_memory_is_a_result(selector: SubsetSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    true = SubsetSelector.predict

    def small_machine(self: SubsetSelector, sets: Sets) -> Sets:
        if sets.layout.longest > 100:
            raise torch.OutOfMemoryError("no room")
        return true(self, sets)

    monkeypatch.setattr(SubsetSelector, "predict", small_machine)
    monkeypatch.setattr(SubsetSelector, "score_true_size", lambda self, sets, subsets: 1.0)
    found = measure_sizes(selector, [1, 10, 100, 1000, 10_000], CPU)
    assert found["out_of_memory"] == 1000
    assert found["exponent_sizes"] == [10, 100]


def test_command_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.json"
    assert main(["predict-sizes", "--quick", "--largest", "100", "--device", "cpu", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "## attention=full" in shown
    assert "## attention=induced" in shown
    stored = json.loads(file.read_text())
    assert [cost["items"] for cost in stored["full"]["sizes"]] == [1, 10, 100]
    assert stored["failed"] == 0


def test_growth_needs_more_than_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict-sizes", "--largest", "5"]) == 1
    assert "--largest must be at least" in capsys.readouterr().err

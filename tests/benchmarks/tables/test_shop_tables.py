"""The benchmark of mixed tables: rivals choose as many as they should, and the command runs, resumes and compares."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.lib.records import read_records
from benchmarks.tables import rivals
from benchmarks.tables.methods import as_sets, fit_method
from benchmarks.tables.rivals import RIVALS
from benchmarks.tables.shop import Shop, draw_shop
from benchmarks.tables.shop_tables import task_table
from setgrad.sets import subset_sizes

pytest.importorskip("pandas")
_NEEDS = {"lightgbm": "lightgbm", "catboost": "catboost", "logistic": "sklearn"}


@pytest.fixture(scope="module")
def shop() -> Shop:
    return draw_shop("bargain", seed=0, n_train=30, n_test=10)


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_choose_the_sizes_that_are_asked_for(name: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # A few rounds: sizes do not depend on how good the trees are.
    monkeypatch.setattr(rivals, "_ROUNDS", 10)
    for part, library in _NEEDS.items():
        if name.startswith(part):
            pytest.importorskip(library)
    predict = fit_method(name, shop, seed=0, options={}, device=None)
    wanted = np.arange(10) % 7
    # Without labels, so that a rival cannot read them.
    frame = shop.test.drop(columns="bought")
    chosen = predict(frame, wanted)
    assert np.array_equal(subset_sizes(as_sets(chosen, frame)), wanted)
    # As the default, a rival never chooses fewer than the smallest training subset has.
    assert min(subset_sizes(as_sets(predict(frame, None), frame))) >= 1
    again = fit_method(name, shop, seed=0, options={}, device=None)(frame, wanted)
    assert np.array_equal(chosen, again)


def test_command_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "t.jsonl"
    run = ["shop-tables", "--quick", "--device", "cpu", "--seeds", "1", "--tables", "taste", "--results", str(results)]
    assert main([*run, "--models", "chance,oracle"]) == 0
    assert main([*run, "--models", "chance,one-hot,numbers,oracle"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 trials" in shown and "## taste" in shown
    scores = {record["model"]: record["true_size"] for record in read_records(results)}
    assert scores["oracle"] > 40 > scores["chance"]


def test_leads_are_paired_by_seed() -> None:
    def record(model: str, seed: int, score: float) -> dict[str, object]:
        scores = {"true_size": score, "own_size": score - 1}
        return {"model": model, "seed": seed, **scores, "seconds": 2.0, "predict_seconds": 0.5}

    ours = [record("default", seed, score) for seed, score in enumerate((50.0, 60.0))]
    # Seed 2 has no fit of ours: it counts in the mean of the row, not in the lead.
    theirs = [record("lightgbm", seed, score) for seed, score in enumerate((40.0, 54.0, 47.0))]
    first, second = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in task_table([*theirs, *ours]).splitlines()[2:]
    )
    assert first == ["default", "2", "55.0 ± 5.0", "-", "54.0 ± 5.0", "-", "2.00", "0.50"]
    lead = "+8.0 = +4.0 se"
    assert second[:6] == ["lightgbm", "3", "47.0 ± 4.0", lead, "46.0 ± 4.0", lead]

"""Training through a budget: the subsets are the best within it, the scores those of their definitions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.selection.constrained import METHODS, best_threshold, measure, show
from benchmarks.selection.constrained_tasks import BudgetTask, Part, energy, make_part
from setgrad import SubsetSelector
from setgrad.sets import Sets


@pytest.fixture
def energy_dir(tmp_path: Path) -> Path:
    """Values that are a weight times a price, which is one of the features."""
    rng = np.random.default_rng(0)
    weights = rng.choice([3, 5, 7], 48)
    parts = []
    for first, days in ((0, 60), (60, 12)):
        features = rng.uniform(1, 2, (days * 48, 8))
        day = first + np.repeat(np.arange(days), 48)[:, None]
        parts.append((np.hstack([day, features]), features[:, 3] * np.tile(weights, days)))
    (x, y), (x_test, y_test) = parts
    folder = tmp_path / "knapsack_energy"
    folder.mkdir()
    np.savez(folder / "Data.npz", weights=weights, X_1gtrain=x, y_train=y, X_1gtest=x_test, y_test=y_test)
    return tmp_path


def small_part() -> Part:
    sets = Sets.from_lengths(torch.zeros(6, 1), [3, 3])
    return make_part(sets, torch.tensor([2, 2, 3, 1, 4, 4]), torch.tensor([1.0, 2.0, 2.5, -1.0, 3.0, 4.0]), 4)


def test_subsets_are_the_best_within_the_budget() -> None:
    part = small_part()
    assert [mask.tolist() for mask in part.choices.subsets] == [[True, True, False], [False, False, True]]
    second = part.take(np.array([1]))
    assert second.choices.subsets.values.tolist() == [False, False, True]
    assert second.worth.values.tolist() == [-1.0, 3.0, 4.0] and second.budget.budget.tolist() == [4.0]


def test_scores_are_shares_of_the_worth_of_the_best() -> None:
    part = small_part()
    task = BudgetTask(part, part, part)
    assert measure(part.choices.subsets, task) == {"jaccard": 100.0, "regret": 0.0}
    other = part.choices.subsets.with_values(torch.tensor([True, False, False, False, True, False]))
    scores = measure(other, task)
    assert scores["jaccard"] == pytest.approx(25)
    assert scores["regret"] == pytest.approx(100 * 3 / 7)


def test_splits_of_energy_share_the_test_days_and_differ_in_validation(energy_dir: Path) -> None:
    first, second = (energy(number, str(energy_dir), False) for number in range(2))
    assert [len(part.choices) for part in (first.train, first.validation, first.test)] == [48, 12, 12]
    assert torch.equal(first.test.choices.sets.values, second.test.choices.sets.values)
    assert not torch.equal(first.validation.choices.sets.values, second.validation.choices.sets.values)
    for part in (first.train, first.test):
        costs = [cost[mask].sum().item() for cost, mask in zip(part.budget.costs, part.choices.subsets, strict=True)]
        assert max(costs) <= 60 and min(costs) > 50


def test_the_threshold_is_the_best_of_the_validation_sets(energy_dir: Path) -> None:
    task = energy(0, str(energy_dir), True)
    selector = SubsetSelector(dim=16, hidden=(16,), max_epochs=1, random_state=0, verbose=0, device="cpu")
    selector.fit(*task.train.choices, validation=tuple(task.validation.choices))
    found, held = best_threshold(selector, task.validation), task.validation

    def score(threshold: float) -> float:
        picks = selector.predict(held.choices.sets, constraint=held.budget, threshold=threshold)
        return measure(picks, BudgetTask(held, held, held))["jaccard"]

    assert score(found) >= max(score(0.5), score(0.1), score(0.01)) - 1e-9


def test_command(energy_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, records = tmp_path / "found.json", tmp_path / "records.jsonl"
    arguments = ["constrained-training", "--quick", "--tasks", "energy", "--data-dir", str(energy_dir)]
    rest = ["--device", "cpu", "--seeds", "1", "--results", str(records)]
    assert main([*arguments, *rest, "--json", str(file)]) == 0
    found = json.loads(file.read_text())["records"]
    assert [record["method"] for record in found] == list(METHODS)
    assert all(0 <= record["jaccard"] <= 100 for record in found)
    capsys.readouterr()
    assert main([*arguments, *rest]) == 0
    assert "12 of 12 trials are in records.jsonl; 0 to run" in capsys.readouterr().out
    assert main(["constrained-training", "--gradients", "magic"]) == 1


def test_differences_are_paired_by_split() -> None:
    records = [
        {"task": "energy", "method": method, "seed": seed, "jaccard": value, "regret": 10 - value}
        for method, values in (("fenchel-young", (1.0, 5.0)), ("imle, jaccard", (2.0, 7.0)))
        for seed, value in enumerate(values)
    ]
    text = show(records)
    assert "+1.5 (0.5)" in text and "-1.5 (0.5)" in text and "3.0 ± 2.8" in text

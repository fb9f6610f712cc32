"""Energy under a budget: how days are read, and that losses and regret are those of the definitions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.decisions import Examples, SPOPlus
from benchmarks.discrete.knapsack import ALL, make_network, measure, read_days
from setgrad.discrete import Knapsack, regret
from tests.benchmarks.helpers import Seeded


@pytest.fixture
def energy_dir(tmp_path: Path) -> Path:
    """Values that are a weight times a price, which is one of the features."""
    rng = np.random.default_rng(0)
    weights = rng.choice([3, 5, 7], 48)
    parts = []
    for first, days in ((0, 100), (100, 40)):
        features = rng.uniform(1, 2, (days * 48, 8))
        day = first + np.repeat(np.arange(days), 48)[:, None]
        parts.append((np.hstack([day, features]), features[:, 3] * np.tile(weights, days)))
    (x, y), (x_test, y_test) = parts
    folder = tmp_path / "knapsack_energy"
    folder.mkdir()
    np.savez(folder / "Data.npz", weights=weights, X_1gtrain=x, y_train=y, X_1gtest=x_test, y_test=y_test)
    return tmp_path


def test_days_are_scaled_by_the_first_part(energy_dir: Path) -> None:
    days = read_days(str(energy_dir), "plain")
    features, values = days.learnt
    assert features.shape == (100, 48, 8) and days.tested[0].shape == (40, 48, 8)
    assert torch.allclose(features.flatten(0, 1).mean(0), torch.zeros(8), atol=1e-5)
    assert float(values.std()) == pytest.approx(1, abs=1e-3)
    wide = read_days(str(energy_dir), "weights").learnt[0]
    # Each feature and a one, for each of three weights; 0 for weights other than that of the item.
    assert wide.shape == (100, 48, 8 + 9 * 3)
    kind = np.unique(days.weights).tolist().index(int(days.weights[5]))
    apart = wide[2, 5, 8:].reshape(9, 3)
    assert torch.equal(apart[:8, kind], features[2, 5]) and float(apart[8, kind]) == 1
    assert float(apart[:, [i for i in range(3) if i != kind]].abs().sum()) == 0


def test_spo_plus_bounds_the_regret_and_is_0_for_the_truth() -> None:
    chance = torch.Generator().manual_seed(0)
    truth = torch.rand(20, 6, generator=chance, dtype=torch.float64)
    for sense, sign in (("max", 1), ("min", -1)):
        solver = Knapsack([2, 3, 4, 5, 3, 2], 9, sense=sense)
        costs = sign * truth
        examples = Examples(costs, solver(costs), costs)
        criterion = SPOPlus(solver)
        assert torch.allclose(criterion(costs, examples), torch.zeros(20, dtype=torch.float64))
        guess = (sign * torch.rand(20, 6, generator=chance, dtype=torch.float64)).requires_grad_()
        losses = criterion(guess, examples)
        assert bool((losses >= regret(solver(guess), costs, solver=solver) - 1e-12).all())
        losses.sum().backward()
        found = solver(2 * guess.detach() - costs)
        assert guess.grad is not None and torch.equal(guess.grad, 2 * sign * (found - examples.answers))


def test_regret_of_the_truth_and_of_nothing(seeded: Seeded) -> None:
    solver = Knapsack([1, 1, 1], 2)
    truth = torch.tensor([[1.0, 2.0, 3.0]])
    examples = Examples(truth, solver(truth), truth)
    assert measure(truth, examples, solver)["regret"] == 0
    assert measure(-truth, examples, solver)["regret"] == 100
    assert measure(truth.flip(1), examples, solver)["regret"] == pytest.approx(40)
    with seeded():
        network = make_network("mlp", 8, 1.5)
    assert network(torch.zeros(2, 48, 8)).shape == (2, 48)


def test_command(energy_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    names = "by weight,ridge,two-stage linear,spo+ linear,identity norm mlp"
    arguments = ["knapsack", "--quick", "--methods", names, "--features", "weights", "--data-dir", str(energy_dir)]
    assert main([*arguments, "--device", "cpu", "--json", str(file)]) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    # Values are linear in features for each weight, so that a linear fit loses nothing.
    assert records["ridge"]["regret"] < 0.1 < records["by weight"]["regret"]
    assert records["spo+ linear"]["calls"] == records["identity norm mlp"]["calls"] == 6
    assert "weights, 60: regret" in capsys.readouterr().out


def test_invalid_options_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(ALL)) == len(ALL)
    assert main(["knapsack", "--quick", "--data-dir", str(tmp_path)]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["knapsack", "--quick", "--budgets", "much"]) == 1

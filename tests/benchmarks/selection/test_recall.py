"""The benchmark of recall: a model of random logits keeps the promise too."""

import json

import numpy as np
import torch

from benchmarks.__main__ import main
from benchmarks.selection.recall import NOMINAL, measure_recall
from setgrad import SubsetSelector
from setgrad.sets import Choices, Sets


def test_the_promise_holds_on_average():
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_lengths(torch.randn(2000, 2, generator=generator), [10] * 200)
    choices = Choices(sets, sets.with_values(torch.rand(2000, generator=generator) < 0.3))
    selector = SubsetSelector(dim=8, hidden=(8,), layers=0, max_epochs=1, random_state=0, verbose=0).fit(*choices)
    found = measure_recall(selector, choices, nominals=NOMINAL, splits=60, seed=0)
    assert found["calibration_sets"] == 100
    for nominal in NOMINAL:
        mean, deviation = found["recall"][str(nominal)]
        error = 3 * deviation / np.sqrt(60)
        assert 100 * nominal - error <= mean <= 100 * (nominal + 2 / 101) + error


def test_command(tmp_path, capsys):
    file = tmp_path / "found.json"
    command = ["recall", "--quick", "--device", "cpu", "--json", str(file), "--results", str(tmp_path / "r.jsonl")]
    assert main(command) == 0
    assert len(json.loads(file.read_text())["records"]) == 2
    assert "| task | model" in " ".join(capsys.readouterr().out.split())

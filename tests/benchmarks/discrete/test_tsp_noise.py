"""Disturbed tours: labels and gradients are disturbed as described, and the command records the curve."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.__main__ import main
from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Examples
from benchmarks.discrete.tsp_noise import noisy, with_wrong_labels
from setgrad.discrete import TSP
from tests.benchmarks.discrete.test_tsp import globe_dir
from tests.benchmarks.helpers import generator

__all__ = ["globe_dir"]


def test_labels_change_with_the_given_probability() -> None:
    tours = TSP()(torch.rand(500, 6, 6, generator=generator()))
    examples = Examples(torch.zeros(500, 6), tours, torch.zeros(500, 6, 6))
    changed = with_wrong_labels(examples, 0.25, generator()).answers
    assert torch.equal(changed, changed.mT) and bool(((changed == 0) | (changed == 1)).all())
    assert not changed.diagonal(dim1=1, dim2=2).any()
    assert float((changed != tours).float().mean()) == pytest.approx(0.25 * 5 / 6, abs=0.01)
    assert torch.equal(with_wrong_labels(examples, 0.0, generator()).answers, tours)


def test_noise_is_added_to_the_gradient_and_not_to_the_loss() -> None:
    points = torch.rand(400, 5, 5, generator=generator())
    batch = Examples(torch.zeros(400, 5), torch.zeros(400, 5, 5), torch.zeros(400, 5, 5))
    losses: list[Tensor] = []
    grads: list[Tensor] = []
    for loss in (decisions.l1, noisy(decisions.l1, 2.0, generator())):
        z = points.clone().requires_grad_()
        losses.append(loss(z, batch, TSP()))
        grads += torch.autograd.grad(losses[-1].sum(), z)
        assert not loss(points, batch, TSP()).requires_grad
    assert torch.equal(*losses)
    noise = grads[1] - grads[0]
    assert float(noise.std()) == pytest.approx(2.0, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.1)


def test_command(globe_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    arguments = ["tsp-noise", "--quick", "--methods", "identity std margin,blackbox", "--cities", "4"]
    assert main([*arguments, "--data-dir", str(globe_dir), "--device", "cpu", "--json", str(file)]) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    assert records["blackbox"]["calls"] == 2 * records["identity std margin"]["calls"] == 8
    assert all(len(record["norms"]) == len(record["validation"]) == 2 for record in records.values())
    assert "TSP(4): norm of the costs in the last epoch" in capsys.readouterr().out
    assert main(["tsp-noise", "--quick", "--epochs", "1"]) == 1
    assert "at least 2" in capsys.readouterr().err

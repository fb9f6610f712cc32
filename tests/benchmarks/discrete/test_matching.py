"""Keypoints to match: pairs are as described, and cross-entropy and Sinkhorn compute the right losses."""

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.decisions import Examples
from benchmarks.discrete.keypoints import CLUTTER, FEATURES, POINTS, CrossEntropy, Matcher, Sinkhorn, nearest, pairs
from benchmarks.discrete.matching import ALL, measure
from setgrad.discrete import Assignment
from tests.benchmarks.helpers import Seeded, generator


def test_every_point_has_one_partner_and_clutter_none() -> None:
    examples = pairs(50, generator())
    assert torch.equal(examples.answers.sum(2), torch.ones(50, POINTS))
    assert torch.equal(examples.answers.sum((1, 2)), torch.full((50,), float(POINTS)))
    assert examples.answers.shape[2] == POINTS + CLUTTER
    assert torch.equal(examples.inputs, pairs(50, generator()).inputs)


def test_features_are_informative_and_more_so_without_noise() -> None:
    noisy, clean = (measure(nearest(e.inputs), e)["points"] for e in (pairs(300, generator()), _without_nuisance()))
    assert 100 / (POINTS + CLUTTER) < noisy < 50 and clean > 90


def _without_nuisance() -> Examples:
    """Return examples with the informative features only, which a good network would learn."""
    world = generator()
    torch.randn(40, 8, generator=world)
    torch.randn(40, 2, generator=world)
    mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=world))[0]
    examples = pairs(300, generator(1), noise=0.1)
    inputs = examples.inputs.clone()
    inputs[..., :FEATURES] = inputs[..., :FEATURES] @ mixing.mT
    inputs[..., 8:FEATURES] = 0
    return Examples(inputs, examples.answers, examples.truth)


def test_rotation_and_translation_do_not_matter(seeded: Seeded) -> None:
    with seeded():
        network = Matcher(16)
    inputs = pairs(3, generator()).inputs
    turned = inputs.clone()
    angle = 0.7
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turned[:, POINTS:, FEATURES:] = turned[:, POINTS:, FEATURES:] @ turn + 3.0
    assert torch.allclose(network(inputs), network(turned), atol=1e-4)
    moved = inputs.clone()
    moved[:, POINTS, FEATURES:] += 3.0
    assert not torch.allclose(network(inputs), network(moved), atol=1e-4)


def test_losses_are_smallest_for_the_right_answer() -> None:
    examples = pairs(4, generator())
    for criterion in (CrossEntropy(), Sinkhorn(200)):
        right = criterion(20 * examples.answers, examples)
        wrong = criterion(20 * examples.answers.roll(1, -1), examples)
        assert bool((right < 0.1).all()) and bool((wrong > 10).all())
    flat = torch.zeros(1, POINTS, POINTS + CLUTTER)
    even = -POINTS * math.log(1 / (POINTS + CLUTTER))
    assert float(CrossEntropy()(flat, examples[:1])) == pytest.approx(even, rel=1e-5)
    assert float(Sinkhorn()(flat, examples[:1])) == pytest.approx(even, rel=1e-4)


def test_measures() -> None:
    examples = pairs(10, generator())
    assert measure(examples.answers, examples)["points"] == measure(examples.answers, examples)["images"] == 100
    assert torch.equal(Assignment()(examples.answers), examples.answers)
    broken = measure(torch.full_like(examples.answers, torch.nan), examples)
    assert broken["points"] == 0 and broken["size"] is None


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    names = "nearest,cross-entropy,identity informed 1,blackbox 10 noise 0.1"
    assert main(["matching", "--quick", "--methods", names, "--device", "cpu", "--json", str(file)]) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    assert len(set(ALL)) == len(ALL) and records["cross-entropy"]["points"] > records["nearest"]["points"]
    assert records["blackbox 10 noise 0.1"]["calls"] == 2 * records["identity informed 1"]["calls"] == 24
    assert "| nearest" in capsys.readouterr().out

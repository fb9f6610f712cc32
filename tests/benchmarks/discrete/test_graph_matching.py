"""Deformed shapes: matchings and their pairs are consistent, only distances tell twins apart, the command runs."""

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.graph_matching import METHODS, NODES, measure, of_nodes
from benchmarks.discrete.shapes import FEATURES, OTHERS, POINTS, Likelihood, ShapeMatcher, make_solver, shape_pairs
from setgrad.discrete import Assignment
from tests.benchmarks.helpers import Seeded, generator


def _distances(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = inputs[..., FEATURES:]
    left, right = places[:, :POINTS], places[:, POINTS:]
    return torch.cdist(left, left), torch.cdist(right, right)


def test_answers_are_matchings_that_the_solver_can_return() -> None:
    examples = shape_pairs(10, generator())
    nodes = of_nodes(examples).answers
    assert torch.equal(nodes.sum(2), torch.ones(10, POINTS)) and bool((nodes.sum(1) <= 1).all())
    # Each pair of matched points is a pair of edges, in the direction of the first image.
    assert torch.equal(examples.answers[:, NODES:].sum(1), torch.full((10,), math.comb(POINTS, 2)).float())
    assert torch.equal(make_solver()(examples.answers), examples.answers)
    assert torch.equal(examples.inputs, shape_pairs(10, generator()).inputs)
    assert measure(examples.answers, examples, linear=False)["images"] == 100
    assert measure(nodes, examples, linear=True)["points"] == 100


def test_distances_tell_twins_apart_and_features_do_not() -> None:
    examples = shape_pairs(300, generator(), deformation=0.0, noise=0.0)
    nodes = of_nodes(examples).answers
    left, right = _distances(examples.inputs)
    assert torch.allclose(nodes @ right @ nodes.mT, left, atol=1e-4), "turned, but not deformed"
    # Exact features and no distances: a point is found among its look, which two or three points have.
    features = examples.inputs[..., :FEATURES]
    world = torch.randn(30, 8, generator=generator())
    mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=_after(world)))[0]
    telling = (features @ mixing.mT)[..., :8]
    scores = -torch.cdist(telling[:, :POINTS], telling[:, POINTS:])
    found = (Assignment()(scores) * nodes).sum(-1).mean()
    assert 0.35 < float(found) < 0.55


def _after(world: torch.Tensor) -> torch.Generator:
    """Return the generator of the world after its looks were drawn."""
    g = generator()
    torch.randn(world.shape, generator=g)
    return g


def test_scores_do_not_depend_on_the_turn(seeded: Seeded) -> None:
    inputs = shape_pairs(3, generator()).inputs
    turned = inputs.clone()
    turn = torch.tensor([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
    turned[:, POINTS:, FEATURES:] = turned[:, POINTS:, FEATURES:] @ turn + 3.0
    moved = inputs.clone()
    moved[:, POINTS, FEATURES:] += 1.0
    for pairs, messages, uses in ((True, False, True), (False, True, True), (False, False, False)):
        with seeded():
            network = ShapeMatcher(pairs=pairs, messages=messages, dim=8)
        assert torch.allclose(network(inputs), network(turned), atol=1e-4)
        assert torch.allclose(network(inputs), network(moved), atol=1e-6) is not uses
    assert network(inputs).shape == (3, POINTS, OTHERS)


def test_likelihood_is_normalised() -> None:
    examples = shape_pairs(2, generator())
    criterion = Likelihood()
    flat = torch.zeros_like(examples.answers)
    assert criterion(flat, examples).tolist() == pytest.approx([math.log(math.perm(OTHERS, POINTS))] * 2, rel=1e-5)
    theta = torch.randn(flat.shape, generator=generator())
    total = torch.stack([(theta * z).sum(-1) for z in criterion.points.T]).logsumexp(0)
    expected = total - (theta * examples.answers).sum(-1)
    torch.testing.assert_close(criterion(theta, examples), expected, rtol=1e-4, atol=1e-4)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    names = "linear cross-entropy,likelihood,blackbox norm informed 0.1"
    assert set(names.split(",")) <= set(METHODS)
    assert main(["graph-matching", "--quick", "--methods", names, "--device", "cpu", "--json", str(file)]) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    calls = [records[name]["calls"] for name in names.split(",")]
    assert calls == [0, 0, 8]
    assert "| likelihood" in capsys.readouterr().out

"""Relations of particles: the layout is NetworkX's, bounds and edges are counted right, the command runs."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.relations_data import Systems, simulate, spring_step
from benchmarks.discrete.relations_fit import VARIANCE, Model, Trial, agreement, divergence, given, measure
from benchmarks.discrete.relations_models import METHODS, Decoder, make_chooser
from tests.benchmarks.helpers import Seeded


def _systems(count: int, times: int = 4) -> Systems:
    return simulate(count, times, torch.Generator().manual_seed(0))


def test_layout_is_that_of_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    systems = _systems(4)
    place, trees = systems.places[:, :, 0], systems.trees
    ours = spring_step(place, trees)
    for number in range(4):
        start = {i: place[number, i].double().numpy() for i in range(10)}
        graph = networkx.from_numpy_array(trees[number].numpy())
        theirs = networkx.spring_layout(graph, pos=start, iterations=1, threshold=1e-10, center=np.zeros(2))
        for particle in range(10):
            assert ours[number, particle].numpy() == pytest.approx(theirs[particle], abs=1e-5)


def test_systems_are_trees_and_the_places_show_them() -> None:
    systems = _systems(300, times=10)
    assert systems.places.shape == (300, 10, 10, 2) and systems.trees.sum((1, 2)).eq(18).all()
    assert systems.places.abs().amax((1, 3)).allclose(torch.ones(300, 10))
    found = agreement(given("nearest", systems), systems.trees).mean()
    assert 70 < found < 95, "the layout moves neighbours together"


def test_agreement_and_divergence_by_hand() -> None:
    path = torch.diag(torch.ones(3), 1) + torch.diag(torch.ones(3), -1)
    star = torch.zeros(4, 4)
    star[0, 1:] = star[1:, 0] = 1
    assert agreement(star, path).item() == pytest.approx(100 / 3)
    assert divergence(torch.zeros(2, 4, 4)).abs().max() < 1e-5
    assert divergence(30 * path[None]).item() == pytest.approx(2 * math.log(4), abs=1e-3), "one tree of 4^2"


def test_decoder_unrolls_step_by_step(seeded: Seeded) -> None:
    systems = _systems(2, times=5)
    with seeded(0):
        decoder = Decoder(6)
    trees = torch.stack([systems.trees, given("nearest", systems), torch.zeros_like(systems.trees)])
    predicted, truth = decoder.unroll(systems.places, trees, 4)
    assert predicted.shape == truth.shape == (3, 2, 4, 10, 2)
    place = systems.places[None, :, :, :1].transpose(2, 3).expand(3, -1, -1, -1, -1)
    for step in range(4):
        place = decoder(place, trees)
        assert torch.allclose(predicted[:, :, step], place[:, :, 0], atol=1e-6)
    helped, _ = decoder.unroll(systems.places, trees, 1)
    assert torch.allclose(helped[:, :, 0], predicted[:, :, 0], atol=1e-6)
    assert not torch.allclose(helped[:, :, 1], predicted[:, :, 1], atol=1e-6)
    assert not torch.allclose(predicted[0], predicted[2], atol=1e-6), "edges matter"
    # Starts at positions 0 and 3; the last has one step.
    cut, truth = decoder.unroll(systems.places, trees, 3)
    assert cut.shape == truth.shape == (3, 2, 4, 10, 2)
    assert torch.allclose(cut[:, :, :3], predicted[:, :, :3], atol=1e-6)
    assert torch.allclose(cut[:, :, 3], helped[:, :, 3], atol=1e-6)


def test_bound_of_a_decoder_that_predicts_no_movement(seeded: Seeded) -> None:
    """Without moves the likelihood is that of the differences, and the bound takes off all of log n^(n-2)."""
    systems = _systems(6, times=3)
    with seeded(0):
        model = Model(Trial(3, "true tree", 0, dim=4), torch.device("cpu"))
    torch.nn.init.zeros_(model.decoder.out.weight)
    torch.nn.init.zeros_(model.decoder.out.bias)
    moved = systems.places.diff(dim=2)
    normal = torch.distributions.Normal(0.0, VARIANCE**0.5)
    expected = normal.log_prob(moved).sum((1, 2, 3)).mean().item() - 8 * math.log(10)
    found = measure(model, systems, torch.Generator().manual_seed(0))
    assert found["elbo"] == pytest.approx(expected, rel=1e-5) and found["precision"] == 100
    assert found["published"] is None


# Algorithm 1 of AIMLE starts with steps of length 0.
@pytest.mark.parametrize("method", [method for method in METHODS if not method.endswith("paper")])
def test_every_estimator_increases_the_reward(method: str, seeded: Seeded) -> None:
    """The loss falls if edge {1, 3} is in the tree: its weight must get the most negative gradient."""
    theta = torch.zeros(200, 5, 5, requires_grad=True)
    with seeded(0):
        make_chooser(method, 5, 4, 100.0, theta.device)(theta, lambda z: -z[..., 1, 3] - z[..., 3, 1]).mean().backward()
    assert theta.grad is not None
    weight = (theta.grad + theta.grad.mT).sum(0)
    assert weight.argmin() == 8 and weight[1, 3] < 0


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "found.jsonl"
    methods = "aimle c,rloo,no edges,supervised"
    arguments = ["relations", "--quick", "--methods", methods, "--device", "cpu", "--results", str(results)]
    arguments += ["--steps", "3", "--particles", "5"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 of 4 trials" in shown and "## T = 10, horizon 1, 5 particles" in shown and "| supervised |" in shown
    assert main([*arguments, "--table", str(results)]) == 0
    assert "| no edges" in capsys.readouterr().out


def test_horizon_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relations", "--quick", "--horizon", "10", "--device", "cpu"]) == 1
    assert "1 to 9 for 10 positions" in capsys.readouterr().err

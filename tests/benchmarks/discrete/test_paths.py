"""Maps of terrain: images, right paths, and that costs can be learned from paths."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete import decisions
from benchmarks.discrete.paths import ALL, measure
from benchmarks.discrete.terrain import COSTS, TILE, UNSEEN, VARIANTS, CostNetwork, maps
from setgrad.discrete import Blackbox, GridPath, Identity, InformedMargin, TopK
from tests.benchmarks.helpers import Seeded


def test_maps_depend_on_the_seed_and_paths_are_cheapest() -> None:
    first, again, other = maps(20, 6, 0), maps(20, 6, 0), maps(20, 6, 1)
    assert torch.equal(first.inputs, again.inputs) and not torch.equal(first.inputs, other.inputs)
    assert {round(cost, 3) for cost in first.truth.unique().tolist()} <= set(COSTS)
    # The diagonal is a path, so the cheapest path cannot cost more.
    cheapest = (first.answers * first.truth).flatten(1).sum(-1)
    assert bool((cheapest <= first.truth.diagonal(dim1=1, dim2=2).sum(-1) + 1e-4).all())


def test_textures_of_test_maps_are_not_in_training() -> None:
    train, test = maps(30, 6, 0), maps(30, 6, 0, test=True)
    assert train.inputs[:, 1].max() < VARIANTS - UNSEEN <= test.inputs[:, 1].min()


def test_a_tile_is_drawn_where_its_cell_is(seeded: Seeded) -> None:
    with seeded():
        network = CostNetwork(4)
    examples = maps(2, 5, 0)
    images = network.draw(examples.inputs)
    kind, tile, light = examples.inputs[1, :, 3, 2].tolist()
    cell = images[1, :, 3 * TILE : 4 * TILE, 2 * TILE : 3 * TILE]
    assert torch.allclose(cell, network.tiles[int(kind), int(tile)] * light)
    assert network(examples.inputs).shape == (2, 5, 5) and bool((network(examples.inputs) > 0).all())


def test_measures_know_right_and_wrong() -> None:
    examples = maps(20, 6, 0)
    assert measure(examples.truth, examples) == pytest.approx({"best": 100, "same": 100, "ratio": 100})
    wrong = measure(10 - examples.truth, examples)
    assert wrong["best"] < 60 and wrong["ratio"] > 110
    assert measure(torch.full_like(examples.truth, torch.nan), examples) == {"best": 0, "same": 0, "ratio": None}


def test_losses_differ_only_in_the_gradient() -> None:
    target = torch.tensor([[1.0, 0.0, 0.0]])
    examples = decisions.Examples(target, target, target)
    for loss, gradient in ((decisions.l1, [[-1.0, 1.0, 0.0]]), (decisions.linear_hamming, [[-1.0, 1.0, 1.0]])):
        z = torch.tensor([[0.0, 1.0, 0.0]], requires_grad=True)
        value = loss(z, examples, TopK(1))
        value.sum().backward()
        assert value.tolist() == [2.0] and z.grad is not None and z.grad.tolist() == gradient


def test_margins_before_blackbox_are_those_of_identity() -> None:
    """The right answer is best by less than the margin, so both must choose another one, for both senses."""
    costs = torch.tensor([[1.0, 1.3, 2.0]])
    right = torch.tensor([[1.0, 0.0, 0.0]])
    examples = decisions.Examples(costs, right, costs)
    for sense, sign in (("min", 1), ("max", -1)):
        solver = TopK(1, sense=sense)
        margin = InformedMargin(0.5)
        inside = decisions.EstimatorLoss(Identity(solver, margin=margin), decisions.l1)
        before = decisions.EstimatorLoss(Blackbox(solver, lam=1.0), decisions.l1, margin=margin)
        assert inside(sign * costs, examples).tolist() == before(sign * costs, examples).tolist() == [2.0]
        before.drop_margin()
        assert before(sign * costs, examples).tolist() == [0.0]


def test_identity_with_the_l1_loss_is_the_perceptron() -> None:
    costs = maps(8, 5, 0).truth
    examples = decisions.Examples(costs, GridPath()(costs), costs)
    noise = torch.Generator().manual_seed(0)
    found = []
    for criterion in (
        decisions.identity(GridPath(), noise, loss=decisions.l1),
        decisions.fenchel_young(GridPath(), noise, noise=None),
    ):
        theta = torch.rand(8, 5, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
        criterion(theta, examples).sum().backward()
        assert theta.grad is not None and bool(theta.grad.any())
        found.append(theta.grad)
    assert torch.equal(*found)


def test_costs_are_learned_from_paths(seeded: Seeded) -> None:
    """A table of costs replaces the network: after sixty steps Identity has the cheapest path of one map."""
    truth = torch.from_numpy(np.random.default_rng(0).uniform(1, 5, (1, 5, 5))).float()
    examples = decisions.Examples(torch.zeros(1, 1), GridPath()(truth), truth)
    with seeded():
        network = torch.nn.Sequential(torch.nn.Linear(1, 25), torch.nn.Softplus(), torch.nn.Unflatten(1, (5, 5)))
    order, noise = decisions.generators(0, torch.device("cpu"))
    criterion = decisions.identity(GridPath(), noise, loss=decisions.l1)
    decisions.learn(network, criterion, examples, decisions.Training(60, 1, 0.05), order)
    assert measure(decisions.predict(network, examples.inputs), examples)["same"] == 100


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, file = tmp_path / "found.jsonl", tmp_path / "found.json"
    names = "two-stage (oracle),identity norm,aimle"
    arguments = ["paths", "--quick", "--sizes", "5", "--methods", names, "--device", "cpu"]
    arguments += ["--results", str(results), "--json", str(file)]
    assert main(arguments) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    steps = 2 * 14
    assert records["two-stage (oracle)"]["calls"] == 0
    assert records["identity norm"]["calls"] == steps and records["aimle"]["calls"] == 2 * steps
    assert main(arguments) == 0 and "3 of 3 trials" in capsys.readouterr().out
    assert main(["paths", "--table", str(results)]) == 0
    assert "| identity norm" in capsys.readouterr().out


def test_unknown_names_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(ALL)) == len(ALL)
    assert main(["paths", "--quick", "--methods", "identiti"]) == 1
    assert main(["paths", "--quick", "--sizes", "twelve"]) == 1
    assert "identity" in capsys.readouterr().err

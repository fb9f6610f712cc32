"""Tours of the globe: sets of flags, their tours, and the collapse of costs."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.decisions import Examples
from benchmarks.discrete.tours import optimal_length
from benchmarks.discrete.tsp import FLAGS, Globe, confirmed, distances, draw_sets, measure, with_tours
from tests.benchmarks.helpers import Seeded


@pytest.fixture
def globe_dir(tmp_path: Path) -> Path:
    """Flags of one colour each, at random places."""
    rng = np.random.default_rng(0)
    xyz = rng.standard_normal((FLAGS, 3))
    flags = np.broadcast_to(rng.integers(0, 256, (FLAGS, 1, 1, 3)), (FLAGS, 20, 40, 3)).astype(np.uint8)
    folder = tmp_path / "globe_tsp_ingredients"
    folder.mkdir()
    np.savez(folder / "flags40x20_latlng.npz", flags=flags, xyz=xyz / np.linalg.norm(xyz, axis=1, keepdims=True))
    return tmp_path


def test_sets_differ_and_depend_on_the_seed() -> None:
    sets = draw_sets(2000, 4, 0)
    assert torch.equal(sets, draw_sets(2000, 4, 0)) and not torch.equal(sets, draw_sets(2000, 4, 1))
    assert len({tuple(sorted(row)) for row in sets.tolist()}) == 2000
    assert all(len(set(row)) == 4 for row in sets.tolist())


def test_tours_are_shortest_for_the_true_points() -> None:
    places = torch.nn.functional.normalize(
        torch.from_numpy(np.random.default_rng(1).standard_normal((FLAGS, 3))), dim=1
    )
    examples = with_tours(draw_sets(20, 5, 0), places)
    for true, tour in zip(examples.truth, examples.answers, strict=True):
        least = min(sum(true[a, b] for a, b in zip((0, *p), (*p, 0), strict=True)) for p in permutations(range(1, 5)))
        assert float((true * tour).sum()) / 2 == pytest.approx(float(least))
    assert measure(examples.truth, examples)["tours"] == 100
    collapsed = measure(torch.ones_like(examples.truth), examples)
    assert collapsed["tours"] < 50 and collapsed["spread"] == pytest.approx(0)


def test_integer_program_finds_the_shortest_tour() -> None:
    points = torch.nn.functional.normalize(torch.from_numpy(np.random.default_rng(2).standard_normal((20, 3))), dim=1)
    small = with_tours(torch.arange(9)[None], points)
    assert optimal_length(small.truth[0]) == pytest.approx(float((small.truth * small.answers).sum()) / 2)
    # Two groups far apart: without further rows the best solution would be one trip in each.
    apart = torch.cat([points[:3], 100 + points[3:6]])
    groups = with_tours(torch.arange(6)[None], apart)
    assert optimal_length(groups.truth[0]) == pytest.approx(float((groups.truth * groups.answers).sum()) / 2)
    assert confirmed(small) is None
    large = with_tours(torch.arange(14)[None], points)
    assert confirmed(large) == 100
    assert confirmed(Examples(large.inputs, large.answers.flip(1), large.truth)) == 0


def test_points_lie_on_the_sphere_and_gradients_are_finite(seeded: Seeded) -> None:
    with seeded():
        network = Globe(torch.rand(FLAGS, 3, 20, 40))
        # Two flags at the same position: the gradient must be finite for a distance of 0.
        network.flags[1] = network.flags[0]
    theta = network(torch.tensor([[0, 1, 2], [3, 4, 5]]))
    assert theta.shape == (2, 3, 3) and bool((theta <= 2).all()) and bool(theta[0, 0, 1] == 0)
    theta.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)
    assert distances(torch.eye(3))[0, 1] == pytest.approx(2**0.5)


def test_command(globe_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    arguments = ["tsp", "--quick", "--methods", "identity std noise 0.2,blackbox 0.4", "--cities", "4"]
    assert main([*arguments, "--data-dir", str(globe_dir), "--device", "cpu", "--json", str(file)]) == 0
    records = {record["method"]: record for record in json.loads(file.read_text())["records"]}
    assert records["blackbox 0.4"]["calls"] == 2 * records["identity std noise 0.2"]["calls"] == 8
    assert "99.67 ± 0.10" in capsys.readouterr().out, "published figures are beside ours"


def test_invalid_options_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tsp", "--quick", "--data-dir", str(tmp_path)]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["tsp", "--quick", "--cities", "30"]) == 1
    assert "3 to 20" in capsys.readouterr().err

"""The benchmark of implicit gradients: the reference is exact, networks are as described, tables show the worst."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.implicit import implicit_gradient
from setgrad.functions import Exact
from setgrad.inference import UnrolledMeanField

SMALL = (4, 0, 1, 3)


def _solved_loss(problem: implicit_gradient.Problem) -> float:
    """The loss at the solution, by plain iteration on the enumerated extension."""
    extension = implicit_gradient.make_extension(problem)
    z = torch.zeros(problem.sets.layout.total, dtype=torch.float64)
    for _ in range(200):
        psi = torch.sigmoid(z).requires_grad_()
        (z,) = torch.autograd.grad(extension(psi), psi, retain_graph=True)
    return float(problem.loss(z))


@pytest.mark.parametrize("name", implicit_gradient.NETWORKS)
def test_truth_is_the_slope_of_the_solved_loss(name: str) -> None:
    problem = implicit_gradient.make_problem(name, 3, 0, SMALL)
    truth = implicit_gradient.enumerate_all(
        problem, implicit_gradient.solve(problem, Exact(), implicit_gradient.TIGHT).logits
    )
    assert 0 < truth.radius < 0.9
    parameters = list(problem.network.parameters())
    generator = torch.Generator().manual_seed(1)
    moves = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs() for p in parameters]
    ends = []
    # So short because networks have kinks.
    for sign in (1e-7, -1e-7):
        with torch.no_grad():
            for p, move in zip(parameters, moves, strict=True):
                p.add_(sign * move)
        ends.append(_solved_loss(problem))
        with torch.no_grad():
            for p, move in zip(parameters, moves, strict=True):
                p.sub_(sign * move)
    along = truth.gradient @ torch.cat([move.flatten() for move in moves])
    assert float(along) == pytest.approx((ends[0] - ends[1]) / 2e-7, rel=1e-5)


@pytest.mark.parametrize("name", implicit_gradient.NETWORKS)
@pytest.mark.parametrize("factor", [1, 5])
def test_exact_is_the_truth_to_rounding(name: str, factor: int) -> None:
    problem = implicit_gradient.make_problem(name, factor, 0)
    found = implicit_gradient.solve(problem, Exact(), implicit_gradient.TIGHT)
    assert found.unconverged == 0
    truth = implicit_gradient.enumerate_all(problem, found.logits)
    assert implicit_gradient.distance(found.gradient, truth.gradient) < 1e-8
    assert (found.logits - truth.logits).abs().max() < 1e-10


def test_exact_solution_does_not_need_an_accurate_start() -> None:
    problem = implicit_gradient.make_problem("DeepSetFunction, context", 3, 0, SMALL)
    truth = implicit_gradient.enumerate_all(
        problem, implicit_gradient.solve(problem, Exact(), implicit_gradient.TIGHT).logits
    )
    again = implicit_gradient.enumerate_all(problem, truth.logits + 1e-2)
    torch.testing.assert_close(again.gradient, truth.gradient)


def test_one_step_lacks_terms_of_unrolling() -> None:
    problem = implicit_gradient.make_problem("DeepSetFunction, context", 3, 0, SMALL)
    truth = implicit_gradient.enumerate_all(
        problem, implicit_gradient.solve(problem, Exact(), implicit_gradient.TIGHT).logits
    )
    unrolled = implicit_gradient.solve(problem, Exact(), UnrolledMeanField(100))
    assert implicit_gradient.distance(unrolled.gradient, truth.gradient) < 1e-8
    found = implicit_gradient.measure(problem, 8, 0)
    assert found["distance"]["one step, Exact"] > 0.01
    # With few samples the rest of the distance is noise.
    assert found["distance"]["one step, Bernoulli"] > found["distance"]["one step, Exact"]


def test_the_factor_makes_items_interact() -> None:
    radii = []
    for factor in (1, 3):
        problem = implicit_gradient.make_problem("InsetFunction", factor, 0, SMALL)
        z = implicit_gradient.solve(problem, Exact(), implicit_gradient.TIGHT).logits
        radii.append(
            float(
                torch.linalg.eigvals(implicit_gradient.coupling(implicit_gradient.make_extension(problem), z))
                .abs()
                .max()
            )
        )
    assert radii[1] > 3 * radii[0]


def test_measures() -> None:
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])
    assert implicit_gradient.cosine(a, b) == pytest.approx(0.6)
    assert implicit_gradient.distance(a, b) == pytest.approx(4 / 3)


def _case(cosines: float, seed: int) -> dict[str, Any]:
    return {
        "network": "InsetFunction",
        "factor": 3,
        "seed": seed,
        "radius": 0.5 + seed / 10,
        "exact": 1e-12,
        "unconverged": seed,
        "cosine": dict.fromkeys(implicit_gradient.WAYS, cosines),
        "distance": dict.fromkeys(implicit_gradient.WAYS, 1 - cosines),
    }


def test_tables_show_the_worst_beside_the_median() -> None:
    cases = [_case(0.5, 0), _case(0.9995, 1), _case(0.9, 2)]
    other = {**_case(0.1, 0), "network": "HorseFunction", "radius": 0.6}
    rows = implicit_gradient.show([*cases, other], "cosine", min, 4).splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["InsetFunction x 3", "HorseFunction x 3", "all x 3"]
    assert cells[0][1:] == ["0.60 (0.70)", "1e-12", *["0.9000 (0.5000)"] * len(implicit_gradient.WAYS)]
    assert cells[2][3:] == ["0.7000 (0.1000)"] * len(implicit_gradient.WAYS)
    cases[0]["distance"]["Pathwise"] = 0.4
    lines = implicit_gradient.verdict(cases).splitlines()
    assert "1.0e-12 (target: at most 1e-06)" in lines[0]
    assert "of 3 networks: Gaussian 1, Pathwise 1" in lines[1]
    assert lines[2].endswith("Gaussian 0, Pathwise 1, SecondDifference 0")
    assert lines[3].endswith(": 3")


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(implicit_gradient, "NETWORKS", {"InsetFunction": implicit_gradient.NETWORKS["InsetFunction"]})
    file = tmp_path / "gradient.json"
    assert main(["implicit-gradient", "--quick", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "| InsetFunction x 1 " in shown and "| InsetFunction x 5 " in shown and "of 2 networks" in shown
    stored = json.loads(file.read_text())
    assert [case["factor"] for case in stored["cases"]] == [1, 5]
    assert set(stored["cases"][0]["cosine"]) == set(implicit_gradient.WAYS)

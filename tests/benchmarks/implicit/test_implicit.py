"""The implicit benchmarks measure what they say: products are counted, problems are as described, ways agree."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.__main__ import main
from benchmarks.implicit import implicit_memory, implicit_solvers
from benchmarks.implicit.one_krylov import solve_normal
from tests.benchmarks.helpers import CPU

SMALL = implicit_memory.Case(20, "", sets=3, items=40, features=5)
DEEP = replace(SMALL, sets=2, items=20, model="deep set")


def _matrices() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.eye(6, dtype=torch.float64) + 0.1 * torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
    return matrix, torch.randn(4, 6, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def problem() -> implicit_solvers.Adjoint:
    return implicit_solvers.make_adjoint(6, 12, 1.0, -2.0)


# --- products


def test_products_are_right_and_counted_both_ways() -> None:
    matrix, x = _matrices()
    counted = implicit_solvers.Counted(matrix)
    torch.testing.assert_close(counted(x), torch.einsum("bij,bj->bi", matrix, x))
    assert counted.count == 1
    back = torch.func.vjp(counted, x)[1](x)[0]
    torch.testing.assert_close(back, torch.einsum("bji,bj->bi", matrix, x))
    # The reverse pass runs forwards first.
    assert counted.count == 3


def test_rival_solves_with_two_products_a_step() -> None:
    matrix, b = _matrices()
    counted = implicit_solvers.Counted(matrix)
    x, steps = solve_normal(counted.forwards, counted.backwards, b, tol=1e-12, max_steps=500)
    torch.testing.assert_close(x, torch.linalg.solve(matrix, b))
    assert counted.count == 2 * steps + 1


def test_rival_is_one_space_for_the_whole_batch() -> None:
    matrix, b = _matrices()
    block, counted = torch.block_diag(*matrix)[None], implicit_solvers.Counted(matrix)
    whole = implicit_solvers.Counted(block)
    _, steps = solve_normal(whole.forwards, whole.backwards, b.reshape(1, -1), tol=1e-9, max_steps=500)
    assert solve_normal(counted.forwards, counted.backwards, b, tol=1e-9, max_steps=500)[1] == steps
    # In a separate space, a sample of six unknowns takes six steps.
    assert steps > 6


def test_rival_stops_after_max_steps() -> None:
    matrix, b = _matrices()
    counted = implicit_solvers.Counted(matrix)
    assert solve_normal(counted.forwards, counted.backwards, b, tol=1e-12, max_steps=2)[1] == 2


def test_problem_is_a_maximum_of_mean_field(problem: implicit_solvers.Adjoint) -> None:
    assert torch.linalg.eigvalsh(implicit_solvers.symmetric_form(problem)).min() > 0
    assert problem.couplings.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    product = problem.sigma[..., None] * problem.couplings
    assert problem.radius == pytest.approx(torch.linalg.eigvals(product).abs().max().item())


def test_both_forms_are_one_system(problem: implicit_solvers.Adjoint) -> None:
    u = torch.linalg.solve(implicit_solvers.plain_form(problem), problem.g)
    w = torch.linalg.solve(implicit_solvers.symmetric_form(problem), problem.g)
    torch.testing.assert_close(w, problem.sigma * u)


def test_every_solver_reaches_its_tolerance(problem: implicit_solvers.Adjoint) -> None:
    costs = implicit_solvers.measure(problem)
    assert list(costs) == list(implicit_solvers.SOLVERS)
    # The normal equations ask for their own residual, which differs by the condition of the matrix.
    condition = float(torch.linalg.cond(implicit_solvers.plain_form(problem)).max())
    for name, cost in costs.items():
        assert cost.worst <= implicit_solvers.TOL * (condition * 6**0.5 if name in ("normal CG", "one space") else 1.0)
    cg = costs["CG, symmetric"]
    # One a step, and one each for the right-hand side and the first residual.
    assert cg.products == cg.steps + 2
    assert costs["one space"].products == 2 * costs["one space"].steps + 1
    assert cg.products < costs["normal CG"].products


def test_smallest_finds_the_first_true() -> None:
    assert [implicit_solvers.smallest(n.__le__, 9) for n in (1, 2, 5, 9)] == [1, 2, 5, 9]


def test_ratio_is_that_of_products() -> None:
    row = {"CG, symmetric": {"products": 5}, "one space": {"products": 50}}
    assert implicit_solvers.ratio_of(row) == 0.1


def test_solvers_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "solvers.json"
    assert main(["implicit-solvers", "--quick", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "| spectral radius" in shown and "(negative couplings)" in shown
    stored = json.loads(file.read_text())
    row = stored["rows"][0]
    assert f"{row['one space']['products']} ({row['one space']['steps']})" in shown


# --- memory


@pytest.mark.parametrize("small", [SMALL, DEEP], ids=lambda case: case.model)
def test_ways_agree_and_take_every_step(small: implicit_memory.Case) -> None:
    cases = [replace(small, way=way) for way in implicit_memory.WAYS]
    assert implicit_memory.compare(cases, CPU) < 1e-3
    too_few = [replace(small, way="unrolled", iterations=1), replace(small, way="implicit")]
    assert implicit_memory.compare(too_few, CPU) > 1e-3, "the comparison detects too few steps"


def test_implicit_solution_is_close_to_the_fixed_point() -> None:
    inputs = implicit_memory.make_inputs(SMALL, CPU)
    psi = implicit_memory.implicit(replace(SMALL, way="implicit"), *inputs)
    assert (implicit_memory.pairwise_step(psi, *inputs) - psi).norm() < 1e-3


def test_early_stopping_is_an_error() -> None:
    # With so many steps at full speed the residual reaches rounding, and the loop stops.
    inputs = implicit_memory.make_inputs(SMALL, CPU)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="of 400 steps"):
        patch.setattr("benchmarks.implicit.implicit_memory.damping", lambda _: 1.0)
        implicit_memory.implicit(replace(SMALL, way="implicit", iterations=400), *inputs)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="of 400 steps"):
        patch.setattr("benchmarks.implicit.implicit_memory.damping", lambda _: 1.0)
        implicit_memory.deep_set(replace(DEEP, way="implicit", iterations=400), CPU)[1]()


def test_peak_of_unrolling_counts_every_step() -> None:
    case = implicit_memory.Case(200, "unrolled", sets=16, items=500, features=4)
    few, many = implicit_memory.peak_of(replace(case, iterations=10), CPU), implicit_memory.peak_of(case, CPU)
    # One step keeps psi and the sigmoid's output at the least: two tensors of 16 x 500 numbers of 4 bytes.
    assert many.step - few.step > 190 * 2 * 16 * 500 * 4
    flat = implicit_memory.peak_of(replace(case, way="implicit"), CPU)
    assert flat.step < many.step / 4


def test_peak_of_a_whole_model_counts_every_step() -> None:
    case = implicit_memory.Case(20, "unrolled", sets=8, items=100, features=4, model="deep set")
    unrolled, flat = (implicit_memory.peak_of(replace(case, way=way), CPU) for way in implicit_memory.WAYS)
    # Every step keeps at the least what two layers of 64 units gave for each item under each of 5 masks.
    assert unrolled.step > 20 * 2 * 5 * 8 * 100 * 64 * 4
    assert flat.step < unrolled.step / 2


def test_memory_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The tests above start processes; here one is enough.
    monkeypatch.setattr("benchmarks.implicit.implicit_memory.peak_of", implicit_memory.peak_here)
    file = tmp_path / "implicit-memory.json"
    assert main(["implicit-memory", "--quick", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| K=5 ") == shown.count("| K=20 ") == 2
    assert shown.count("target: at most 5%") == 2
    # The figure shows the deep set.
    stored = json.loads(file.read_text())
    assert stored["shape"]["model"] == "deep set" and stored["pairwise"]["shape"]["model"] == "pairwise"
    assert [row["iterations"] for row in stored["rows"]] == [5, 20]

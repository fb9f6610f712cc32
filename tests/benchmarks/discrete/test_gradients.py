"""Gradients are estimated as described and compared with the exact gradient."""

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.discrete.gradients import LONG, SAMPLES, WARM_UP, plan
from benchmarks.discrete.gradients_methods import ADAPTIVE, METHODS, NOISES, CopiedSoftSub, Setting, adapt, estimate
from benchmarks.discrete.gradients_pages import Curve, curves
from benchmarks.discrete.gradients_problems import Problem, all_points, judge, make_problem
from tests.benchmarks.helpers import generator


@pytest.mark.parametrize(("n", "k"), [(6, 1), (6, 3)])
def test_exact_gradient_is_the_derivative_of_the_mean_loss(n: int, k: int) -> None:
    problem = make_problem(n, k, "normal", 3)
    points = all_points(n, k)
    assert len(points) == math.comb(n, k) and (points.sum(1) == k).all() and len(points.unique(dim=0)) == len(points)

    def mean(theta: torch.Tensor) -> torch.Tensor:
        chances = (theta @ points.mT).exp()
        losses = torch.stack([((points - b) ** 2).sum(1) for b in problem.b.double()])
        return (chances / chances.sum(1, keepdim=True) * losses).sum(1)

    theta, exact, step = problem.theta.double(), problem.gradient(), 1e-6
    for item in range(n):
        move = step * torch.eye(n, dtype=torch.float64)[item]
        assert ((mean(theta + move) - mean(theta - move)) / (2 * step) - exact[:, item]).abs().max() < 1e-7


def test_targets_differ_only_in_sign() -> None:
    normal, absolute = (make_problem(8, 1, target, 4) for target in ("normal", "absolute"))
    assert torch.equal(normal.b.abs(), absolute.b) and bool((normal.b < 0).any())
    assert torch.equal(normal.theta, absolute.theta)


def test_zero_estimates_have_cosine_zero() -> None:
    exact = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    found = judge(torch.tensor([[2.0, 0.0], [0.0, 0.0], [-3.0, -4.0]]), exact)
    assert found.cosine == 0 and found.zeros == 50 and found.dead == pytest.approx(33.33)
    assert found.spread == 1


@pytest.mark.parametrize("name", METHODS)
def test_every_method_estimates_and_its_calls_are_counted(name: str) -> None:
    method = METHODS[name]
    k = 2 if method.only == "top-k" else 1
    problem = make_problem(5, k, "absolute", 3)
    found, calls = estimate(method, problem, Setting(k, 4), generator())
    assert found.shape == (3, 5) and bool(found.isfinite().all())
    each = 3 if "central" in name else 2 if "imle" in name or name == "blackbox" else 1
    assert calls == (each if name == "blackbox" else 4 * each)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", ["rloo", "sfess"])
def test_unbiased_methods_converge(name: str, k: int) -> None:
    problem = make_problem(5, k, "normal", 4)
    found, _ = estimate(METHODS[name], problem, Setting(k, 2000), generator())
    assert judge(found, problem.gradient()).cosine > 0.97


def test_groups_of_runs_get_gradients_of_the_same_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, setting = make_problem(5, 1, "normal", 3), Setting(1, 3000)
    together, calls = estimate(METHODS["simple"], problem, setting, generator())
    monkeypatch.setattr("benchmarks.discrete.gradients_methods.MAX_ENTRIES", 1)
    apart, same = estimate(METHODS["simple"], problem, setting, generator())
    assert calls == same == 3000 and (together - apart).abs().max() < 0.1


def test_warm_up_is_counted_and_estimates_on_the_way_are_not() -> None:
    problem = make_problem(5, 1, "absolute", 2)
    found = list(adapt(ADAPTIVE["aimle paper central"], problem, Setting(1, 4), (0, 2, 5), generator()))
    assert [(mark, calls) for mark, _, calls in found] == [(0, 12), (2, 36), (5, 72)]
    # Alpha starts at 0, where all gradients are 0.
    assert judge(found[0][1], problem.gradient()).dead == 100


@pytest.mark.parametrize(("name", "scales"), [("sum of gamma", "k/i"), ("sum of gamma, swapped", "i/k")])
def test_noise_has_the_deviation_of_its_scales(name: str, scales: str) -> None:
    k, terms = 5, range(1, 11)
    variance = sum((k / i if scales == "k/i" else i / k) ** 2 / k for i in terms) / k**2
    drawn = NOISES[name](k).sample((40_000,), generator=generator())
    assert float(drawn.std()) == pytest.approx(variance**0.5, rel=0.05)


def test_copied_softsub_has_noise_of_the_wrong_sign() -> None:
    theta = torch.zeros(2)
    drawn = CopiedSoftSub(1, temperature=1.0, samples=3)(theta, generator=generator())
    noise = setgrad_gumbel(3)
    assert torch.allclose(drawn, (-noise).softmax(-1))


def setgrad_gumbel(samples: int) -> torch.Tensor:
    return NOISES["gumbel"](1).sample((samples, 2), generator=generator())


def test_budget_limits_the_samples() -> None:
    curve = Curve("a", "sfe", ({"calls": 10, "cosine": 0.5}, {"calls": 100, "cosine": 0.4}))
    assert curve.within(9) is None
    assert [row["cosine"] for budget in (10, 99, 100) if (row := curve.within(budget))] == [0.5, 0.5, 0.4]


def test_plan_has_both_versions_of_every_mistake() -> None:
    trials = plan(make_parser().parse_args(["gradients"]))
    assert len(set(trials)) == len(trials)
    assert {trial.target for trial in trials} == {"normal", "absolute"}
    imle = [t for t in trials if t.method == "imle forward" and t.k == 5 and t.part == "samples"]
    assert {trial.noise for trial in imle} == set(NOISES)
    assert {trial.method for trial in trials} == set(METHODS)
    assert all(t.samples == SAMPLES for t in trials if t.method == "ste (identity)")
    marks = {t.samples[0]: t.warm_ups for t in trials if t.method == "aimle paper central" and t.n == 20}
    assert marks == {1: (WARM_UP, LONG), 10: (WARM_UP, LONG), 100: (WARM_UP, LONG), 1000: (WARM_UP,)}
    assert not [t for t in trials if t.method == "reinmax" and t.k > 1]
    assert not [t for t in trials if t.method == "softsub" and t.k == 1]


def test_command_runs_resumes_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, written = tmp_path / "g.jsonl", tmp_path / "g.json"
    run = ["gradients", "--quick", "--device", "cpu", "--largest", "10", "--results", str(results)]
    assert main([*run, "--methods", "imle forward"]) == 0
    assert main([*run, "--methods", "imle forward,sfess,softsub", "--json", str(written)]) == 0
    shown = capsys.readouterr().out
    assert "16 of 24 trials" in shown and "1 of 20, b = |N|: cosine for a number of calls" in shown
    found = curves(json.loads(written.read_text())["records"], "samples")
    by_name = {line.name: line for line in found[10, 5, "normal"]}
    assert set(by_name) == {"imle forward, " + noise for noise in NOISES} | {"sfess", "softsub"}
    assert [row["calls"] for row in by_name["imle forward, gumbel"].rows] == [2, 20]
    assert main(["gradients", "--table", str(results)]) == 0


def test_unknown_method_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gradients", "--methods", "guess"]) == 1
    assert "unknown method 'guess'" in capsys.readouterr().err


def test_part_keeps_theta_and_b_together() -> None:
    problem = make_problem(4, 1, "normal", 5)
    part: Problem = problem.part(3, 10)
    assert torch.equal(part.theta, problem.theta[3:]) and torch.equal(part.b, problem.b[3:])

"""Extreme numbers and hostile texts at every door: the answer is finite and has its shape, or an error is clear."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

import setgrad as sg
from benchmarks.attack.targets import OPTIONS, fit, make_choices
from benchmarks.attack.verdicts import judge
from setgrad import discrete, implicit
from setgrad.report import Section, evaluate, write_report
from setgrad.sets import as_sets

# Texts that a browser, a shell, a terminal or a spreadsheet may take for more than a text.
_HOSTILE = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "\"><svg onload=1>", "'><b>", "&lt;script&gt;", "javascript:alert(1)", "<!--", "]]>", "{{7*7}}", "${7*7}",
    "=cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\x1b[31mred", "\u202etxt", "\u200b", "a" * 5000, "\\u003cscript\\u003e", 
    "%3Cscript%3E",
)  # fmt: skip
# Numbers of one feature, with which the others are usual.
_NUMBERS = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e-300, 1e-200, -1e-45, 1e-13, 1e13, 1e16, 2.0**53, 1e38, 3.5e38,
    -1e100, 1e154, 1e200, 1e300, 1.7e308,
)  # fmt: skip
_TYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64", "object", "str")
_CALLS = ("fit", "predict", "predict_proba", "sample", "value", "gains", "score")
_SCALES = (0.0, 5e-324, 1e-300, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e150, 1e300)
# Of quadratic programs.
_CURVATURES, _LIMITS = (1e-30, 1e-8, 1.0, 1e8, 1e30), (-1e8, -1.0, 0.0, 0.5, 1e8)
_SHAPES = ((0,), (1,), (2, 0), (0, 4), (3, 1), (2, 5), (2, 2, 4))


def attack_extremes(every: int, notes: Counter[str]) -> list[tuple[str, Callable[[], Counter[str]]]]:
    """Return the name of each attack, and the attack; of the cases, one in `every` is run."""

    def attack(cases: Callable[[], list[Callable[[], object]]]) -> Callable[[], Counter[str]]:
        def run() -> Counter[str]:
            # A case returns nothing, or raises.
            return Counter(_judge(case, notes) for case in cases()[::every])

        return run

    return [
        ("hostile texts in a report", attack(_report_cases)),
        ("extreme numbers at the selector", attack(_selector_cases)),
        ("extreme numbers at solvers and estimators", attack(_discrete_cases)),
        ("extreme numbers at equations and quadratic programs", attack(_implicit_cases)),
    ]


def _judge(case: Callable[[], object], notes: Counter[str]) -> str:
    return judge(lambda: str(case()), "None", notes)


def _check(condition: object, text: str) -> None:
    # An error of Python is a traceback for the verdict.
    if not condition:
        raise AssertionError(text)


@final
class _Page(HTMLParser):
    """Collects the tags and the attributes that a browser sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count a tag, and the names of its attributes."""
        self.seen.update([tag, *(f"{tag} {name}" for name, _ in attrs)])


def _report_cases() -> list[Callable[[], object]]:
    def report(text: str, folder: str) -> Counter[str]:
        choices = make_choices(6)
        named = replace(
            choices, set_ids=[f"{text}{i}" for i in range(6)], item_ids=np.array([f"{text}{i}" for i in range(36)])
        )
        selector, path = fit(), Path(folder, "report.html")
        write_report(path, [Section(text, selector, evaluate(selector, named), text)], title=text, sets=3)
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        return page.seen

    def case(text: str) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                _check(report(text, folder) == report("plain", folder), "the page has other tags")

        return run

    return [case(text) for text in _HOSTILE]


def _selector_cases() -> list[Callable[[], object]]:
    selector, usual = fit(), make_choices(8, seed=2)

    def check_result(result: Any, items: int) -> None:
        values = result.values if isinstance(result, sg.Sets) else torch.as_tensor(result)
        _check(values.shape[-1:] == (items,) or values.ndim == 0, f"shape {tuple(values.shape)}")
        _check(values.dtype == torch.bool or bool(values.isfinite().all()), "not finite")

    def call(name: str, items: Any) -> None:
        sets = as_sets(items)
        subsets = sets.with_values(torch.arange(sets.layout.total) % 3 == 0)
        if name == "fit":
            other = sg.SubsetSelector(**OPTIONS, max_epochs=1).fit(sets, subsets)
            check_result(other.predict_proba(make_choices(4, seed=3).sets), 24)
        elif name in ("value", "score"):
            result = getattr(selector, name)(sets, subsets)
            _check(bool(torch.as_tensor(result).isfinite().all()), "not finite")
        elif name == "gains":
            check_result(selector.gains(sets, subsets), sets.layout.total)
        elif name == "sample":
            for drawn in selector.sample(sets, 4):
                check_result(drawn, sets.layout.total)
        else:
            check_result(getattr(selector, name)(sets), sets.layout.total)

    def with_number(name: str, number: float) -> Callable[[], None]:
        values = usual.sets.values.double().clone()
        values[5, 0] = number
        return lambda: call(name, usual.sets.with_values(values))

    def with_type(name: str, kind: str) -> Callable[[], None]:
        values = (usual.sets.values.numpy() * 3).reshape(8, 6, 2)
        return lambda: call(name, list(np.abs(values).astype(kind)))

    return [
        *(with_number(name, number) for name, number in itertools.product(_CALLS, _NUMBERS)),
        *(with_type(name, kind) for name, kind in itertools.product(_CALLS, _TYPES)),
    ]


def _discrete_cases() -> list[Callable[[], object]]:
    solvers = {
        "top": lambda n: discrete.TopK(min(2, n)),
        "rank": lambda n: discrete.Ranking(),
        "knapsack": lambda n: discrete.Knapsack(torch.ones(n), 2.0),
    }

    def solve(name: str, theta: Tensor) -> None:
        z = solvers[name](theta.shape[-1])(theta)
        _check(z.shape == theta.shape and bool(z.isfinite().all()), "not finite")
        if name == "top" and theta.shape[-1]:
            best = theta.topk(min(2, theta.shape[-1])).values.sum(-1)
            _check(torch.equal(torch.where(z > 0, theta, 0.0).sort(-1, descending=True).values[..., :2].sum(-1), best)
                   or torch.equal((z * theta).sum(-1), best), "not the best")  # fmt: skip

    def differentiate(name: str, theta: Tensor) -> None:
        solver = discrete.TopK(min(2, theta.shape[-1]))
        generator = torch.Generator().manual_seed(0)
        layers: dict[str, Callable[[Tensor], Tensor]] = {
            "identity": discrete.Identity(solver, projection="std"),
            "perturbed": discrete.Perturbed(solver, noise=discrete.Gumbel(), samples=2),
            "aimle": discrete.AIMLE(solver, noise=discrete.SumOfGamma(2), samples=2),
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator.initial_seed())
            leaf = theta.clone().requires_grad_()
            z = layers[name](leaf)
            _check(bool(z.isfinite().all()), "not finite")
            if z.requires_grad:
                (z * torch.linspace(-1, 1, theta.shape[-1], dtype=theta.dtype)).sum().backward()
                _check(leaf.grad is None or bool(leaf.grad.isfinite().all()), "the gradient is not finite")

    def make(shape: tuple[int, ...], scale: float, dtype: torch.dtype) -> Tensor:
        draws = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return (draws * scale).to(dtype)

    cases: list[Callable[[], object]] = []
    for shape, scale, dtype in itertools.product(_SHAPES, _SCALES, (torch.float32, torch.float64)):
        theta = make(shape, scale, dtype)
        cases += [partial(solve, name, theta) for name in solvers]
        cases += [partial(differentiate, name, theta) for name in ("identity", "perturbed", "aimle")]
    for number in (math.nan, math.inf, -math.inf):
        theta = make((2, 5), 1.0, torch.float64)
        theta[0, 1] = number
        cases += [partial(_refuse, partial(solve, name, theta)) for name in solvers]
    # Of so many that are alike, each scale and shape with some of the solvers.
    return cases[::4] + cases[-9:]


def _implicit_cases() -> list[Callable[[], object]]:
    def root(solver: Any, scale: float, slope: float) -> None:
        goal = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)[:, None] * scale
        solution = implicit.root(
            lambda y, g: slope * (y - g) + (y - g) ** 3, torch.zeros_like(goal), goal, solver=solver, on_failure="mask"
        )
        _check(bool(solution.value.isfinite().all()), "not finite")
        solved = torch.as_tensor(solution.status == implicit.Status.SOLVED)
        error = (solution.value - goal).abs().amax(-1)
        _check(bool((error[solved] <= 1e-2 * max(1.0, scale)).all()), "called converged, and is not")

    def program(scale: float, limit: float) -> None:
        q = torch.eye(3, dtype=torch.float64)[None] * scale
        bound = torch.full((1, 3), limit, dtype=torch.float64)
        solution = implicit.quadratic(
            q, torch.full((1, 3), -scale, dtype=torch.float64), torch.eye(3, dtype=torch.float64)[None], bound
        )
        expected = min(1.0, limit)
        _check(bool(((solution.value - expected).abs() <= 1e-4 * max(1.0, abs(expected))).all()), "another point")

    solvers = [implicit.Newton(), implicit.Anderson(), implicit.Picard(damping=0.1), implicit.Broyden()]
    scales = (1e-300, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e150, 1e300)
    return [
        *(partial(root, *case) for case in itertools.product(solvers, scales, (0.1, 1.0, 10.0))),
        *(partial(program, *case) for case in itertools.product(_CURVATURES, _LIMITS)),
    ]


def _refuse(action: Callable[[], object]) -> None:
    """Run an action that must end with a clear error."""
    action()
    raise AssertionError("a number that is not finite was taken")

"""Quadratic programs as a layer, forward and backward: setgrad against qpth and cvxpylayers.

Claims checked: `setgrad.implicit.quadratic` is at least 3 times as fast as both, with a minimum and a gradient that are
right to rounding.

The programs: 128 of them, n unknowns, n inequalities, n / 5 equalities, all six parts different for each program, in
float64; three inequalities in ten are active. A step solves all of them and takes the gradient of a random linear loss
with respect to all parts. The libraries are used as their documentation says, with their default tolerances:
cvxpylayers once with its default solver (through diffcp, which needs a root of Q: the Cholesky factor is part of the
step) and once with moreau, which setgrad uses too. Building a layer is not part of a step.

The reference is computed with NumPy, one program at a time: the active constraints at setgrad's minimum, their linear
system, and the residual of the optimality conditions, which proves the minimum. The gradient is the formula of that
system, which is compared with central differences. Errors are relative to the norm of the reference, for the worst and
the median program. Of the gradient for Q only the symmetric part counts, because the libraries divide it between Q and
its transpose differently.

The rivals are needed for this benchmark alone; rivals that are not installed are left out:

    pip install "cvxpylayers>=1.2"
    pip install --no-deps qpth        # it requires NumPy 1 but runs with 2, which cvxpylayers needs
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import Timing, time_in_turns
from setgrad.implicit import quadratic

TARGET = 3.0
# (unknowns, counted rounds)
FULL = [(10, 15), (20, 15), (50, 7), (100, 3)]
QUICK = [(6, 1)]
INSTALL = 'pip install "cvxpylayers>=1.2" && pip install --no-deps qpth'


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Q, q, G, h, A, b of a batch, all leaves, and the weights of the loss."""

    parts: tuple[Tensor, ...]
    weights: Tensor


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """The minimum `(b, n)` and the gradient of all parts, `(b, everything)`."""

    y: Tensor
    gradient: Tensor


@final
@dataclass(frozen=True, eq=False)
class Reference:
    """The right answer, the worst residual of the optimality conditions, and the smallest slack or multiplier."""

    answer: Answer
    residual: float
    margin: float


Layer = Callable[..., Tensor]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_machine_options(parser, device=False)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print times and errors for each size."""
    machine = announce(torch.device("cpu"), options.threads)
    missing = [name for name, (needs, _) in WAYS.items() if not all(map(importlib.util.find_spec, needs))]
    if missing:
        print(f"left out, because not installed: {'; '.join(missing)}. {INSTALL}", flush=True)
    names = [name for name in WAYS if name not in missing]
    count, sizes = (4, QUICK) if options.quick else (128, FULL)
    results = [measure(count, n, rounds, names) for n, rounds in sizes]
    _show(results, names, count)
    return {"machine": machine, "count": count, "missing": missing, "rows": results, "met": met(results, names)}


def measure(count: int, n: int, rounds: int, names: list[str]) -> dict[str, Any]:
    """Return times and errors of all ways for one size."""
    task = make_task(count, n)
    steps = [_step(WAYS[name][1](task), task) for name in names]
    reference = make_reference(task)
    row: dict[str, Any] = {"n": n, "residual": reference.residual, "margin": reference.margin}
    row["differences"] = differences(task, reference)
    for name, step in zip(names, steps, strict=True):
        row[name] = errors(step(), reference.answer)
    timings: list[Timing] = time_in_turns(steps, torch.device("cpu"), rounds)
    for name, timing in zip(names, timings, strict=True):
        row[name] |= {"seconds": timing.clock, "cpu": timing.processor}
    return row


def make_task(count: int, n: int, seed: int = 0) -> Task:
    """Draw programs that have a strictly feasible point."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)

    root, point = draw(n, n), draw(n)
    G, A = draw(n, n) / n**0.5, draw(max(1, n // 5), n) / n**0.5
    Q = root @ root.mT / n + 0.1 * torch.eye(n, dtype=torch.float64)
    h = (G @ point[..., None])[..., 0] + draw(n).abs()
    parts = (Q, draw(n), G, h, A, (A @ point[..., None])[..., 0])
    return Task(tuple(part.requires_grad_() for part in parts), draw(n))


def make_reference(task: Task) -> Reference:
    """Return minimum and gradient by the linear system of the active constraints at setgrad's minimum."""
    with torch.no_grad():
        proposed = quadratic(*task.parts).value.numpy()
    points, gradients, residuals, margins = [], [], [], []
    for y, weights, *parts in zip(
        proposed, task.weights.numpy(), *(p.detach().numpy() for p in task.parts), strict=True
    ):
        point, gradient, residual, margin = _solve_reference(y, weights, *parts)
        points.append(point)
        gradients.append(gradient)
        residuals.append(residual)
        margins.append(margin)
    answer = Answer(torch.from_numpy(np.stack(points)), torch.from_numpy(np.stack(gradients)))
    return Reference(answer, max(residuals), min(margins))


def _solve_reference(
    y: Any, weights: Any, Q: Any, q: Any, G: Any, h: Any, A: Any, b: Any
) -> tuple[Any, Any, float, float]:
    active = h - G @ y < 1e-9
    C, n = np.concatenate([A, G[active]]), len(q)
    K = np.block([[Q, C.T], [C, np.zeros((len(C), len(C)))]])

    def solve(right: Any) -> tuple[Any, Any]:
        x = np.linalg.solve(K, right)
        # One step of refinement removes rounding.
        x = x + np.linalg.solve(K, right - K @ x)
        return x[:n], x[n:]

    y, multipliers = solve(np.concatenate([-q, b, h[active]]))
    u, v = solve(np.concatenate([weights, np.zeros(len(C))]))
    for_C = -np.outer(multipliers, u) - np.outer(v, y)
    for_G, for_h = np.zeros_like(G), np.zeros_like(h)
    for_G[active], for_h[active] = for_C[len(b) :], v[len(b) :]
    for_Q = -(np.outer(u, y) + np.outer(y, u)) / 2
    parts = (for_Q, -u, for_G, for_h, for_C[: len(b)], v[: len(b)])
    slack, positive = h - G @ y, multipliers[len(b) :]
    stationarity = Q @ y + q + C.T @ multipliers
    violations = np.concatenate([stationarity, A @ y - b, np.minimum(slack, 0), np.minimum(positive, 0)])
    margin = np.concatenate([slack[~active], positive]).min()
    return y, np.concatenate([part.ravel() for part in parts]), float(np.abs(violations).max()), float(margin)


def differences(task: Task, reference: Reference, step: float = 1e-7) -> float:
    """Return the relative error of the reference gradient against central differences in one random direction."""
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in task.parts]
    directions[0] = (directions[0] + directions[0].mT) / 2
    with torch.no_grad():
        ends = [
            (
                quadratic(*(p + sign * step * w for p, w in zip(task.parts, directions, strict=True))).value
                * task.weights
            ).sum()
            for sign in (1, -1)
        ]
    slope = float(ends[0] - ends[1]) / (2 * step)
    expected = float((reference.answer.gradient * torch.cat([w.flatten(1) for w in directions], 1)).sum())
    return abs(slope - expected) / abs(expected)


def errors(answer: Answer, right: Answer) -> dict[str, float]:
    """Return relative errors of the worst and of the median program."""

    def relative(x: Tensor, exact: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x - exact, dim=-1) / torch.linalg.vector_norm(exact, dim=-1)

    value, gradient = relative(answer.y, right.y), relative(answer.gradient, right.gradient)
    return {
        "value": float(value.max()),
        "value_median": float(value.median()),
        "gradient": float(gradient.max()),
        "gradient_median": float(gradient.median()),
    }


def met(results: list[dict[str, Any]], names: list[str]) -> dict[str, bool]:
    """Return for each rival whether setgrad is fast enough and at least as accurate at every size."""
    return {
        name: all(
            row[name]["seconds"] >= TARGET * row["setgrad"]["seconds"]
            and all(row["setgrad"][key] <= row[name][key] for key in ("value", "gradient"))
            for row in results
        )
        for name in names
        if name != "setgrad"
    }


def _step(layer: Layer, task: Task) -> Callable[[], Answer]:
    def step() -> Answer:
        y = layer(*task.parts)
        Q, *others = torch.autograd.grad((y * task.weights).sum(), task.parts)
        return Answer(y.detach(), torch.cat([t.flatten(1) for t in ((Q + Q.mT) / 2, *others)], 1))

    return step


def _setgrad(task: Task) -> Layer:
    return lambda *parts: quadratic(*parts).value


def _qpth(task: Task) -> Layer:
    layer: Layer = importlib.import_module("qpth.qp").QPFunction(verbose=-1)
    return layer


def _cvxpylayers(task: Task) -> Layer:
    layer = _layer(task, None)
    return lambda Q, *others: layer(torch.linalg.cholesky(Q).mT, *others)[0]


def _cvxpylayers_moreau(task: Task) -> Layer:
    layer = _layer(task, "MOREAU")

    def solve(*parts: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # moreau warns at each call which of its methods it uses.
            warnings.simplefilter("ignore", UserWarning)
            y: Tensor = layer(*parts)[0]
        return y

    return solve


def _layer(task: Task, solver: str | None) -> Any:
    cp, torch_layers = importlib.import_module("cvxpy"), importlib.import_module("cvxpylayers.torch")
    y = cp.Variable(task.parts[1].shape[-1])
    _, q, G, h, A, b = (cp.Parameter(tuple(part.shape[1:])) for part in task.parts)
    first = cp.Parameter(tuple(task.parts[0].shape[1:]), PSD=solver is not None)
    objective = cp.sum_squares(first @ y) if solver is None else cp.quad_form(y, first)
    problem = cp.Problem(cp.Minimize(objective / 2 + q @ y), [G @ y <= h, A @ y == b])
    return torch_layers.CvxpyLayer(problem, [first, q, G, h, A, b], [y], solver=solver)


# For each way the packages it needs beyond torch and setgrad, and a function that builds its layer.
WAYS: dict[str, tuple[tuple[str, ...], Callable[[Task], Layer]]] = {
    "setgrad": ((), _setgrad),
    "qpth": (("qpth",), _qpth),
    "cvxpylayers": (("cvxpylayers", "diffcp"), _cvxpylayers),
    "cvxpylayers, moreau": (("cvxpylayers", "moreau"), _cvxpylayers_moreau),
}


def _show(results: list[dict[str, Any]], names: list[str], count: int) -> None:
    print(f"\n## Forward and backward of {count} programs: time (over setgrad; over it in processor time)\n")
    rows = []
    for row in results:
        own = row["setgrad"]
        ratios = [
            f"{format_seconds(row[name]['seconds'])} ({row[name]['seconds'] / own['seconds']:.1f}; "
            f"{row[name]['cpu'] / own['cpu']:.1f})"
            for name in names[1:]
        ]
        rows.append([str(row["n"]), format_seconds(own["seconds"]), *ratios])
    print(table(["n", *names], rows))
    for key in ("value", "gradient"):
        print(f"\n## Relative error of the {key}, worst program (median)\n")
        cells = [[f"{row[name][key]:.1e} ({row[name][key + '_median']:.1e})" for name in names] for row in results]
        print(table(["n", *names], [[str(row["n"]), *cell] for row, cell in zip(results, cells, strict=True)]))
    print("\n## The reference\n")
    head = ["n", "worst residual", "gradient against differences", "smallest slack or multiplier"]
    keys = ("residual", "differences", "margin")
    print(table(head, [[str(row["n"]), *(f"{row[key]:.1e}" for key in keys)] for row in results]))
    print()
    for name, good in met(results, names).items():
        slowest = min(row[name]["seconds"] / row["setgrad"]["seconds"] for row in results)
        print(f"{name}: at least {slowest:.1f} times the time (target {TARGET:g}): {'met' if good else 'missed'}")

"""Hard choices as a layer, forward and backward: setgrad against loops of NumPy and SciPy and against PyEPO 2.x.

Claims checked: at least 5 times as fast as PyEPO where both can solve the problem; Identity costs under 20 % more than
its solver at a batch of 256.

A step maps a batch of costs to solutions, and the gradient of a linear loss back to the costs, with Identity (one
solution for each instance) and with Blackbox (two). Objectives and gradients are compared with the plain loop. Rivals:

- `loop`: no torch, one instance after the other: partial sort, SciPy's Dijkstra, a table of the knapsack in NumPy, a
  product with the table of all tours, SciPy's assignment. Graphs and tables are built beforehand.
- `gurobipy`, `ortools`: PyEPO with its own model of the problem, solved by that package (the licence of Gurobi that
  comes with pip is enough for these sizes). PyEPO has no model of top-k, assignment or a grid with costs of cells.
- `pyepo + loop`: PyEPO with a model around the function of the loop, the fastest model possible. It cannot be faster
  than the loop; the target of 5 is for PyEPO's own models.

All run on one thread (`--threads` for torch, Gurobi and pools), PyEPO in one process, in turns in this process. In a
turn a rival runs for about `--block` seconds, as it would in training. With 0 it runs once: then short calls are
measured with the caches of the other library, which makes them up to twice as slow and long ones hardly slower. Ratios
are of medians of clock time; in brackets of processor time, which a busy machine disturbs less and which the verdicts
use. PyEPO is needed for this benchmark alone and is left out where it is not installed:

    pip install "pyepo>=2.2" gurobipy ortools        # best in a separate environment
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import Timing
from benchmarks.speed import discrete_pyepo as pyepo
from benchmarks.speed.discrete_tasks import LAMBDA, Plain, Task, tasks
from setgrad.discrete import Blackbox, CombinatorialSolver, Identity

TARGET, OVERHEAD, OVERHEAD_BATCH = 5.0, 0.20, 256
BATCHES = (32, 128, 512)
ESTIMATORS = ("identity", "blackbox")
# A function that takes longer than this is not repeated; all others are for about this long.
PATIENCE = 0.5
ROUNDS = (3, 50)
BLOCK = 0.01
OWN = "pyepo + loop"

# Solutions and gradients, as rows.
Answer = tuple[Any, Any]
Step = Callable[[], Answer]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--threads", type=int, default=1, help="of torch, of Gurobi and of pools (default: 1)")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help=f"default: {BATCHES}")
    parser.add_argument("--block", type=float, default=BLOCK, help=f"seconds of a turn (default: {BLOCK}); 0: one call")
    parser.add_argument("--tasks", default="", help="only problems whose name begins with one of these, with commas")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all problems and print the ratios."""
    machine = announce(torch.device("cpu"), options.threads)
    has_pyepo = pyepo.is_installed()
    print(f"PyEPO {pyepo.version()}" if has_pyepo else "PyEPO is not installed and left out: see --help", flush=True)
    batches = [4] if options.quick else [int(batch) for batch in options.batches.split(",")]
    starts = tuple(name.strip() for name in options.tasks.split(","))
    selected = [task for task in tasks(quick=options.quick) if task.name.startswith(starts)]
    clock = Clock(0.0, 0.0) if options.quick else Clock(PATIENCE, options.block)
    rows = []
    for task in selected:
        for batch in batches:
            rows += [measure(task, batch, estimator, options.threads, clock) for estimator in ESTIMATORS]
            print(f"{task.name}, batch {batch}: done", flush=True)
    overheads = [overhead(task, 4 if options.quick else OVERHEAD_BATCH, options.threads, clock) for task in selected]
    show(rows, overheads)
    return {"machine": machine, "pyepo": pyepo.version() if has_pyepo else None, "rows": rows, "overheads": overheads}


def measure(task: Task, batch: int, estimator: str, threads: int, clock: Clock) -> dict[str, Any]:
    """Return the times of all rivals for one problem, and how far their answers are from the loop's."""
    costs, weights = task.draw(batch)
    plain, solver = task.plain(), task.solver(threads)
    ways: dict[str, Step] = {
        "setgrad": torch_step(setgrad_layer(task, solver, estimator), costs, weights),
        "loop": loop_step(plain, costs, weights, estimator, minimise=solver.sense == "min"),
    }
    if pyepo.is_installed():
        models = {**pyepo.ready_models(task, threads), OWN: pyepo.own_model(task, plain)}
        for name, model in models.items():
            ways[name] = torch_step(pyepo.layer(model, estimator), costs, weights)
    right = ways["loop"]()
    timings = clock.times(list(ways.values()))
    measured = {
        name: {"seconds": timing.clock, "cpu": timing.processor, **compare(way(), right, costs)}
        for (name, way), timing in zip(ways.items(), timings, strict=True)
    }
    return {"task": task.name, "batch": batch, "estimator": estimator, "ways": measured}


def setgrad_layer(task: Task, solver: CombinatorialSolver, estimator: str) -> Callable[[Tensor], Tensor]:
    """Return the layer of setgrad, from rows to rows."""
    layer = Identity(solver) if estimator == "identity" else Blackbox(solver, lam=LAMBDA)
    return lambda rows: task.to_rows(layer(task.to_instances(rows)))


def torch_step(layer: Callable[[Tensor], Tensor], costs: Tensor, weights: Tensor) -> Step:
    """Return a function that runs a layer forward and backward."""

    def step() -> Answer:
        z = layer(costs)
        (gradient,) = torch.autograd.grad((z * weights).sum(), costs)
        return z.detach().numpy(), gradient.numpy()

    return step


def loop_step(solve: Plain, costs: Tensor, weights: Tensor, estimator: str, *, minimise: bool) -> Step:
    """Return a function that does the same in NumPy, one instance at a time."""
    rows, slopes, sign = costs.detach().numpy(), weights.numpy(), -1 if minimise else 1

    def step() -> Answer:
        z = np.stack([solve(row) for row in rows])
        if estimator == "identity":
            return z, sign * slopes
        moved = np.stack([solve(row - sign * LAMBDA * slope) for row, slope in zip(rows, slopes, strict=True)])
        return z, sign * (z - moved) / LAMBDA

    return step


def compare(answer: Answer, right: Answer, costs: Tensor) -> dict[str, float]:
    """Return the largest relative difference of the objective, and the share of instances with another gradient."""
    rows = costs.detach().double().numpy()
    values = [(rows * z).sum(1) for z in (answer[0], right[0])]
    other = np.abs(answer[1] - right[1]).max(1) > 1e-3
    return {"value": float(np.abs(values[0] / values[1] - 1).max()), "gradient": float(other.mean())}


@final
@dataclass(frozen=True)
class Clock:
    """Measures median times of functions that run in turns, so that a busy machine slows all of them down.

    The first call of each is a warm-up, the second tells how long it takes: functions slower than `patience` are called
    once more, the others run for about `patience` seconds, in turns of `block` seconds or one call.
    """

    patience: float
    block: float

    def times(self, functions: Sequence[Callable[[], object]]) -> list[Timing]:
        """Return the time of one call of each function."""
        firsts = [min(_time(function, 1).clock for _ in range(2)) for function in functions]
        calls = [max(1, round(self.block / first)) for first in firsts]
        turns = [
            1 if first > self.patience else min(ROUNDS[1], max(ROUNDS[0], round(self.patience / (first * count))))
            for first, count in zip(firsts, calls, strict=True)
        ]
        measured: list[list[Timing]] = [[] for _ in functions]
        for turn in range(max(turns)):
            for times, function, count, last in zip(measured, functions, calls, turns, strict=True):
                if turn < last:
                    times.append(_time(function, count))
        return [
            Timing(statistics.median(t.clock for t in times), statistics.median(t.processor for t in times))
            for times in measured
        ]


def _time(function: Callable[[], object], calls: int) -> Timing:
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        function()
    return Timing((time.perf_counter() - clock) / calls, (time.process_time() - processor) / calls)


def overhead(task: Task, batch: int, threads: int, clock: Clock) -> dict[str, Any]:
    """Compare forward and backward of Identity with one call of its solver, and with that call and a copying layer."""
    rows, slopes = task.draw(batch)
    costs = task.to_instances(rows.detach()).requires_grad_()
    weights, solver = task.to_instances(slopes), task.solver(threads)
    layer = Identity(solver)
    bare, step, least = clock.times(
        [
            lambda: solver(costs),
            lambda: torch.autograd.grad(layer(costs), costs, weights),
            lambda: (solver(costs), torch.autograd.grad(_Copy.apply(costs), costs, weights)),
        ]
    )
    return {
        "task": task.name,
        "batch": batch,
        "bare": bare.clock,
        "step": step.clock,
        "share": step.clock / bare.clock - 1,
        "cpu": step.processor / bare.processor - 1,
        "least": least.processor / bare.processor - 1,
    }


@final
class _Copy(torch.autograd.Function):
    """The cheapest layer possible: any layer around a solver adds at least its time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def show(rows: list[dict[str, Any]], overheads: list[dict[str, Any]]) -> None:
    """Print tables of times, ratios and differences, and whether the targets are met."""
    names = [name for name in ("loop", *pyepo.BACKENDS, OWN) if any(name in row["ways"] for row in rows)]
    for estimator in ESTIMATORS:
        print(f"\n## {estimator}, forward and backward: multiples of the time of setgrad (in processor time)\n")
        selected = [row for row in rows if row["estimator"] == estimator]
        cells = [
            [
                f"{r['task']}, {r['batch']}",
                format_seconds(r["ways"]["setgrad"]["seconds"]),
                *(ratio(r, n) for n in names),
            ]
            for r in selected
        ]
        print(table(["problem, batch", "setgrad", *names], cells))
    print(f"\n## Time that Identity adds to its solver, batch {overheads[0]['batch']} (in processor time)\n")
    heads = ["problem", "solver", "identity", "added", "by a layer that only copies"]
    cells = [
        [o["task"], format_seconds(o["bare"]), format_seconds(o["step"]), _added(o), f"{o['least']:.0%}"]
        for o in overheads
    ]
    print(table(heads, cells))
    worst = max(way["value"] for row in rows for way in row["ways"].values())
    other = max(way["gradient"] for row in rows for way in row["ways"].values())
    print(f"\nlargest relative difference of an objective from the loop's: {worst:.1e}")
    print(f"largest share of instances whose gradient is not the loop's: {other:.1%}")
    for (name, task), least in slowest(rows).items():
        print(
            f"PyEPO with {name}, {task}: at least {least:.1f} times the time (target {TARGET:g}): "
            + _verdict(least >= TARGET)
        )
    for one in overheads:
        verdict = f"{_verdict(one['cpu'] < OVERHEAD)}; a layer that only copies adds {one['least']:.0%}"
        print(f"Identity adds {one['cpu']:.0%} to {one['task']} (target {OVERHEAD:.0%}): {verdict}")


def ratio(row: dict[str, Any], name: str) -> str:
    """Return the time of a rival as a multiple of setgrad's."""
    if name not in row["ways"]:
        return "-"
    own, rival = row["ways"]["setgrad"], row["ways"][name]
    return f"{rival['seconds'] / own['seconds']:.1f} ({rival['cpu'] / own['cpu']:.1f})"


def slowest(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return for each of PyEPO's own models (backend, problem) the smallest ratio of processor times over batches."""
    ratios: dict[tuple[str, str], float] = {}
    for row in rows:
        for name in pyepo.BACKENDS:
            if name in row["ways"]:
                share = row["ways"][name]["cpu"] / row["ways"]["setgrad"]["cpu"]
                ratios[name, row["task"]] = min(ratios.get((name, row["task"]), share), share)
    return ratios


def _added(row: dict[str, Any]) -> str:
    return f"{row['share']:.0%} ({row['cpu']:.0%})"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"

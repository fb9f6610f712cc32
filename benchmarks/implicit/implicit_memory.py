"""Peak memory against the number of iterations of a fixed point: unrolled, or by the implicit function theorem.

Claims checked: whatever the number of iterations, up to 500 of a neural set function and 2,000 of a pairwise one, the
peak of forward and backward pass is flat within 5 % with `setgrad.implicit`, where that of unrolling grows.

- Deep set (Özcan et al., 2024, arXiv:2412.11239, figure 1): `inference.mean_field` of a DeepSetFunction with 5 Gaussian
  masks, `UnrolledMeanField(K)` against `ImplicitMeanField()`, for 8 sets of 100 items with 32 features; the gradient is
  with respect to the network. Unrolling takes plain steps.
- Pairwise: psi -> sigmoid(f + X W X^T (psi - 1/2)), for 32 sets of 1,000 items with 32 features X; the gradient is with
  respect to f, X and W. Unrolling takes damped steps.

The implicit way takes K steps, damped so that all of them are needed: the tolerance is out of reach, so exactly K steps
are taken, which is checked. GMRES then solves the adjoint system. "Difference" is the relative difference of the two
gradients. Peaks count memory beyond data and parameters: resident memory of a new process on the CPU, allocated tensors
on the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.pages import PAGES
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.subprocess_measure import RETURN_MEMORY, measure_in_subprocess, relative_spread, serve_case
from benchmarks.lib.tables import format_bytes, format_seconds, table
from benchmarks.lib.timing import Peak, measure_peak
from setgrad.functions import DeepSetFunction, FreshNoise, Gaussian
from setgrad.implicit import GMRES, Picard, fixed_point
from setgrad.inference import ImplicitMeanField, UnrolledMeanField, mean_field
from setgrad.sets import Sets

QUICK = (5, 20)
FLAT = 0.05
MASKS, STRENGTH = 5, 3.0
# The inputs of the gradient, and a function that solves for psi.
Problem = tuple[tuple[Tensor, ...], Callable[[], Tensor]]


@final
@dataclass(frozen=True)
class Case:
    """One measurement: a model, its size, the number of iterations, and the way to differentiate."""

    iterations: int
    way: str
    sets: int = 32
    items: int = 1000
    features: int = 32
    model: str = "pairwise"


SHAPES: dict[str, tuple[Case, tuple[int, ...]]] = {
    "deep set": (Case(0, "", sets=8, items=100, model="deep set"), (5, 20, 50, 100, 200, 500)),
    "pairwise": (Case(0, ""), (5, 20, 100, 500, 2000)),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_machine_options(parser)
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the figure of what --json wrote, run nothing")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one row for each number of iterations, or draw the figure of earlier results."""
    if options.draw is not None:
        results = dict(json.loads(options.draw.read_text(encoding="utf-8")))
        draw(results["rows"], PAGES / "implicit-memory.png")
        return results
    device = torch.device(options.device)
    machine = announce(device, options.threads)
    deep = measure("deep set", device, quick=options.quick)
    pairwise = measure("pairwise", device, quick=options.quick)
    # The figure shows the rows of the deep set.
    return {"machine": machine, **deep, "pairwise": pairwise}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw peak memory against iterations."""
    figure = new_figure(5, 4.2)
    axes = figure.add_subplot()
    for way in WAYS:
        axes.plot([row["iterations"] for row in rows], [row[way]["step"] / 1e6 for row in rows], "o-", label=way)
    axes.set(xscale="log", yscale="log", xlabel="fixed-point iterations K", ylabel="peak memory (MB)")
    axes.legend()
    save_figure(figure, path)


def measure(model: str, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Measure and print one row for each number of iterations."""
    shape, counts = (replace(SHAPES[model][0], sets=4, items=50, features=8), QUICK) if quick else SHAPES[model]
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    for iterations in counts:
        print(f"measuring {model}, K={iterations}", file=sys.stderr, flush=True)
        cases = [replace(shape, iterations=iterations, way=way) for way in WAYS]
        peaks = [peak_of(case, device) for case in cases]
        difference = compare(cases, device)
        results.append(
            {
                "iterations": iterations,
                "difference": difference,
                **{case.way: asdict(peak) for case, peak in zip(cases, peaks, strict=True)},
            }
        )
        cells = [text for peak in peaks for text in (format_bytes(peak.step), format_seconds(peak.seconds))]
        rows.append([f"K={iterations}", *cells, f"{difference:.1e}"])
    growth = {way: relative_spread([row[way]["step"] for row in results]) for way in WAYS}
    print(f"\n## Peak memory of forward and backward pass: {model}, B={shape.sets}, n={shape.items}\n")
    print(table(["iterations", *(f"{way}{text}" for way in WAYS for text in (", peak", ", time")), "difference"], rows))
    print(
        f"\nlargest peak over smallest, minus 1: implicit {growth['implicit']:.1%} (target: at most {FLAT:.0%}), "
        f"unrolled {growth['unrolled']:.0%}",
        flush=True,
    )
    return {"shape": asdict(shape), "rows": results, "growth": growth}


def peak_of(case: Case, device: torch.device) -> Peak:
    """Return the peak of one case: on the GPU from the allocator, on the CPU from a new process."""
    if device.type == "cuda":
        return peak_here(case, device)
    return Peak(**measure_in_subprocess("benchmarks.implicit.implicit_memory", case, RETURN_MEMORY))


def peak_here(case: Case, device: torch.device) -> Peak:
    """Measure in this process; the base is the memory after a tiny case, with the data in memory."""
    gradients(replace(case, iterations=2, sets=1, items=10), device)
    _, solve = MODELS[case.model](case, device)
    return measure_peak(lambda: solve().square().sum().backward(), device)


def compare(cases: Sequence[Case], device: torch.device) -> float:
    """Return the norm of the difference of both gradients, over the norm of the first."""
    first, second = (torch.cat([g.flatten() for g in gradients(case, device)]) for case in cases)
    return float((second - first).norm() / first.norm())


def gradients(case: Case, device: torch.device) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of squares of the solution."""
    inputs, solve = MODELS[case.model](case, device)
    # The last bias of a set function cancels in every gain.
    return torch.autograd.grad(solve().square().sum(), inputs, materialize_grads=True)


def deep_set(case: Case, device: torch.device) -> Problem:
    """Return mean field of a random network; both ways have the same masks at every step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = DeepSetFunction(case.features, "mlp", dim=32, hidden=(64, 64)).to(device)
    with torch.no_grad():
        for layer in network.rho:
            if isinstance(layer, nn.Linear):
                # Items interact, and plain steps still contract.
                layer.weight.mul_(STRENGTH)
    items = torch.randn(case.sets * case.items, case.features, generator=torch.Generator().manual_seed(0))
    sets = Sets.from_lengths(items, [case.items] * case.sets).to(device)
    estimator = Gaussian(MASKS, FreshNoise(0)).frozen()

    def unroll() -> Tensor:
        return mean_field(network, sets, estimator=estimator, solver=UnrolledMeanField(case.iterations)).value

    def solve() -> Tensor:
        with ignore_unconverged():
            result = mean_field(
                network,
                sets,
                estimator=estimator,
                solver=ImplicitMeanField(
                    Picard(damping=damping(case.iterations)),
                    GMRES(tol=1e-5, restart=10),
                    tol=1e-30,
                    max_steps=case.iterations,
                    on_failure="warn",
                ),
            )
        check_steps(result.steps, case)
        return result.value

    return tuple(network.parameters()), unroll if case.way == "unrolled" else solve


def pairwise(case: Case, device: torch.device) -> Problem:
    """Return mean field of a pairwise function, written as a fixed point."""
    inputs = make_inputs(case, device)
    return inputs, partial(WAYS[case.way], case, *inputs)


def make_inputs(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return fields, features and weights, scaled so that the map contracts for every size."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weight = torch.linalg.qr(draw(case.features, case.features))[0]
    features = draw(case.sets, case.items, case.features) / (case.items + case.features) ** 0.5
    inputs = (draw(case.sets, case.items), features, 0.25 * weight)
    fields, features, weight = (x.to(device).requires_grad_() for x in inputs)
    return fields, features, weight


def pairwise_step(psi: Tensor, fields: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    """Return all probabilities after one update."""
    pooled = features.mT @ (psi - 0.5)[..., None]
    return torch.sigmoid(fields + (features @ (weight @ pooled))[..., 0])


def damping(iterations: int) -> float:
    """Return a damping so small that this many steps are needed for four digits."""
    return min(1.0, 10 / iterations)


def unrolled(case: Case, *inputs: Tensor) -> Tensor:
    """Differentiate through every step."""
    psi = torch.full_like(inputs[0], 0.5)
    rate = damping(case.iterations)
    for _ in range(case.iterations):
        psi = psi + rate * (pairwise_step(psi, *inputs) - psi)
    return psi


def implicit(case: Case, *inputs: Tensor) -> Tensor:
    """Differentiate by the implicit function theorem."""
    with ignore_unconverged():
        result = fixed_point(
            pairwise_step,
            torch.full_like(inputs[0], 0.5),
            *inputs,
            solver=Picard(damping=damping(case.iterations)),
            adjoint=GMRES(tol=1e-5, restart=10),
            tol=1e-30,
            max_steps=case.iterations,
            on_failure="warn",
        )
    check_steps(result.steps, case)
    return result.value


@contextmanager
def ignore_unconverged() -> Iterator[None]:
    """Ignore the warning that the tolerance was not reached, which is intended; "mask" would skip the adjoint."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the equation", category=RuntimeWarning)
        yield


def check_steps(steps: int | Tensor, case: Case) -> None:
    """Raise an error if a sample stopped early."""
    fewest = int(torch.as_tensor(steps).min())
    if fewest != case.iterations:
        raise RuntimeError(
            f"a sample stopped after {fewest} of {case.iterations} steps: memory would not be comparable"
        )


WAYS: dict[str, Callable[..., Tensor]] = {"unrolled": unrolled, "implicit": implicit}
MODELS: dict[str, Callable[[Case, torch.device], Problem]] = {"deep set": deep_set, "pairwise": pairwise}


if __name__ == "__main__":
    serve_case(Case, peak_here)

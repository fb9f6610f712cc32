"""The implicit gradient of whole models against enumeration, and how far samples and one step are from it.

Claims checked: with Exact the gradient through `ImplicitMeanField` is the enumerated one to 1e-6. With 512 samples of
Pathwise the cosine between both is over 0.999 where items interact weakly (factor 1). Where they interact more strongly
only SecondDifference stays close to that, and Gaussian has a bias everywhere.

Random networks in float64: a DeepSetFunction with phi "mlp" and "context", InsetFunction, HorseFunction, of dimension
32 and two layers of 64 units in rho, whose weights are multiplied by a factor, so that items interact weakly to
strongly; the largest makes many of them certain, and the radius is smaller again. Sets of 8, 0, 1, 5 and 3 items; the
loss is the cross-entropy of random subsets, its gradient is with respect to all parameters. The truth is dense algebra
on sums over all subsets, which shares no code with `Exact` and its adjoint: the solution is refined by Newton, "radius"
is the spectral radius of the plain iteration there. "One step" differentiates the last step only, at the true solution:
with Exact, and with as many Bernoulli samples.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.tables import table
from setgrad import functions
from setgrad.inference import AllItems, ImplicitMeanField, MeanFieldSolver, OneStepMeanField, mean_field
from setgrad.sets import Sets

SIZES = (8, 0, 1, 5, 3)
FACTORS = (1, 3, 5, 8)
SAMPLES, SEEDS = 512, 5
EXACT, CLOSE = 1e-6, 0.999
# Sets that do not converge are counted, and have no gradient.
TIGHT = ImplicitMeanField(tol=1e-12, max_steps=2000, on_failure="mask")
SAMPLED = ImplicitMeanField(tol=1e-6, max_steps=1000, on_failure="mask")

Network = functions.DeepSetFunction | functions.InsetFunction | functions.HorseFunction
NETWORKS: dict[str, Callable[[], Network]] = {
    "DeepSetFunction, mlp": lambda: functions.DeepSetFunction(2, "mlp", dim=32, hidden=(64, 64)),
    "DeepSetFunction, context": lambda: functions.DeepSetFunction(2, "context", dim=32, hidden=(64, 64)),
    "InsetFunction": lambda: functions.InsetFunction(2, dim=32, hidden=(64, 64)),
    "HorseFunction": lambda: functions.HorseFunction(2, dim=32, hidden=(64, 64)),
}
SMOOTH: dict[str, Callable[[int, functions.FreshNoise], functions.ExtensionEstimator]] = {
    "Gaussian": functions.Gaussian,
    "Pathwise": functions.Pathwise,
    "SecondDifference": functions.SecondDifference,
}
WAYS = (*SMOOTH, "one step, Exact", "one step, Bernoulli")


@final
@dataclass(frozen=True)
class Problem:
    """A network, sets, and the subsets (one bit for each item) whose likelihood is differentiated."""

    network: Network
    sets: Sets
    subsets: Sets

    def loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy of the subsets."""
        return AllItems()(logits, self.subsets, None, None)


@final
@dataclass(frozen=True)
class Truth:
    """Logits of the solution, the gradient of its loss by all parameters in one row, and the spectral radius."""

    logits: Tensor
    gradient: Tensor
    radius: float


@final
@dataclass(frozen=True)
class Inferred:
    """Result of inference: logits, gradient, and how many sets did not converge."""

    logits: Tensor
    gradient: Tensor
    unconverged: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"networks for each row (default: {SEEDS})")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"samples of estimators (default: {SAMPLES})")
    add_machine_options(parser, device=False)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all networks; print cosines, then distances."""
    machine = announce(torch.device("cpu"), options.threads)
    factors, seeds, samples = ((1, 5), 1, 16) if options.quick else (FACTORS, options.seeds, options.samples)
    cases = []
    for name in NETWORKS:
        for factor in factors:
            print(f"measuring {name} x {factor}", file=sys.stderr, flush=True)
            cases += [
                {"network": name, "factor": factor, "seed": seed}
                | measure(make_problem(name, factor, seed), samples, seed)
                for seed in range(seeds)
            ]
    print(f"\n## Cosine to the exact gradient, {samples} samples: median (smallest) over {seeds} seeds\n")
    print(show(cases, "cosine", min, 4))
    print(f"\n## Relative distance from the exact gradient, {samples} samples: median (largest) over {seeds} seeds\n")
    print(show(cases, "distance", max, 3))
    print(f"\n{verdict(cases)}", flush=True)
    return {"machine": machine, "samples": samples, "cases": cases}


def make_problem(name: str, factor: float, seed: int, sizes: Sequence[int] = SIZES) -> Problem:
    """Return a random network with random items and subsets; the larger the factor, the more items interact."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[name]().double()
    with torch.no_grad():
        for layer in network.rho:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(factor)
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64)
    chosen = torch.rand(sum(sizes), generator=generator) < 0.5
    sets = Sets.from_lengths(items, sizes)
    return Problem(network, sets, sets.with_values(chosen))


def measure(problem: Problem, samples: int, seed: int) -> dict[str, Any]:
    """Return cosine and relative distance of each way to the exact gradient."""
    exact = solve(problem, functions.Exact(), TIGHT)
    truth = enumerate_all(problem, exact.logits)
    psi = torch.sigmoid(truth.logits)
    inferred = {
        name: solve(problem, make(samples, functions.FreshNoise(seed)), SAMPLED) for name, make in SMOOTH.items()
    }
    inferred["one step, Exact"] = solve(problem, functions.Exact(), OneStepMeanField(), psi)
    inferred["one step, Bernoulli"] = solve(
        problem, functions.Bernoulli(samples, functions.FreshNoise(seed)), OneStepMeanField(), psi
    )
    return {
        "radius": truth.radius,
        "exact": distance(exact.gradient, truth.gradient),
        "unconverged": exact.unconverged + sum(way.unconverged for way in inferred.values()),
        "cosine": {name: cosine(way.gradient, truth.gradient) for name, way in inferred.items()},
        "distance": {name: distance(way.gradient, truth.gradient) for name, way in inferred.items()},
    }


def solve(
    problem: Problem, estimator: functions.ExtensionEstimator, solver: MeanFieldSolver, start: float | Tensor = 0.5
) -> Inferred:
    """Infer, and return the logits with the gradient of the loss."""
    result = mean_field(problem.network, problem.sets, estimator=estimator, solver=solver, start=start)
    slope = gradient(problem.loss(result.logits), problem.network)
    # The status is read after the backward pass, whose linear system may fail too.
    return Inferred(result.logits.detach(), slope, int((~result.converged).sum()))


def gradient(loss: Tensor, network: Network) -> Tensor:
    """Return all derivatives in one row; parameters without effect, as the last bias of rho, have zeros."""
    parts = torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def enumerate_all(problem: Problem, start: Tensor, steps: int = 3) -> Truth:
    """Return the solution closest to the start and its gradient, by dense algebra on the values of all subsets."""
    extension = make_extension(problem)
    z, one = start, torch.eye(len(start), dtype=start.dtype)
    for _ in range(steps):
        z = z + torch.linalg.solve(one - coupling(extension, z), _update(extension, z).detach() - z)
    jacobian = coupling(extension, z)
    z.requires_grad_()
    (slope,) = torch.autograd.grad(problem.loss(z), z)
    # From z = g(z, parameters) follows dz = (1 - dg/dz)^-1 dg; the adjoint is its transpose.
    adjoint = torch.linalg.solve((one - jacobian).T, slope)
    z = z.detach()
    return Truth(
        z, gradient(adjoint @ _update(extension, z), problem.network), float(torch.linalg.eigvals(jacobian).abs().max())
    )


def make_extension(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Return the function from psi to the expected F, summed over the sets, as a sum over all subsets."""
    layout = problem.sets.layout
    bound = problem.network.bind(problem.sets)
    known = []
    for number, n in enumerate(layout.host_lengths.tolist()):
        mine = layout.ids == number
        bits = (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1 == 1
        masks = torch.zeros(2**n, layout.total, dtype=torch.bool)
        masks[:, mine] = bits
        known.append((mine, bits, bound.value(masks)[:, number]))

    def extension(psi: Tensor) -> Tensor:
        return torch.stack([torch.where(b, psi[mine], 1 - psi[mine]).prod(1) @ f for mine, b, f in known]).sum()

    return extension


def _update(extension: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the logits after one update, differentiable by the parameters."""
    psi = torch.sigmoid(z.detach()).requires_grad_()
    (logits,) = torch.autograd.grad(extension(psi), psi, create_graph=True)
    return logits


def coupling(extension: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the derivative of the update by z: the Hessian times psi (1 - psi)."""
    psi = torch.sigmoid(z.detach())
    hessian: Tensor = torch.autograd.functional.hessian(extension, psi)
    return hessian * (psi * (1 - psi))


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(torch.cosine_similarity(a, b, 0))


def distance(a: Tensor, b: Tensor) -> float:
    """Return the norm of the difference over the norm of the second."""
    return float((a - b).norm() / b.norm())


def show(cases: Sequence[dict[str, Any]], column: str, worst: Callable[[list[float]], float], digits: int) -> str:
    """Return a table with one row for each network and factor: median and worst over the seeds."""
    rows = []
    pairs = [(case["network"], case["factor"]) for case in cases]
    for name, factor in dict.fromkeys([*pairs, *(("all", factor) for _, factor in pairs)]):
        mine = [case for case in cases if name in (case["network"], "all") and case["factor"] == factor]
        radii = [case["radius"] for case in mine]
        cells = [[case[column][way] for case in mine] for way in WAYS]
        rows.append(
            [
                f"{name} x {factor}",
                f"{statistics.median(radii):.2f} ({max(radii):.2f})",
                f"{max(case['exact'] for case in mine):.0e}",
                *(f"{statistics.median(values):.{digits}f} ({worst(values):.{digits}f})" for values in cells),
            ]
        )
    return table(["network x factor", "radius (largest)", "Exact, distance", *WAYS], rows)


def verdict(cases: Sequence[dict[str, Any]]) -> str:
    """Return how many networks reach the targets."""
    largest = max(case["exact"] for case in cases)
    counts = {way: sum(case["cosine"][way] > CLOSE for case in cases) for way in WAYS}
    close = ", ".join(f"{way} {count}" for way, count in counts.items())
    # One step has the same number of samples, without the derivative by psi.
    rival = "one step, Bernoulli"
    better = {way: sum(case["distance"][way] < case["distance"][rival] for case in cases) for way in SMOOTH}
    closer = ", ".join(f"{way} {count}" for way, count in better.items())
    unconverged = sum(case["unconverged"] for case in cases)
    return (
        f"Exact against enumeration, largest distance: {largest:.1e} (target: at most {EXACT:.0e})\n"
        f"cosine over {CLOSE}, of {len(cases)} networks: {close}\n"
        f"closer than one step with as many samples: {closer}\n"
        f"sets that did not converge, over all networks and ways: {unconverged}"
    )

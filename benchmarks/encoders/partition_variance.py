"""Does the code of a set depend on how it is cut into pieces? Variance over random partitions, in float64 (figure 3).

Claims checked: encoders that read in pieces, UMBC with any head among them, have no variance but rounding, whatever the
number of pieces; encoders that get the mean of the codes of their pieces have some.

As in the paper (appendix D): models with random weights; a set of 1,024 items of 128 numbers, a quarter each from
normal, uniform, exponential and Cauchy distributions; 100 random partitions into 1 to 32 pieces of equal size. A cell
is the variance of a feature of the code over the partitions, mean over the features, relative to the square of the
code (the paper does not divide, so that its figures depend on the scale of the weights). With --trained the models of
`clustering` are read from its results too, and the variance is that of the negative log-likelihood of mixtures of
Gaussians.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.encoders.clustering_fits import (
    add_options,
    base_fit,
    judged_sets,
    load,
    model_file,
    origin_of,
    read_found,
    results_file,
    run_missing,
)
from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, Sizes, as_sets, make
from benchmarks.encoders.clustering_plots import draw_variances
from benchmarks.encoders.streaming import codes
from benchmarks.lib.device import resolve_device
from benchmarks.lib.tables import table
from benchmarks.lib.trials import show_page
from setgrad.errors import OptionError

PIECES = (1, 2, 4, 8, 16, 32)
ITEMS, FEATURES, PARTITIONS, BATCH = 1024, 128, 100, 20
# What may be called rounding: a variance is the square of a relative error.
ROUNDING = 1e-24
TRAINED = ("umbc-st", "deep-umbc", "deep-sets", "sse", "set-transformer", "fspool", "diff-em")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"(default: {PARTITIONS})")
    parser.add_argument("--trained", action="store_true", help="also with the models of `clustering`")
    parser.add_argument("--shown", type=Path, metavar="FILE", help="print and draw what --json wrote, and run nothing")
    add_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all encoders, print tables and draw figure 3."""
    with results_file(options) as results:
        found = measure(options, results) if options.shown is None else read_found(options.shown)
        parts = ["# Variance over partitions", "## Codes, relative, random weights", show(found["encodings"])]
        largest = max(
            v for name, row in found["encodings"].items() if CONTENDERS[name].consistent for v in row.values()
        )
        parts.append(f"largest variance of one that reads in pieces: {largest:.1e} (target: at most {ROUNDING:.0e})")
        if found["likelihoods"]:
            parts += ["## Negative log-likelihood, trained models", show(found["likelihoods"])]
        results.parent.mkdir(parents=True, exist_ok=True)
        show_page("\n\n".join(parts), [found["origin"]], options, results.with_name("partition-variance.md"))
        if not options.quick:
            draw_variances(found["encodings"], results.with_name("partition-variance.png"))
    return found


def measure(options: argparse.Namespace, results: Path) -> dict[str, Any]:
    """Variances by encoder and number of pieces, the number as text, as JSON has it."""
    device = resolve_device(options.device)
    items, partitions = (128, 5) if options.quick else (ITEMS, options.partitions)
    if partitions < 2:
        raise OptionError(f"a variance needs at least two partitions, not {partitions}; give --partitions 2 or more")
    sizes = Sizes(FEATURES, 32, 8) if options.quick else Sizes(FEATURES, 128, 32)
    values = four_distributions(items, FEATURES, torch.Generator().manual_seed(0)).to(device)
    encodings = {}
    for name in CONTENDERS:
        model = make(name, sizes).double().to(device).eval()
        encodings[name] = {
            str(count): feature_variance(codes_of_partitions(model, values, count, partitions)) for count in PIECES
        }
    trained, failed = measure_trained(options, results, device, partitions) if options.trained else ({}, 0)
    return {"encodings": encodings, "likelihoods": trained, "failed": failed, "origin": origin_of(options)}


def four_distributions(items: int, features: int, generator: torch.Generator) -> Tensor:
    """Items `(items, features)`, a quarter each normal, uniform in (-3, 3), exponential and Cauchy, in float64."""
    shape = (items // 4, features)
    normal, uniform, first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
    )
    return torch.cat([normal, 6 * uniform - 3, -torch.log1p(-first), torch.tan(math.pi * (second - 0.5))])


@torch.no_grad()
def codes_of_partitions(model: Clusterer, values: Tensor, pieces: int, partitions: int, seed: int = 0) -> Tensor:
    """Codes of one set `(n, d)` cut at random into pieces of equal size, `(partitions, ...)`."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, partitions, BATCH):
        count = min(BATCH, partitions - start)
        orders = torch.stack([torch.randperm(len(values), generator=generator) for _ in range(count)])
        shuffled = values[orders.to(values.device)]
        parts = [as_sets(part) for part in shuffled.chunk(pieces, 1)]
        found.extend(codes(model, parts, {len(parts)}))
    return torch.cat(found)


def feature_variance(found: Tensor) -> float:
    """Variance over the first axis, mean over the features, relative to the mean square."""
    flat = found.flatten(1)
    return float(flat.var(0).mean() / flat.square().mean())


def measure_trained(
    options: argparse.Namespace, results: Path, device: torch.device, partitions: int
) -> tuple[dict[str, dict[str, float]], int]:
    """Variance of the likelihood over partitions, for models that were trained on mixtures; how many fits failed."""
    base = base_fit(options)
    fits = [replace(base, model=name) for name in (TRAINED[::4] if options.quick else TRAINED)]
    records, failed = run_missing(fits, options, results, models=True)
    points = next(judged_sets(base, device)).points[0].double()
    found = {}
    for fit in records:
        if model_file(fit, results).is_file():
            model = load(fit, results).double().to(device)
            found[fit.model] = {str(count): nll_variance(model, points, count, partitions) for count in PIECES}
    return found, failed


@torch.no_grad()
def nll_variance(model: Clusterer, points: Tensor, pieces: int, partitions: int) -> float:
    """Variance of the likelihood of one set over its partitions."""
    found = model.mixture(codes_of_partitions(model, points, pieces, partitions))
    return float(found.nll(points.expand(len(found.means), -1, -1)).var())


def show(found: Mapping[str, Mapping[str, float]]) -> str:
    """One row for each encoder, one column for each number of pieces."""
    rows = [
        [CONTENDERS[name].title, "yes" if CONTENDERS[name].consistent else "no", *(f"{v:.1e}" for v in row.values())]
        for name, row in found.items()
    ]
    return table(["encoder", "reads in pieces", *(f"{count} pieces" for count in PIECES)], rows)

"""Does the code of a set depend on how it is cut into chunks? Variance over random partitions, in float64.

Claims checked: encoders that read chunks, UMBC with any head among them, have no variance except rounding, whatever the
number of chunks; encoders that get the mean of the codes of their chunks have variance (Willette et al., 2023,
arXiv:2208.12401, figure 3).

As published (appendix D): models with random weights; a set of 1,024 items of 128 numbers, a quarter each from normal,
uniform, exponential and Cauchy distributions; 100 random partitions into 1 to 32 chunks of equal size. A cell is the
variance of a feature of the code over the partitions, averaged over features, relative to the square of the code
(published figures do not divide, so they depend on the scale of the weights). With --trained also the models of
`clustering`, with the variance of the negative log-likelihood of mixtures of Gaussians.
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
    RESULTS,
    add_options,
    base_fit,
    evaluation_sets,
    load,
    model_file,
    origin_of,
    read_json,
    run_fits,
)
from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, Sizes, as_sets, make
from benchmarks.encoders.clustering_plots import draw_variances
from benchmarks.encoders.streaming import codes
from benchmarks.lib.pages import Report, show_page
from benchmarks.lib.tables import table
from benchmarks.lib.trials import results_file
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

CHUNKS = (1, 2, 4, 8, 16, 32)
ITEMS, FEATURES, PARTITIONS, BATCH = 1024, 128, 100, 20
# The largest variance that counts as rounding: the square of a relative error.
ROUNDING = 1e-24
TRAINED = ("umbc-st", "deep-umbc", "deep-sets", "sse", "set-transformer", "fspool", "diff-em")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"(default: {PARTITIONS})")
    parser.add_argument("--trained", action="store_true", help="also with the models of `clustering`")
    parser.add_argument("--shown", type=Path, metavar="FILE", help="print and draw what --json wrote, and run nothing")
    add_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all encoders, show the tables and draw them."""
    with results_file(options, RESULTS) as (results, page):
        measured = measure(options, results) if options.shown is None else read_json(options.shown)
        consistent = [row for name, row in measured["encodings"].items() if CONTENDERS[name].consistent]
        largest = max(value for row in consistent for value in row.values())
        report = Report(
            "partition-variance",
            "Variance of codes over partitions",
            lambda _: _tables(measured),
            f"The largest variance of an encoder that reads chunks is {largest:.1e} (target: at most {ROUNDING:.0e}, "
            "which is rounding). 100 random partitions in float64.",
            "python -m benchmarks partition-variance --trained --device cuda",
            lambda _, page: draw_variances(measured["encodings"], page.with_suffix(".png")),
        )
        show_page(report, [measured["origin"]], page and page.with_name("partition-variance.md"))
    return measured


def _tables(measured: Mapping[str, Any]) -> str:
    parts = [f"## Codes with random weights, relative variance\n\n{show(measured['encodings'])}"]
    if measured["likelihoods"]:
        parts.append(f"## Negative log-likelihood of trained models\n\n{show(measured['likelihoods'])}")
    return "\n\n".join(parts)


def measure(options: argparse.Namespace, results: Path) -> dict[str, Any]:
    """Return the variances by encoder and number of chunks; numbers are text, as in JSON."""
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
            str(count): feature_variance(codes_of_partitions(model, values, count, partitions)) for count in CHUNKS
        }
    trained, failed = measure_trained(options, results, device, partitions) if options.trained else ({}, 0)
    return {"encodings": encodings, "likelihoods": trained, "failed": failed, "origin": origin_of(options)}


def four_distributions(items: int, features: int, generator: torch.Generator) -> Tensor:
    """Return items `(items, features)` in float64: a quarter each normal, uniform, exponential and Cauchy."""
    shape = (items // 4, features)
    normal, uniform, first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
    )
    return torch.cat([normal, 6 * uniform - 3, -torch.log1p(-first), torch.tan(math.pi * (second - 0.5))])


@torch.no_grad()
def codes_of_partitions(model: Clusterer, values: Tensor, chunks: int, partitions: int, seed: int = 0) -> Tensor:
    """Return codes of one set `(n, d)` cut at random into chunks of equal size, `(partitions, ...)`."""
    generator = torch.Generator().manual_seed(seed)
    batches: list[Tensor] = []
    for start in range(0, partitions, BATCH):
        count = min(BATCH, partitions - start)
        orders = torch.stack([torch.randperm(len(values), generator=generator) for _ in range(count)])
        shuffled = values[orders.to(values.device)]
        parts = [as_sets(part) for part in shuffled.chunk(chunks, 1)]
        batches.extend(codes(model, parts, {len(parts)}))
    return torch.cat(batches)


def feature_variance(values: Tensor) -> float:
    """Return the variance over the first axis, averaged over features, relative to the mean square."""
    flat = values.flatten(1)
    return float(flat.var(0).mean() / flat.square().mean())


def measure_trained(
    options: argparse.Namespace, results: Path, device: torch.device, partitions: int
) -> tuple[dict[str, dict[str, float]], int]:
    """Return the variance of the likelihood over partitions for trained models, and how many fits failed."""
    base = base_fit(options)
    fits = [replace(base, model=name) for name in (TRAINED[::4] if options.quick else TRAINED)]
    records, failed = run_fits(fits, options, results, models=True)
    points = next(evaluation_sets(base, device)).points[0].double()
    variances = {}
    for fit in records:
        if model_file(fit, results).is_file():
            model = load(fit, results).double().to(device)
            variances[fit.model] = {str(count): nll_variance(model, points, count, partitions) for count in CHUNKS}
    return variances, failed


@torch.no_grad()
def nll_variance(model: Clusterer, points: Tensor, chunks: int, partitions: int) -> float:
    """Return the variance of the likelihood of one set over its partitions."""
    mixtures = model.mixture(codes_of_partitions(model, points, chunks, partitions))
    return float(mixtures.nll(points.expand(len(mixtures.means), -1, -1)).var())


def show(variances: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table with one row for each encoder, one column for each number of chunks."""
    rows = [
        [CONTENDERS[name].title, "yes" if CONTENDERS[name].consistent else "no", *(f"{v:.1e}" for v in row.values())]
        for name, row in variances.items()
    ]
    return table(["encoder", "reads chunks", *(f"{count} chunks" for count in CHUNKS)], rows)

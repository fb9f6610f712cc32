"""Amortised clustering: which encoder finds the mixture behind a set best, and with which gradient.

Claims checked: UMBC with a Set Transformer on its slots has the lowest negative log-likelihood (NLL) of the encoders
that read sets in chunks with one pass (Willette et al., 2023, arXiv:2208.12401, table 2), DeepUMBC, which has three
passes, the lowest of all, and UMBC reaches the published 1.84 on sets of 1,024 points. Trained on a sampled gradient
(32 or 128 of 512 points with a graph) it is as good as on the full gradient (figure 4). SSE nearly keeps its NLL on a
sample of 8 points, and does not on sets of 8.

Sets are points in the plane from four Gaussians of random weights, means and deviations. The model reads a set and
predicts the Gaussians; the loss is the NLL of the points. All encoders have two layers on every point, the same steps
and the same test sets. Of two learning rates (--rate, and half of it as published) the first table and the figure show
the one with the lower loss in the last tenth of training, whose sets are all new; the table of gradients shows both.
Encoders that cannot read chunks are trained and tested twice: on whole sets, which was not published, and as published:
trained on sets of 8 points, with the mean of the codes of chunks of 8 in the test.

"True mixtures" is the limit that the entropy of the data sets: no model can do better on average, except by fitting
noise. "EM from the truth" adds the gain of fitting noise. "EM" starts at random points. The published text draws
deviations (or variances) from 0.3 to 0.6, for which the true mixtures have 2.21; the published code from 0.1 to 0.6,
which is used here (--deviations text for the other).

Gradients: "sample" reads all points, only a chunk of them with a graph, weighted; "unweighted" the same without
weights; "subset" is the biased one (appendix A.8): training sets have only that many points.

Results: Negative log-likelihood (NLL) of 2,000 test sets of 1,024 points, mean ± standard deviation over seeds; less is
better. "True mixtures" is the entropy of the data, a limit for every model except for fitting noise; "EM from the
truth" adds the gain of fitting noise; "EM" starts at random points. rate: the better of two learning rates. Trained on
a sampled gradient of 32 or 128 of 512 points, UMBC is as good as on the full gradient; on 8 points it depends on the
rate. At the published 0.001 one run of two is as good as on the full gradient (1.775) and the loss of the other rises
after 3,000 steps (2.551); both runs on sets of 8 points have 2.2. At 0.002 neither gradient is enough. At 32 points
sets of 32 points ("subset", biased) are worse than a sample, at 128 they are level with it. Without weights a sample is
worse at both. The published NLL of 1.84 for UMBC is from the gradient of 8 points.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.encoders.clustering_fits import (
    GRADIENTS,
    RESULTS,
    Fit,
    add_options,
    base_fit,
    evaluation_sets,
    run_fits,
)
from benchmarks.encoders.clustering_models import CONTENDERS
from benchmarks.encoders.clustering_plots import draw_gradients
from benchmarks.encoders.mixtures import em, em_from_scratch
from benchmarks.lib.pages import Report, results_paragraph, show_page
from benchmarks.lib.records import Record, append_record, read_records
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import format_bytes, table
from benchmarks.lib.trials import parse_names, results_file
from setgrad.selector import resolve_device

TARGET = 1.84
CHUNKS = (8, 32, 128)
# Encoders whose gradients are compared; only the smallest chunk for two of them, to save time.
STUDIED = {"umbc-st": CHUNKS, "deep-sets": CHUNKS[:1], "sse": CHUNKS[:1]}
QUICK = ("umbc-st", "deep-sets", "set-transformer")
STARTS, EM_STEPS = 10, 50
# How an encoder with no, one or more passes reads chunks.
READS = ("no", "by state", "in passes")
PARTS = ("table", "gradients")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", help=f"contenders (default: all: {', '.join(CONTENDERS)})")
    parser.add_argument("--parts", default="table,gradients", help="table, gradients (default: both)")
    parser.add_argument("--gradients", default=",".join(GRADIENTS), help=f"of part gradients: {', '.join(GRADIENTS)}")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS, help="points with a graph (default: 8 32 128)")
    parser.add_argument("--one-rate", action="store_true", help="only --rate, not half of it as well")
    add_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, then show the tables and draw the gradients."""
    parts = parse_names(options.parts, PARTS, "part")
    fits = plan(options, parts)
    with results_file(options, RESULTS) as (results, page):
        records, failed = run_fits(fits, options, results)
        # The file also has the fits of `activations`.
        records = {fit: record for fit, record in records.items() if fit.activation == Fit.activation}
        limits = known_bounds(base_fit(options), resolve_device(options.device), results)
        report = Report(
            "clustering",
            "Amortised clustering",
            lambda _: "\n\n".join([*tables(records, limits), *claims(records)]),
            results_paragraph(__doc__),
            "python -m benchmarks clustering --device cuda --jobs 15",
            lambda _, page: draw_gradients(of_best_rate(records), page.with_name(f"{page.stem}-gradients.png")),
        )
        show_page(report, list(records.values()), page)
    return {"limits": limits, "records": list(records.values()), "failed": failed}


def plan(options: argparse.Namespace, parts: Sequence[str]) -> list[Fit]:
    """Return all fits of the options."""
    base = base_fit(options)
    usual = QUICK if options.quick else CONTENDERS
    names = parse_names(options.models or ",".join(usual), CONTENDERS, "model")
    gradients = parse_names(options.gradients, GRADIENTS, "gradient")
    rates = [base.rate] if options.quick or options.one_rate else [base.rate, base.rate / 2]
    fits = []
    for seed in range(1 if options.quick else options.seeds):
        for one in (replace(base, model=name, seed=seed, rate=rate) for name in names for rate in rates):
            if "table" in parts:
                fits += [one] if CONTENDERS[one.model].consistent else [one, replace(one, gradient="subset")]
            if "gradients" in parts and one.model in STUDIED:
                chunks = [chunk for chunk in STUDIED[one.model] if chunk in options.chunks]
                fits += [
                    fit for fit in studied(one, chunks[: 1 if options.quick else None]) if fit.gradient in gradients
                ]
    return list(dict.fromkeys(fits))


def studied(one: Fit, chunks: Sequence[int]) -> list[Fit]:
    """Return the fits that compare gradients, for chunks that divide the sets."""
    ways = ("sample", "subset", "unweighted") if one.model == "umbc-st" else ("sample", "subset")
    fitting = [chunk for chunk in chunks if chunk < one.points and not one.points % chunk]
    return [one, *(replace(one, gradient=gradient, chunk=chunk) for chunk in fitting for gradient in ways)]


def known_bounds(fit: Fit, device: torch.device, results: Path) -> dict[str, float]:
    """Return the bounds, which are computed once for a file of records."""
    key = {"bounds_of": fit.deviations, "tests": fit.tests}
    for record in read_records(results):
        if key.items() <= record.items():
            return dict(record["bounds"])
    values = bounds(fit, device)
    append_record(results, {**key, "bounds": values})
    return values


@torch.no_grad()
def bounds(fit: Fit, device: torch.device) -> dict[str, float]:
    """Return the NLL of the true mixtures, of EM from the true mixtures, and of EM from random points."""
    generator = torch.Generator(device).manual_seed(0)
    totals: dict[str, list[float]] = {"True mixtures": [], "EM from the truth": [], f"EM, best of {STARTS} starts": []}
    for sets in evaluation_sets(fit, device):
        points = sets.points
        values = (
            sets.truth.nll(points),
            em(points, sets.truth, EM_STEPS).nll(points),
            em_from_scratch(points, generator, starts=STARTS, steps=EM_STEPS),
        )
        for nlls, value in zip(totals.values(), values, strict=True):
            nlls.extend(value.tolist())
    return {name: statistics.fmean(values) for name, values in totals.items()}


def grouped(records: Mapping[Fit, Record]) -> dict[Fit, list[Record]]:
    """Group the records of fits that differ only in the seed."""
    groups: dict[Fit, list[Record]] = {}
    for fit, record in records.items():
        groups.setdefault(replace(fit, seed=0), []).append(record)
    return groups


def best_rates(groups: Mapping[Fit, list[Record]]) -> dict[Fit, list[Record]]:
    """Return, of groups that differ only in the rate, the one with the lowest loss at the end of training."""
    best: dict[Fit, Fit] = {}
    for fit in sorted(groups, key=lambda fit: statistics.fmean(record["losses"][-1] for record in groups[fit])):
        best.setdefault(replace(fit, rate=0.0), fit)
    return {fit: groups[fit] for fit in best.values()}


def of_best_rate(records: Mapping[Fit, Record]) -> dict[Fit, Record]:
    """Return the records of all seeds of the best rate, for sets of the usual size."""
    usual = min((fit.points for fit in records), default=0)
    best = best_rates(grouped(records))
    return {fit: r for fit, r in records.items() if replace(fit, seed=0) in best and fit.points == usual}


def cell(records: Sequence[Record], reads: int) -> str:
    """Return mean and deviation over seeds of the NLL after reading that many points."""
    return mean_cell([record["nll"][str(reads)] for record in records], ".3f")


def tables(records: Mapping[Fit, Record], limits: Mapping[str, float]) -> list[str]:
    """Return the table of encoders, best first, and the table of gradients."""
    groups = grouped(records)
    shown = best_rates(groups)
    usual = min((fit.points for fit in groups), default=0)
    rows, ways = [], []
    for fit in sorted(groups, key=_order):
        contender, runs = CONTENDERS[fit.model], groups[fit]
        mean = statistics.fmean(record["nll"]["1024"] for record in runs)
        numbers = [cell(runs, 512), cell(runs, 1024)]
        # Peaks of a process on the CPU and of tensors on a GPU cannot be compared.
        mark = " (CPU)" if runs[0]["device"].startswith("cpu") else ""
        peak = format_bytes(statistics.fmean(record["peak_memory"] for record in runs)) + mark
        in_chunks = fit.gradient == "subset" and not contender.consistent
        if fit in shown and fit.points == usual and (fit.gradient == "full" or in_chunks):
            how = "mean of codes" if in_chunks else READS[min(contender.passes, 2)]
            published = contender.published if contender.consistent or in_chunks else None
            cost = [f"{fit.rate:g}", str(runs[0]["parameters"]), peak]
            rows.append(
                (mean, [contender.title, how, *numbers, "" if published is None else f"{published:.2f}", *cost])
            )
        if fit.model in STUDIED:
            part = f"all {fit.points}" if fit.gradient == "full" else f"{fit.chunk} of {fit.points}"
            ways.append([contender.title, fit.gradient, part, f"{fit.rate:g}", *numbers, str(len(runs)), peak])
    rows += [(value, [name, "", "", f"{value:.3f}", "", "", "", ""]) for name, value in limits.items()]
    out = []
    if rows:
        numbers = ["NLL, 512 points read", "1,024 read", "published"]
        head = ["encoder", "reads chunks", *numbers, "rate", "parameters", "peak"]
        out.append(table(head, [row for _, row in sorted(rows, key=lambda row: row[0])]))
    if len(ways) > 1:
        numbers = ["NLL, 512 points read", "1,024 read"]
        out.append(table(["encoder", "gradient", "points", "rate", *numbers, "runs", "peak"], ways))
    return out


def _order(fit: Fit) -> tuple[int, int, int, int, float]:
    return list(CONTENDERS).index(fit.model), fit.points, GRADIENTS.index(fit.gradient), fit.chunk, -fit.rate


def claims(records: Mapping[Fit, Record]) -> list[str]:
    """Return one sentence for each claim that the records can decide."""
    means = _means(grouped(of_best_rate(records)))
    ours = means.get(("umbc-st", "full", 8))
    if ours is None:
        return []
    sentences = [f"UMBC + Set Transformer: {ours:.3f} (target: at most {TARGET})"]
    rivals = {key: value for key, value in means.items() if key[0] != "umbc-st"}
    for title, chosen in (
        ("in chunks", {k: v for k, v in rivals.items() if CONTENDERS[k[0]].consistent or k[1] == "subset"}),
        ("of whole sets", {k: v for k, v in rivals.items() if not CONTENDERS[k[0]].consistent and k[1] == "full"}),
    ):
        if chosen:
            best = min(chosen, key=lambda key: chosen[key])
            sentences.append(f"best other reader {title}: {CONTENDERS[best[0]].title}, {chosen[best]:.3f}")
    for gradient in ("sample", "unweighted", "subset"):
        if (loss := means.get(("umbc-st", gradient, 8))) is not None:
            sentences.append(
                f"UMBC + Set Transformer, {gradient} gradient of 8 points: {loss:.3f} ({loss - ours:+.3f})"
            )
    return ["\n".join(f"- {sentence}" for sentence in sentences)]


def _means(groups: Mapping[Fit, Sequence[Record]]) -> dict[tuple[str, str, int], float]:
    return {
        (fit.model, fit.gradient, fit.chunk): statistics.fmean(record["nll"]["1024"] for record in runs)
        for fit, runs in groups.items()
    }

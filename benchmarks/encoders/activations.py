"""Five activations of the attention of a slot to items: UMBC with a Set Transformer on amortised clustering.

Claims checked: softmax attention has the lowest negative log-likelihood, and slot-sigmoid, the activation of the slot
set encoder, is behind it (Willette et al., 2023, arXiv:2208.12401, figure 7 and table 15).

Same task, sizes and steps as `clustering`, whose softmax fits are shared through the file of records. The published
code divides every activation by the weight of the set. Table 15 does not for slot-sigmoid: that is "slot-sigmoid-sum".
As published, models are trained on the sampled gradient of 8 of 512 points (published: of up to 1,024); --gradient full
for the other. Of two learning rates (--rate, and half of it as published) each activation has the one with the lower
loss at the end of training; the table shows both.

Results: NLL of sets of 1,024 points by the points that were read, trained on the sampled gradient of 8 of 512 points.
At the published rate 0.001 all activations that are divided by the weight of the set are level, except one of two runs
with softmax, whose loss rises after 3,000 steps (2.551; the other has 1.775). The undivided slot-sigmoid of table 15 is
behind them, as published. At 0.002 both runs with softmax fail.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from benchmarks.encoders.clustering import cell, grouped, of_best_rate
from benchmarks.encoders.clustering_fits import READS, RESULTS, Fit, add_options, base_fit, evaluation_sets, run_fits
from benchmarks.encoders.clustering_models import SUM
from benchmarks.encoders.clustering_plots import draw_activations
from benchmarks.lib.pages import Report, results_paragraph, show_page
from benchmarks.lib.records import Record
from benchmarks.lib.tables import table
from benchmarks.lib.trials import parse_names, results_file
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.selector import resolve_device

NAMES = (*ACTIVATIONS, f"slot-sigmoid{SUM}")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--gradient", choices=("sample", "full"), default="sample", help="(default: sample)")
    parser.add_argument("--activations", default=",".join(NAMES), help=f"default: all: {', '.join(NAMES)}")
    parser.add_argument("--one-rate", action="store_true", help="only --rate, not half of it as well")
    add_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, then show a table, best first, and draw it."""
    base = replace(base_fit(options), gradient=options.gradient)
    seeds = range(1 if options.quick else options.seeds)
    names = parse_names(options.activations, NAMES, "activation")
    rates = [base.rate] if options.quick or options.one_rate else [base.rate, base.rate / 2]
    fits = [replace(base, activation=name, seed=seed, rate=r) for seed in seeds for name in names for r in rates]
    with results_file(options, RESULTS) as (results, page):
        records, failed = run_fits(fits, options, results)
        # The file also has the fits of `clustering`: others than activation, rate and seed must be equal.
        compared = {_same(fit) for fit in records if fit.activation != Fit.activation and fit.gradient == base.gradient}
        records = {fit: record for fit, record in records.items() if _same(fit) in compared}
        bound = true_nll(base, resolve_device(options.device))
        report = Report(
            "clustering-activations",
            "Activations of UMBC",
            lambda _: show(records),
            f"{results_paragraph(__doc__)} The true mixtures have {bound:.3f}.",
            "python -m benchmarks activations --device cuda --jobs 15",
            lambda _, page: draw_activations(of_best_rate(records), page.with_suffix(".png"), bound),
        )
        show_page(report, list(records.values()), page and page.with_name(f"{page.stem}-activations.md"))
    return {"truth": bound, "records": list(records.values()), "failed": failed}


def _same(fit: Fit) -> Fit:
    return replace(fit, activation="", seed=0, rate=0.0)


def show(records: Mapping[Fit, Record]) -> str:
    """Return the table, best activation first."""
    groups = sorted(grouped(records).items(), key=lambda group: statistics.fmean(r["nll"]["1024"] for r in group[1]))
    rows = [
        [fit.activation, f"{fit.rate:g}", *(cell(runs, reads) for reads in READS), str(len(runs))]
        for fit, runs in groups
    ]
    return table(["activation", "rate", *(f"{reads} points read" for reads in READS), "runs"], rows)


@torch.no_grad()
def true_nll(fit: Fit, device: torch.device) -> float:
    """Return the NLL of the true mixtures."""
    values = [value for sets in evaluation_sets(fit, device) for value in sets.truth.nll(sets.points).tolist()]
    return statistics.fmean(values)

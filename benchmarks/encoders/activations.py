"""Five ways to weigh items for a slot: UMBC with a Set Transformer on amortised clustering (figure 7, table 15).

Claims checked: softmax attention has the lowest negative log-likelihood, and slot-sigmoid, the activation of the slot
set encoder, is behind it. Found: with the gradient of 8 points it is the other way round, softmax is last (3.08) and
slot-softmax first (1.81).

Same task, sizes and steps as `clustering`, whose softmax fits are shared through the file of results. The published
code divides every activation by the weight of the set. Table 15 does not for slot-sigmoid: that is "slot-sigmoid-sum".
As in the paper, models are trained on the sampled gradient of 8 of 512 points; --gradient full for the other.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from typing import Any

import torch

from benchmarks.encoders.clustering import cell, grouped
from benchmarks.encoders.clustering_fits import (
    READS,
    Fit,
    add_options,
    base_fit,
    judged_sets,
    results_file,
    run_missing,
)
from benchmarks.encoders.clustering_models import SUM
from benchmarks.encoders.clustering_plots import draw_activations
from benchmarks.lib.device import resolve_device
from benchmarks.lib.tables import table
from benchmarks.lib.trials import show_page
from setgrad.encoders.activations import ACTIVATIONS

NAMES = (*ACTIVATIONS, f"slot-sigmoid{SUM}")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--gradient", choices=("sample", "full"), default="sample", help="(default: sample)")
    add_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Do the fits that are missing, then print a table, best first, and draw figure 7."""
    base = replace(base_fit(options), gradient=options.gradient)
    seeds = range(1 if options.quick else options.seeds)
    fits = [replace(base, activation=name, seed=seed) for name in NAMES for seed in seeds]
    with results_file(options) as results:
        records, failed = run_missing(fits, options, results)
        bound = truth(base, resolve_device(options.device))
        groups = sorted(
            grouped(records).items(), key=lambda group: statistics.fmean(r["nll"]["1024"] for r in group[1])
        )
        rows = [[fit.activation, *(cell(found, reads) for reads in READS)] for fit, found in groups]
        shown = table(["activation", *(f"{reads} points read" for reads in READS)], rows)
        said = f"NLL of sets of 1,024 points. The true mixtures have {bound:.3f}."
        page = results.with_name(f"{results.stem}-activations.md")
        show_page(f"# Activations of UMBC\n\n{shown}\n\n{said}", list(records.values()), options, page)
        if records and not options.quick:
            draw_activations(records, results.with_name(f"{results.stem}-activations.png"), bound)
    return {"truth": bound, "records": list(records.values()), "failed": failed}


@torch.no_grad()
def truth(fit: Fit, device: torch.device) -> float:
    """NLL of the true mixtures."""
    values = [value for sets in judged_sets(fit, device) for value in sets.truth.nll(sets.points).tolist()]
    return statistics.fmean(values)

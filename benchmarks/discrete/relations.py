"""Neural relational inference: a latent spanning tree of the particles that attract each other, by all estimators.

Claims checked: a hard spanning tree inside a variational auto-encoder can be trained by IMLE, AIMLE and Identity, and
AIMLE finds more edges and a better bound than IMLE and the stochastic softmax trick (Minervini et al., 2023,
arXiv:2209.04862, table 2). Rivals: the score function with leave-one-out baseline on the exact distribution of trees,
exact samples with the gradient of exact marginals ("simple", by the matrix-tree theorem), the marginals as a
relaxation, perturbed optimisers. Without learning: the spanning tree of the last distances ("nearest"), the true tree,
no edges. "supervised" trains the encoder on the true trees, an upper limit for edges.

Data are generated as published: maximum spanning trees of Gumbel weights over 10 particles, moved by T iterations of
NetworkX's spring layout, of which T positions are shown. Smaller than published: 20,000 systems, not 50,000; 1,500
steps of 64, not 50,000 of 128; networks of 64 units, not 256, which get the distances of pairs as inputs. The decoder
gets the true positions at every step (`--horizon 1`); published is 9 for T = 10 and 10 for T = 20. Precision is for the
best tree; a tree always has 9 edges, so precision is recall. "aimle ... paper" is Algorithm 1 as written, the others
"aimle" have the library's default rule. The published figures of AIMLE are beside both.

Two bounds. `bound`: nats per system, with the exact distribution of trees, its exact divergence from the uniform
distribution and the constant of the Gaussian (variance 5e-5); a true lower bound for every method, larger is better.
`published form`: the ELBO of the published code: trees of Gumbel weights, the KL of all weights (an upper bound of the
KL of trees that counts each edge twice; here after the best common shift of the weights), no constant, divided by the
number of particles. Noise is Sum-of-Gamma for IMLE, AIMLE and Identity, on both entries of an edge; "sst" has one
Gumbel draw for an edge. IMLE gets the best of three lambdas by validation bound; the others are not tuned. For all
methods the divergence weighs up to 300 times as much in the first half of training, so that distributions do not
concentrate on wrong trees before the decoder has learned the meaning of an edge; the published code takes 50,000 steps
instead.

Results: bound: nats per system, a lower bound for every method, larger is better. best run: bound and precision of the
run with the highest validation bound. published: ELBO, precision / recall of Minervini et al., 2023 (arXiv:2209.04862,
table 2). With help at every step (horizon 1) AIMLE is level with IMLE (forward) or worse (central), and the stochastic
softmax trick is best. With horizon 9 and one seed AIMLE is far above IMLE, and the score function is best. "nearest"
finds 81 % of the edges without learning, more than any published method. Spreads are large: the decoder may start with
the opposite meaning of an edge, and then a run finds hardly any edge.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.discrete.choosers import best_lambda
from benchmarks.discrete.relations_fit import FIXED, SUPERVISED, Trial, attempt
from benchmarks.discrete.relations_models import METHODS
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.errors import OptionError

ALL = (*METHODS, *FIXED, SUPERVISED)
LAMBDAS = (1.0, 10.0, 100.0)
# Table 2 of arXiv:2209.04862 by positions and horizon: ELBO, precision / recall.
PUBLISHED = {
    (10, 9): {
        "sst hard": "-2301, 33.8 / 60.4",
        "imle f": "-2290, 23.9 / 95.8",
        "imle c": "-2342, 44.0 / 44.0",
        "aimle f": "-1878, 55.2 / 55.2",
        "aimle c": "-2018, 29.3 / 41.8",
    },
    (20, 10): {
        "sst hard": "-3408, 57.4 / 70.4",
        "imle f": "-3821, 20.3 / 20.3",
        "imle c": "-3447, 40.3 / 40.3",
        "aimle f": "-1885, 40.5 / 40.5",
        "aimle c": "-2000, 70.9 / 83.7",
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--times", default="10", help="positions of a system: 10, 20 or both (default: 10)")
    parser.add_argument("--methods", default=",".join(ALL), help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--steps", type=int, default=Trial.steps, help=f"of training (default: {Trial.steps})")
    parser.add_argument("--particles", type=int, default=Trial.particles, help="in a system (default: 10)")
    parser.add_argument(
        "--horizon", type=int, default=Trial.horizon, help="steps without the true positions (default: 1)"
    )
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, those with a distribution of trees in every step first."""
    trials = []
    for times in (int(text) for text in options.times.split(",")):
        if not 1 <= options.horizon < times:
            raise OptionError(f"--horizon takes 1 to {times - 1} for {times} positions, not {options.horizon}")
        for method in parse_names(options.methods, ALL, "method"):
            lambdas = LAMBDAS if method.startswith("imle") else (None,)
            for lam in lambdas[:1] if options.quick else lambdas:
                trials += [_trial(times, method, s, lam, options) for s in range(1 if options.quick else options.seeds)]
    return sorted(trials, key=lambda trial: trial.method in (*FIXED, SUPERVISED))


def _trial(times: int, method: str, seed: int, lam: float | None, options: argparse.Namespace) -> Trial:
    trial = Trial(times, method, seed, lam, options.horizon, steps=options.steps, particles=options.particles)
    if options.quick:
        return replace(trial, steps=min(8, trial.steps), samples=2, batch=8, dim=8, systems=100, held=20)
    return trial


def show(records: Sequence[Record]) -> str:
    """Return a table for each length, with a row for each method."""
    pages = []
    kinds = ("times", "horizon", "particles")
    for kind in sorted({tuple(record[name] for name in kinds) for record in records}):
        times, horizon, particles = kind
        selected = [record for record in records if tuple(record[name] for name in kinds) == kind]
        rows = []
        for method in ALL:
            runs = best_lambda([record for record in selected if record["method"] == method], best=max)
            if not runs:
                continue
            bound = "-" if method == SUPERVISED else _cell(runs, "elbo", ".0f")
            cells = [bound, *(_cell(runs, name, ".1f") for name in ("precision", "sampled", "published"))]
            lam = "" if runs[0]["lam"] is None else f"{runs[0]['lam']:g}"
            paper = (
                PUBLISHED.get((times, horizon), {}).get(method.removesuffix(" paper"), "-") if particles == 10 else "-"
            )
            rows.append([method, *cells, _best_run(runs), lam, paper, str(len(runs))])
        head = ["", "bound", "precision", "of samples", "published form", "best run", "lambda", "published", "runs"]
        pages.append(f"## T = {times}, horizon {horizon}, {particles} particles\n\n{table(head, rows)}")
    return "\n\n".join(pages)


def _cell(records: Sequence[Record], name: str, form: str) -> str:
    return mean_cell([record[name] for record in records if record[name] is not None], form)


def _best_run(records: Sequence[Record]) -> str:
    """Return bound and precision of the run with the best validation bound, which needs no true edges."""
    best = max(records, key=lambda record: record["validation"])
    if best["method"] == SUPERVISED or best["precision"] is None:
        return "-"
    return f"{best['elbo']:.0f}, {best['precision']:.1f} %"


REPORT = Report.of_module(__doc__, "Relations of particles", show, "relations --device cuda --jobs 15")

"""Gradients through a random choice against the exact gradient: cosine, zeros and cost.

Claims checked: AIMLE needs no lambda, and with the same number of samples its gradient is closer to the true one than
that of IMLE, STE and the score function (Minervini et al., 2023, arXiv:2209.04862, figures 1, 3 and 4). How much of
that is left when the solver calls of its warm-up count, and beside rivals that the publication leaves out.

The problem: the gradient of the mean of |z - b|^2 with respect to theta, where z is one of n items, or k of n, with
probability in proportion to exp <theta, z>. Every run (`--seeds`) has a new theta and b; theta is normal. The exact
gradient is a sum over all points. A cosine is for the mean over S samples, averaged over runs; an estimate of zeros has
cosine 0. b is normal, as the publication says ("normal"), or its absolute value, as the published code has it
("absolute"). For k of n the noise is Gumbel noise, sum-of-gamma noise, or sum-of-gamma noise with rate and scale
swapped, as in published code. Noise and solver then draw from another distribution than the exact gradient uses, except
for k = 1 and Gumbel.

A call is an instance solved, or a point drawn where no solver is needed: 1 for each sample of STE, 2 and 3 for forward
and central differences. The calls of AIMLE include its warm-up at the same S: 100 steps as in the published command,
for Algorithm 1 ("paper central") also 1,000 up to S = 100, for n = 20 and for k of n with sum-of-gamma noise. Modes run
with their default options; other step sizes are not tried. `perturbed` gets the loss of its mean point, the rivals the
mean loss of points. For one of n items the mean loss is known exactly after n calls, so estimators are compared there,
not needed. On points of k ones |z - b|^2 is linear, which suits the control variate of `sfess`; its derivative is not
constant, so `simple` and the relaxations are still biased.

`samples` has S from 1 to 100,000 (AIMLE to 1,000), lambda and temperature 1. `knobs` has S = 1,000 and both from 0.05
to 5, the same number of values for all: the best of them are chosen by the true gradient, which training does not know.

Results: Cosine to the exact gradient, averaged over runs. AIMLE is closer than IMLE, STE and the score function with
1,000 samples on most problems and with 100 samples in part of its modes, but not with 1 or 10 samples, and not for 5 of
10 with normal b, where the score function is closer. Nothing is tuned except in the sweep, where the true gradient
chooses, which no training could do.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from benchmarks.discrete.gradients_methods import ADAPTIVE, METHODS, NOISES, Setting, adapt, estimate
from benchmarks.discrete.gradients_pages import draw, show
from benchmarks.discrete.gradients_problems import TARGETS, judge, make_problem
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.selector import resolve_device

PARTS = ("samples", "knobs")
SIZES = ((10, 1), (20, 1), (30, 1), (50, 1), (10, 5))
SWEPT = ((20, 1), (30, 1), (50, 1), (10, 5))
SAMPLES = (1, 10, 100, 1_000, 10_000, 100_000)
KNOBS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
WARM_UP, LONG = 100, 1_000
# Algorithm 1 of arXiv:2209.04862, which starts at alpha = 0 and needs a long warm-up.
LONG_METHOD = "aimle paper central"
# With larger S warm-ups would take most of the time.
ADAPTIVE_MOST, LONG_MOST = 1_000, 100


@final
@dataclass(frozen=True)
class Trial:
    """One method on all runs of one problem: several S with one value of its option, or one S with several values.

    `knobs` has the values; part and field have that name because the records do, and the label seeds the noise.
    """

    part: str
    n: int
    k: int
    target: str
    method: str
    noise: str
    samples: tuple[int, ...]
    knobs: tuple[float, ...]
    warm_ups: tuple[int, ...]
    runs: int
    seed: int = 0

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        noise = f" {self.noise}" if self.noise else ""
        return f"{self.part} {self.k} of {self.n} {self.target} {self.method}{noise}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--parts", default=",".join(PARTS), help=f"default: all: {', '.join(PARTS)}")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: all: {', '.join(METHODS)}")
    parser.add_argument("--largest", type=int, default=SAMPLES[-1], help=f"largest S (default: {SAMPLES[-1]})")
    add_trial_options(parser, seeds=32)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first."""
    parts = parse_names(options.parts, PARTS, "part")
    methods = parse_names(options.methods, METHODS, "method")
    sizes, swept = (((20, 1), (10, 5)),) * 2 if options.quick else (SIZES, SWEPT)
    runs = 4 if options.quick else options.seeds
    largest = min(options.largest, 100 if options.quick else options.largest)
    trials = []
    for n, k in sizes:
        for target in TARGETS:
            for name in methods:
                for noise in _noises(name, k):
                    shared = dict[str, Any](n=n, k=k, target=target, method=name, noise=noise, runs=runs)
                    if "samples" in parts:
                        trials += _by_samples(shared, largest, quick=options.quick)
                    if "knobs" in parts and (n, k) in swept and METHODS[name].option:
                        samples = min(1_000, largest) if METHODS[name].least else 0
                        trials.append(Trial("knobs", samples=(samples,), knobs=KNOBS, warm_ups=(), **shared))
    return sorted(trials, key=_work, reverse=True)


def _noises(name: str, k: int) -> tuple[str, ...]:
    """Return the noises that a method runs with; an empty name if there is no choice."""
    method = METHODS[name]
    if method.only not in ("", "categorical" if k == 1 else "top-k"):
        return ()
    if not method.noisy:
        return ("",)
    if k == 1:
        return ("gumbel",)
    return tuple(noise for noise in NOISES if name not in ADAPTIVE or noise != "gumbel")


def _by_samples(shared: dict[str, Any], largest: int, *, quick: bool) -> list[Trial]:
    least = METHODS[shared["method"]].least
    samples = tuple(s for s in SAMPLES if least <= s <= largest) if least else (0,)
    if shared["method"] not in ADAPTIVE:
        return [Trial("samples", samples=samples, knobs=(1.0,), warm_ups=(), **shared)]
    long = shared["method"] == LONG_METHOD and (shared["n"] == 20 or shared["noise"] == "sum of gamma")
    # A trial for each S, because they take long.
    return [
        Trial("samples", samples=(s,), knobs=(), warm_ups=_marks(s, long=long, quick=quick), **shared)
        for s in samples
        if s <= ADAPTIVE_MOST
    ]


def _marks(samples: int, *, long: bool, quick: bool) -> tuple[int, ...]:
    if quick:
        return (10,)
    return (WARM_UP, LONG) if long and samples <= LONG_MOST else (WARM_UP,)


def _work(trial: Trial) -> float:
    """Return the approximate cost, including the overhead of short steps."""
    steps = max((1 + mark for mark in trial.warm_ups), default=len(trial.knobs) / trial.runs)
    return steps * trial.runs * (2_000 + sum(trial.samples) * trial.n)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Estimate and compare. Each row has S, the option or the warm-up, the calls and the quality."""
    device = resolve_device(context.device)
    problem = make_problem(trial.n, trial.k, trial.target, trial.runs, seed=trial.seed, device=device)
    exact, method = problem.gradient(), METHODS[trial.method]
    generator = torch.Generator(device).manual_seed(zlib.crc32(trial.label.encode()))
    rows: list[Record] = []
    for samples in trial.samples:
        for option in trial.knobs:
            setting = Setting(trial.k, samples, trial.noise or "gumbel", option)
            estimates, calls = estimate(method, problem, setting, generator)
            rows.append({"samples": samples, "option": option, "calls": calls, **asdict(judge(estimates, exact))})
        if trial.warm_ups:
            setting = Setting(trial.k, samples, trial.noise)
            for mark, estimates, calls in adapt(method, problem, setting, trial.warm_ups, generator):
                rows.append({"samples": samples, "warm_up": mark, "calls": calls, **asdict(judge(estimates, exact))})
    return {"rows": rows, "summary": f"cosine {rows[-1]['cosine']:.2f}"}


REPORT = Report.of_module(__doc__, "Gradients through choices", show, "gradients --device cpu --jobs 15", draw)

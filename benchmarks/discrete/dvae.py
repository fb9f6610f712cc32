"""Discrete VAE of MNIST: k of 20 items, 20 times, as the code of an image; all estimators, the true ELBO for all.

Claims checked: AIMLE needs no lambda to match IMLE with the best of three. Identity is good with the projection and bad
without, where it is the straight-through estimator "ste" (Sahoo et al., 2023, arXiv:2205.15213; Minervini et al., 2023,
arXiv:2209.04862). Which of the simpler rivals does better (exact marginals, score functions with control variates,
relaxations, ReinMax), and how two mistakes in published code change the numbers: a divergence divided by the number of
samples, and noise with rate and scale swapped.

Encoder 784-512-256-400, decoder 400-256-512-784, Adam 1e-3, batches of 100, 50,000 grey images for training, 10,000 for
validation, 10,000 for the test. The prior is uniform over the choices of k. All methods share learning rate, networks
and epochs. Each is shown with the value of its one option (lambda, temperature, target, noise) that validation images
prefer, except for `noise` and `samples`, where options are not searched and IMLE has lambda 10, which is far from its
best (1). In `papers` all have the noises of both publications (temperatures 1 and 10), and those of `noise` count too.
The publications train for 100 epochs.

"Negative ELBO" is a bound for every method: exact samples of the k-subset distribution of the logits and its exact
divergence from the prior. Top-k of perturbed logits draws from a distribution without a closed form; the ELBO replaces
it by the k-subset distribution of c times the logits, with the c that fits its marginals (about 7 for sum-of-gamma
noise, so it is NOT the distribution of the logits themselves). "Scaled" multiplies the logits by the one of six factors
that validation images prefer; options are chosen by it. "Papers" is the published loss on test images: points as in
training, soft ones too, plus the divergence of a softmax from the uniform distribution. For k = 10 that is NOT the
divergence of the distribution, and no bound. Training losses: "elbo", "papers", and "papers / S", which divides the
divergence by the number of samples as published code does.

Parts: `main` (elbo, one sample; two for score functions), `papers` (k = 10 with the published loss), `noise` (k = 10,
Gumbel and three versions of sum-of-gamma noise), `samples` (ten samples, all three losses; AIMLE also with five),
`published` (100 epochs with the published loss, of the methods that the publications compare). All seeds are trained
together in one process; their weights, batches and noise differ.

Results: Nats per test image, mean ± standard deviation over seeds. negative ELBO: a bound for every method, less is
better. scaled: the same after the logits are multiplied by the best of six factors by validation. papers: the published
loss, which is no bound for k = 10. option: the chosen value of the one tuned option. AIMLE matches IMLE with the best
lambda for k = 1; for k = 10 it is 5 nats worse, 6 with the published loss. After 100 epochs and k = 1 AIMLE by
Algorithm 1 is 6 nats better than IMLE, and Identity 10; for k = 10 Identity and IMLE are level by the published loss.
Published, after 100 epochs and more: SIMPLE has a negative ELBO of about 170.5 for k = 10 and 235.3 for k = 1, Gumbel-
softmax 245.0 for k = 1 (one seed); AIMLE with ten samples has 60.2 for k = 10 by the published loss with the divergence
divided by ten.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.discrete.dvae_methods import MODELS, NOISES
from benchmarks.discrete.dvae_training import Trial, attempt
from benchmarks.lib.pages import Report
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.errors import OptionError

PARTS = ("main", "papers", "noise", "samples", "published")
KS = (1, 10)
EPOCHS, LONG = 10, 100
MANY = (5, 10)
# Methods of the parts that do not have all, with their option value where it is not searched.
PAPERS = ("imle central", "imle forward", "aimle central", "aimle forward", "identity std")
# arXiv:2209.04862 has a temperature of 1 for both, arXiv:2205.15213 one of 10.
PAPERS_NOISES = ("sog 1", "sog 10")
# What the publications compare after 100 epochs, with the option that `papers` prefers, and one changed entry for an
# image, which is 1/20 for each of its choices.
COMPARED = {"imle central": 1.0, "aimle central paper": 0.05, "identity std": 0.0, "identity (ste)": 0.0}
NOISY = {"imle central": 10.0, "aimle central": 1.0, "identity std": 0.0}
SAMPLED = {"sfess": 0.0, "rloo": 0.0, "simple": 0.0, "reinmax": 1.0, "gumbel-softmax": 0.6, "softsub": 0.6, **NOISY}
COLUMNS = (("nelbo", "negative ELBO"), ("tuned", "scaled"), ("papers", "papers"), ("error", "cross-entropy"))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--parts", default=",".join(PARTS), help=f"default: all: {', '.join(PARTS)}")
    parser.add_argument("--k", type=int, nargs="+", default=KS, help="items of a choice (default: 1 10)")
    parser.add_argument("--models", help=f"default: all: {', '.join(MODELS)}")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of training (default: {EPOCHS}; papers: 100)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT, folders={"mnist": "the images of MNIST"})


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, each once, the longest first."""
    if options.epochs < 1 or options.seeds < 1:
        raise OptionError(f"--epochs and --seeds must be at least 1, not {options.epochs} and {options.seeds}")
    parts = parse_names(options.parts, PARTS, "part")
    wanted = parse_names(options.models or ",".join(MODELS), MODELS, "model")
    trials = dict.fromkeys(t for part in parts for t in _PLANS[part](options) if t.model in wanted and t.k in options.k)
    if options.quick:
        # One value of each method is enough to show that it runs.
        first = {(t.k, t.model, t.loss, t.samples): t for t in reversed(trials)}
        trials = dict.fromkeys(reversed(first.values()))
    return sorted(trials, key=lambda t: -t.samples * (4 if t.model in ("simple", "sfess", "rloo") else 1) - t.k)


def _trial(
    options: argparse.Namespace, k: int, model: str, option: float, noise: str, loss: str, samples: int
) -> Trial:
    # For k = 1 the published divergence is the right one, so both losses are the same.
    loss = "elbo" if (k, loss) == (1, "papers") else loss
    samples = max(samples, MODELS[model].fewest)
    if options.quick:
        return Trial(
            k, model, option, noise, loss, samples, 1, 1, batch=20, trained=60, tested=60, drawn=1, widths=(64, 32)
        )
    return Trial(k, model, option, noise, loss, samples, options.seeds, options.epochs)


def _main(options: argparse.Namespace) -> Iterator[Trial]:
    for k in KS:
        for name, model in MODELS.items():
            for option in model.option_values if k in model.ks else ():
                for noise in MODELS[name].noises[k]:
                    yield _trial(options, k, name, option, noise, "elbo", 1)


def _papers(options: argparse.Namespace) -> Iterator[Trial]:
    for name in (*PAPERS, "identity (ste)", "simple"):
        for noise in PAPERS_NOISES if name != "simple" else ("",):
            for option in MODELS[name].option_values:
                yield _trial(options, 10, name, option, noise, "papers", 1)


def _noise(options: argparse.Namespace) -> Iterator[Trial]:
    for name, option in NOISY.items():
        for noise in NOISES:
            for loss in ("elbo", "papers"):
                yield _trial(options, 10, name, option, noise, loss, 1)


def _samples(options: argparse.Namespace) -> Iterator[Trial]:
    for k in KS:
        for name, option in SAMPLED.items():
            if k in MODELS[name].ks:
                yield _trial(options, k, name, option, MODELS[name].noises[k][0], "elbo", MANY[-1])
        for samples in (1, *MANY):
            for loss in ("elbo", "papers", "papers / S"):
                if loss != "papers / S" or samples > 1:
                    yield _trial(options, k, "aimle central", 1.0, MODELS["aimle central"].noises[k][0], loss, samples)


def _published(options: argparse.Namespace) -> Iterator[Trial]:
    for k in KS:
        for name, option in {**COMPARED, **({"gumbel-softmax": 0.6} if k == 1 else {})}.items():
            trial = _trial(options, k, name, option, MODELS[name].noises[k][0], "papers", 1)
            yield trial if options.quick else replace(trial, epochs=LONG)


def show(records: Sequence[Record]) -> str:
    """Return a table for each k, loss, number of samples and length of training, and one of the noises."""
    pages = []
    short = [record for record in records if record["epochs"] != LONG]
    for k in KS:
        for loss in ("elbo", "papers", "papers / S"):
            for samples in (1, *MANY):
                # Score functions need two samples.
                counts = {1, 2} if samples == 1 else {samples}
                selected = [r for r in short if (r["k"], r["loss"]) == (k, loss) and r["samples"] in counts]
                selected = selected if loss != "elbo" else [r for r in selected if _usual(r)]
                if selected:
                    title = f"{samples} samples" if samples > 1 else "one sample (two for score functions)"
                    pages.append(f"## k = {k}, trained with {loss}, {title}\n\n{_best_table(selected)}")
        long = [record for record in records if (record["k"], record["epochs"]) == (k, LONG)]
        if long:
            pages.append(f"## k = {k}, {LONG} epochs, trained with papers, one sample\n\n{_best_table(long)}")
    noisy = [r for r in short if r["k"] == 10 and r["samples"] == 1 and NOISY.get(r["model"]) == r["option"]]
    if len({r["noise"] for r in noisy}) > 2:
        pages.append(f"## Noise, k = 10, one sample\n\n{_noise_table(noisy)}")
    return "\n\n".join(pages)


def _best_table(records: Sequence[Record]) -> str:
    """Return the methods by their score, each with the option value that validation images prefer."""
    best = [
        min((r for r in records if r["model"] == name), key=_validation)
        for name in dict.fromkeys(r["model"] for r in records)
    ]
    rows = [
        [r["model"], _option(r), *(mean_cell(r[name], ".1f") for name, _ in COLUMNS), f"{_count(records, r)}"]
        for r in sorted(best, key=_validation)
    ]
    return table(["nats of an image", "option", *(title for _, title in COLUMNS), "tried"], rows)


def _noise_table(records: Sequence[Record]) -> str:
    rows = [
        [r["model"], r["noise"], r["loss"], *(mean_cell(r[name], ".1f") for name, _ in COLUMNS)]
        for r in sorted(records, key=lambda r: (r["model"], r["loss"], r["noise"]))
    ]
    return table(["", "noise", "trained with", *(title for _, title in COLUMNS)], rows)


def _usual(record: Record) -> bool:
    """Return whether the noise is one that the method is tuned with, not one of the table of noises alone."""
    return record["noise"] in MODELS[record["model"]].noises[record["k"]]


def _validation(record: Record) -> float:
    mean = statistics.fmean(record["validation"])
    return mean if math.isfinite(mean) else math.inf


def _option(record: Record) -> str:
    return (
        ", ".join([*([f"{record['option']:g}"] if record["option"] else []), *filter(None, [record["noise"]])]) or "-"
    )


def _count(records: Sequence[Record], record: Record) -> int:
    return sum(r["model"] == record["model"] for r in records)


def draw(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw validation curves for both k and one sample: by elbo, each method with its best option; the long runs."""
    long = [record for record in records if record["epochs"] == LONG]
    paths = _draw(long, "published", "published loss", page.with_name(f"{page.stem}-{LONG}.png")) if long else []
    shown = [r for r in records if r["loss"] == "elbo" and r["epochs"] != LONG and r["samples"] <= 2 and _usual(r)]
    return [*_draw(shown, "curve", "negative ELBO", page.with_suffix(".png")), *paths]


def _draw(shown: Sequence[Record], key: str, score: str, path: Path) -> list[Path]:
    if not shown:
        return []
    figure = new_figure(12, 4.5)
    for k, axes in zip(KS, figure.subplots(1, 2), strict=True):
        for number, name in enumerate(MODELS):
            mine = [r for r in shown if (r["k"], r["model"]) == (k, name)]
            if mine:
                curve = [statistics.fmean(epoch) for epoch in min(mine, key=_validation)[key]]
                style = ("-", "--", ":")[number % 3]
                axes.plot(range(1, len(curve) + 1), curve, style, color=f"C{number % 10}", label=name)
        axes.set_title(f"k = {k}")
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"{score} of validation images (nats)")
        if axes.lines:
            axes.legend(fontsize=6)
    return save_figure(figure, path)


_PLANS = {"main": _main, "papers": _papers, "noise": _noise, "samples": _samples, "published": _published}


REPORT = Report.of_module(__doc__, "Discrete VAE of MNIST", show, "dvae --data-dir DATA --device cuda --jobs 15", draw)

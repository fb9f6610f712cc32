"""Retrieval of MNIST and Olivetti images: embeddings learned through the ranking solver, against the usual losses.

Claims checked: Identity needs the projection to learn from ranks, and Blackbox does not; even with it, Identity does
not reach Blackbox (Sahoo et al., 2023, arXiv:2205.15213, section 4.3, tables 3 and 5, on CUB-200, which is not
available). How much margins add, and whether losses of ranks through a solver beat ranks of sigmoids, triplets,
contrastive pairs, a softmax over the batch, a classifier, or discriminant analysis.

A network of one hidden layer (256) maps an image to a unit vector of 64 numbers; the batch is ranked by cosine for each
of its images. Classes of training, validation and test are different: 20, 8 and 12 people of Olivetti; 5, 2 and 3
digits of MNIST, where the test images come from the test half. The seed draws the classes, so the spread is mostly that
of the tasks. Every test image is a query to all other test images: mean average precision (MAP) and recall at 1.

All methods get the same batches, steps, weight decay and two learning rates. Each has one tuned option with up to four
values (lambda of Blackbox, width of a margin, temperature, components). The best value, rate and stopping time are
chosen by the MAP of validation classes. Blackbox with a margin has lambda 2, from a few short runs on Olivetti. Past
batches are not stored, so a query is ranked against its batch alone. "std" is the projection; "recall" counts
irrelevant items in front up to 8. "lda" has shrinkage; "pca" and "pixels" use no labels. "lda" and "pca" are fitted to
at most 500 images of a class, unchanged; networks get all images, and on Olivetti shifted copies of them.

Results: Mean average precision (MAP) and recall at 1 in percent, of test classes, mean ± standard deviation over the
drawn classes. option: the chosen value of the one tuned option of a method. tried: runs from which value and learning
rate were chosen by validation MAP. The figure shows validation MAP during training. The publication uses CUB-200, which
is not available, so its figures are not shown.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.discrete.ranking_methods import ALL, PLAIN, option_values_of
from benchmarks.discrete.ranking_training import IMAGES, Trial, attempt
from benchmarks.lib.pages import Report
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.errors import OptionError

STEPS = 600
RATES = (3e-4, 2e-3)
# Methods of the figure: one of each kind.
SHOWN = (
    "blackbox loglog",
    "identity loglog",
    "identity std loglog",
    "identity std informed margin loglog",
    "blackbox informed margin loglog",
    "soft ranks loglog",
    "triplet",
    "softmax of the batch",
    "classifier",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--images", default=",".join(IMAGES), help=f"default: all: {', '.join(IMAGES)}")
    parser.add_argument("--models", help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training (default: {STEPS})")
    add_trial_options(parser, seeds=5)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    trials = plan(options)
    folders = {trial.images: f"the images of {trial.images}" for trial in trials}
    return run_and_show(options, trials, attempt, REPORT, folders=folders)


def show_all(records: Sequence[Record]) -> str:
    """Return a table for each collection of images."""
    return "\n\n".join(
        f"## {name}\n\n{show([r for r in records if r['images'] == name])}" for name in _collections(records)
    )


def _collections(records: Sequence[Record]) -> list[str]:
    return [name for name in IMAGES if any(r["images"] == name for r in records)]


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options; quick runs have one value and one rate."""
    if options.steps < 1 or options.seeds < 1:
        raise OptionError(f"--steps and --seeds must be at least 1, not {options.steps} and {options.seeds}")
    trials = []
    for images in parse_names(options.images, IMAGES, "images"):
        for model in parse_names(options.models or ",".join(ALL), ALL, "model"):
            rates = (0.0,) if model in PLAIN else RATES
            if options.quick:
                steps = 0 if model in PLAIN else min(options.steps, 2)
                trials.append(
                    Trial(images, model, option_values_of(model)[0], rates[-1], steps, 1, hidden=32, dim=8, asked=20)
                )
                continue
            steps = 0 if model in PLAIN else options.steps
            trials += [
                Trial(images, model, option, rate, steps, options.seeds)
                for option in option_values_of(model)
                for rate in rates
            ]
    # Discriminant analysis is slow, and runs on the CPU.
    return sorted(trials, key=lambda trial: trial.model != "lda")


def best(records: Sequence[Record], model: str) -> Record | None:
    """Return the trial of a method that validation classes prefer."""
    selected = [r for r in records if r["model"] == model]
    return max(selected, key=lambda r: statistics.fmean(r["validation"])) if selected else None


def show(records: Sequence[Record]) -> str:
    """Return a table with one row for each method, the best MAP of validation classes first."""
    shown = [record for record in (best(records, model) for model in ALL) if record is not None]
    rows = [
        [
            r["model"],
            mean_cell(r["map"], ".1f"),
            mean_cell(r["recall"], ".1f"),
            mean_cell(r["validation"], ".1f"),
            f"{r['option']:g}" if r["option"] else "-",
            f"{r['rate']:g}" if r["rate"] else "-",
            str(sum(other["model"] == r["model"] for other in records)),
        ]
        for r in sorted(shown, key=lambda r: -statistics.fmean(r["validation"]))
    ]
    return table(["percent", "MAP", "recall at 1", "validation MAP", "option", "rate", "tried"], rows)


def draw(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw the MAP of validation classes during training, for the best trial of the methods of `SHOWN`."""
    names = _collections(records)
    if not names:
        return []
    figure = new_figure(6 * len(names), 4.2)
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        for model in SHOWN:
            record = best([r for r in records if r["images"] == name], model)
            if record is not None:
                means = [statistics.fmean(scores) for scores in record["curve"]]
                axes.plot([(i + 1) / len(means) for i in range(len(means))], means, label=model)
        axes.set_title(name)
        axes.set_xlabel("share of the training")
        axes.set_ylabel("MAP of validation classes (%)")
        if axes.lines:
            axes.legend(fontsize=7)
    return save_figure(figure, page.with_suffix(".png"))


REPORT = Report.of_module(
    __doc__,
    "Retrieval of classes that are not in training",
    show_all,
    "ranking --data-dir DATA --device cuda --jobs 15",
    draw,
)

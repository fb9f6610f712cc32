"""Image completion from sets of pixels: likelihood against the size of the context, for every encoder and gradient.

Claims checked: UMBC with a Set Transformer as its head is the best of the encoders that read a stream; its sampled
gradient (the graph of 100 pixels, the value of all) is as good as the full one and better than training on 100 pixels
alone; the whole Set Transformer, which needs all pixels at once, is not better (Willette et al., 2023,
arXiv:2208.12401, figure 5).

A conditional neural process on MNIST (28 x 28) and Olivetti (64 x 64, ten people for the test, others for each seed). A
batch has contexts of one size between 100 and 500 pixels. "sample" differentiates one chunk of 100 of them, "full" all,
"subset" gets only 100 in training; all are tested on contexts read in chunks of 100 from one stream of pixels. FSPool,
Diff-EM and the Set Transformer trained like this ("subset") average the codes of their chunks, as published; with
"full" they read the whole context at once. "hierarchical" is a stack of two slot set encoders (SSE). "gaussian" is no
network: a normal distribution of all pixels with the mean and covariance of the training images, conditioned on the
context. Numbers are nats per pixel over all pixels of test images (lower is better) and their root mean square error.
The smallest deviation is 0.1 for MNIST and 0.02 for Olivetti, so no number is below -1.38 and -2.99.

Published are 200,000 steps of 256 images of CelebA, which is not available; this trains 2,000 of 64 (faces: 32).

Results: By the number of pixels of the context, mean ± standard deviation over seeds; lower is better. FSPool, trained
on 100 pixels and with the mean of the codes of chunks in the test, is the best network on digits and faces, unlike
published. On digits UMBC with the full gradient is the next, with the sampled one it is level with SSE, and training on
100 pixels alone is better up to contexts of 200. On faces UMBC with the sampled gradient is the last of all, and a
stack of two SSE is level with UMBC with the full gradient (one run). On digits a Gaussian of all pixels, conditioned on
the context, beats every network. Training is a hundredth of the published one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.completion_fits import CONTENDERS, SIZES, Trial, attempt, images_file
from benchmarks.encoders.pixels import IMAGES
from benchmarks.lib.pages import Report
from benchmarks.lib.plots import has_matplotlib, new_figure, save_figure
from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.errors import OptionError

# Models whose completed images look different.
DRAWN = ("deepsets sample", "sse sample", "umbc sample", "transformer full", "gaussian")
SCORES = {"nll": "nats per pixel", "rmse": "root mean square error"}
_COST = {"transformer full": 3, "umbc full": 2, "umbc sample": 2, "gaussian": 0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--images", default=",".join(IMAGES), help="mnist, olivetti (default: both)")
    parser.add_argument("--models", default=",".join(CONTENDERS), help=f"default: all: {', '.join(CONTENDERS)}")
    parser.add_argument("--steps", type=int, default=Trial.steps, help=f"of training (default: {Trial.steps})")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    trials = plan(options)
    results = options.table or options.results or REPORT.results
    folders = {trial.images: "the images to be completed" for trial in trials}
    is_temporary = options.quick and options.results is None
    work = partial(attempt, results=None if is_temporary else str(results))
    output = run_and_show(options, trials, work, REPORT, folders=folders)
    if has_matplotlib() and not is_temporary:
        draw_images(results)
    return output


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first."""
    if options.steps < 1:
        raise OptionError(f"--steps must be at least 1, not {options.steps}")
    trials = [
        _trial(name, model, seed, options)
        for name in parse_names(options.images, IMAGES, "images")
        for model in parse_names(options.models, CONTENDERS, "model")
        for seed in range(1 if options.quick else options.seeds)
    ]
    return sorted(trials, key=lambda trial: -_COST.get(trial.model, 1))


def _trial(name: str, model: str, seed: int, options: argparse.Namespace) -> Trial:
    if options.quick:
        steps = min(options.steps, 20)
        return Trial(
            name, model, seed, steps=steps, batch=8, dim=32, slots=16, targets=200, trained=300, tested=10, largest=500
        )
    return Trial(name, model, seed, options.steps, batch=64 if name == "mnist" else 32)


def show(records: Sequence[Record]) -> str:
    """Return a table for each collection of images and each score."""
    return "\n\n".join(
        f"## {name}: {title}\n\n{show_score([r for r in records if r['images'] == name], name, score)}"
        for name in IMAGES
        if any(record["images"] == name for record in records)
        for score, title in SCORES.items()
    )


def show_score(records: Sequence[Record], name: str, score: str) -> str:
    """Return a table with one row for each model, one column for each size of the context."""
    rows = []
    for model in CONTENDERS:
        values = [record[score] for record in records if record["model"] == model]
        if values:
            rows.append([model, *(mean_cell(column, ".3f") for column in zip(*values, strict=True))])
    return table([name, *map(str, SIZES[name][: len(rows[0]) - 1] if rows else ())], rows)


def draw_scores(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw the likelihood against the size of the context, one figure for each collection of images."""
    paths = []
    for name in IMAGES:
        selected = [record for record in records if record["images"] == name]
        if selected:
            paths += _draw_scores(selected, name, page.with_name(f"{page.stem}-{name}.png"))
    return paths


def draw_images(results: Path) -> None:
    """Draw completed images beside the records. They show the data, so they are not for publication."""
    for name in IMAGES:
        files = {model: images_file(results, name, model) for model in DRAWN}
        arrays = {model: _arrays(file) for model, file in files.items() if file.is_file()}
        if arrays:
            _draw_images(arrays, name, results.with_name(f"{results.stem}-{name}-images.png"))


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as archive:
        return dict(archive)


def _draw_scores(records: Sequence[Record], name: str, path: Path) -> list[Path]:
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for number, model in enumerate(CONTENDERS):
        values = np.array([record["nll"] for record in records if record["model"] == model])
        if len(values):
            spread = values.std(0, ddof=1) if len(values) > 1 else None
            style = "--" if model.endswith("subset") else ":" if model.endswith("full") else "-"
            axes.errorbar(SIZES[name], values.mean(0), spread, fmt="o" + style, ms=3, label=model, color=f"C{number}")
    axes.set_xscale("log")
    axes.set_xlabel("pixels of the context")
    axes.set_ylabel("nats per pixel")
    axes.set_title(name)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return save_figure(figure, path)


def _draw_images(arrays: dict[str, Any], name: str, path: Path) -> None:
    """For each image draw a row of contexts, and a row of completions for every model."""
    truth, order = (next(iter(arrays.values()))[key] for key in ("truth", "order"))
    side, sizes = round(truth.shape[1] ** 0.5), SIZES[name]
    rows = len(truth) * (1 + len(arrays))
    figure = new_figure(len(sizes) + 2.2, rows + 0.4)
    grid = figure.subplots(rows, len(sizes) + 1, squeeze=False)
    for image in range(len(truth)):
        top = image * (1 + len(arrays))
        for column, size in enumerate(sizes):
            # Pixels outside the context are blue.
            context = np.full((truth.shape[1], 3), (70, 90, 160), np.uint8)
            context[order[image, :size]] = truth[image, order[image, :size], None]
            grid[top, column].imshow(context.reshape(side, side, 3))
            if not image:
                grid[0, column].set_title(size, fontsize=8)
            for row, model in enumerate(arrays, 1):
                completed = arrays[model]["made"][column, image].reshape(side, side)
                grid[top + row, column].imshow(completed, cmap="gray", vmin=0, vmax=255)
        grid[top, -1].imshow(truth[image].reshape(side, side), cmap="gray", vmin=0, vmax=255)
        for row, label in enumerate(["pixels", *arrays]):
            grid[top + row, 0].set_ylabel(label, fontsize=7, rotation=0, ha="right")
            if row:
                grid[top + row, -1].set_visible(False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(path, dpi=90)


REPORT = Report.of_module(
    __doc__, "Image completion", show, "completion --data-dir DATA --device cuda --jobs 15", draw_scores
)

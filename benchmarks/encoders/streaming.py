"""Points that arrive in chunks: the likelihood of the whole set after each chunk.

Claims checked: an encoder with a state ends at the same mixture in every order of arrival, the one of the whole set
read at once; an encoder without a state, which gets the mean of the codes of its chunks, does not (Willette et al.,
2023, arXiv:2208.12401, figures 2 and 8).

Four orders (appendix C.1): "single": point by point; "class": all points of one Gaussian, then of the next; "chunk": 8
random points at a time; "one each": one point of each Gaussian that has points left. The likelihood is always that of
all 1,024 points. Models come from `clustering`, through the same file of records, and are trained if they are missing:
UMBC with a Set Transformer, DeepSets and SSE on whole sets (the published sampled gradient of 8 points is too noisy for
UMBC with softmax: see `clustering`), the Set Transformer on sets of 8 points, as published, and on whole sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.encoders.clustering_fits import (
    RESULTS,
    Fit,
    add_options,
    base_fit,
    evaluation_sets,
    load,
    model_file,
    origin_of,
    read_json,
    run_fits,
)
from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, as_sets
from benchmarks.encoders.clustering_plots import draw_sets, draw_streams
from benchmarks.encoders.mixtures import Draw, Mixture
from benchmarks.lib.pages import Report, show_page
from benchmarks.lib.tables import table
from benchmarks.lib.trials import results_file
from setgrad.encoders import DeepUMBC, MaxPool, MergeableEncoder
from setgrad.errors import OptionError
from setgrad.selector import resolve_device
from setgrad.sets import Layout, Sets

ORDERS = ("single", "class", "chunk", "one each")
CHUNK = 8
# Chunks that an encoder without a state encodes at a time.
GROUP = 32
# How often a stream is evaluated, besides its end.
EVALUATIONS = 12
READERS = (
    ("umbc-st", "full"),
    ("deep-umbc", "full"),
    ("deep-sets", "full"),
    ("sse", "full"),
    ("set-transformer", "subset"),
    ("set-transformer", "full"),
)
# Models whose mixtures are drawn.
DRAWN = (("set-transformer", "subset"), ("umbc-st", "full"))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--streams", type=int, default=100, help="sets that arrive, at most 100 (default: 100)")
    parser.add_argument("--drawn", type=int, default=2, help="number of the set in figure 8 (default: 2)")
    parser.add_argument("--shown", type=Path, metavar="FILE", help="print and draw what --json wrote, and run nothing")
    add_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train the missing models, measure all streams, show the table and draw both figures."""
    with results_file(options, RESULTS) as (results, page):
        measured = measure(options, results) if options.shown is None else read_json(options.shown)
        report = Report(
            "clustering-streams",
            "Points that arrive in chunks",
            lambda _: summary(measured["rows"]),
            f"NLL of all points at the end of the stream; the true mixtures have {measured['truth']:.3f}. Encoders "
            "with a state end where reading at once ends; the mean of the codes of chunks does not.",
            "python -m benchmarks streaming --device cuda",
            lambda _, page: [
                *draw_streams(measured["rows"], page.with_suffix(".png"), measured["truth"]),
                *draw_sets(measured["example"], page.with_name(page.name.replace("-streams.md", "-sets.png"))),
            ],
        )
        show_page(report, [measured["origin"]], page and page.with_name(f"{page.stem}-streams.md"))
    return measured


def measure(options: argparse.Namespace, results: Path) -> dict[str, Any]:
    """Return the results of all models on all streams, as JSON."""
    base = base_fit(options)
    fits = [replace(base, model=model, gradient=gradient) for model, gradient in READERS]
    device = resolve_device(options.device)
    records, failed = run_fits(fits, options, results, models=True)
    models = {fit: load(fit, results).to(device) for fit in records if model_file(fit, results).is_file()}
    sets = first_sets(
        next(evaluation_sets(base, device)), 4 if options.quick else options.streams, 64 if options.quick else None
    )
    number = min(options.drawn, len(sets.points) - 1)
    example: dict[str, Any] = {
        "points": sets.points[number].tolist(),
        "labels": sets.labels[number].tolist(),
        "pictures": [],
    }
    rows = []
    for fit, model in models.items():
        for order in ORDERS:
            row, mixture = arrive(model, title(fit), order, sets)
            rows.append(row)
            if (fit.model, fit.gradient) in DRAWN:
                numbers = (mixture.log_weights.exp(), mixture.means, mixture.deviations)
                values = dict(
                    zip(("weights", "means", "deviations"), (t[number].tolist() for t in numbers), strict=True)
                )
                example["pictures"].append({"title": row["title"], "order": order, **values})
    truth = float(sets.truth.nll(sets.points).mean())
    return {"truth": truth, "rows": rows, "example": example, "failed": failed, "origin": origin_of(options)}


def title(fit: Fit) -> str:
    """Return the name of a model and, where there is a choice, the sets it was trained on."""
    name = CONTENDERS[fit.model].title
    if CONTENDERS[fit.model].consistent:
        return name
    return f"{name}, trained on {'sets of ' + str(fit.chunk) if fit.gradient == 'subset' else 'whole sets'}"


def first_sets(sets: Draw, count: int, points: int | None) -> Draw:
    """Return the first sets, and of each the first points."""
    if count < 1:
        raise OptionError(f"at least one set must arrive, not {count}; give --streams 1 or more")
    truth = Mixture(*(t[:count] for t in (sets.truth.log_weights, sets.truth.means, sets.truth.deviations)))
    return Draw(sets.points[:count, :points], sets.labels[:count, :points], truth)


def arrivals(labels: np.ndarray, order: str, generator: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of the points of one set, chunk by chunk."""
    shuffled = generator.permutation(len(labels))
    if order == "single":
        return list(shuffled[:, None])
    if order == "chunk":
        return [shuffled[start : start + CHUNK] for start in range(0, len(labels), CHUNK)]
    classes = [shuffled[labels[shuffled] == name] for name in np.unique(labels)]
    if order == "class":
        return classes
    longest = max(len(members) for members in classes)
    return [np.array([members[i] for members in classes if i < len(members)]) for i in range(longest)]


def arriving_chunks(sets: Draw, order: str, seed: int = 0) -> Iterator[Sets]:
    """Yield a chunk of every set, then the next; sets that have ended give empty chunks."""
    generator = np.random.default_rng(seed)
    streams = [arrivals(labels, order, generator) for labels in sets.labels.cpu().numpy()]
    device, nothing = sets.points.device, np.zeros(0, np.int64)
    for number in range(max(len(stream) for stream in streams)):
        chunks = [stream[number] if number < len(stream) else nothing for stream in streams]
        layout = Layout.from_lengths([len(chunk) for chunk in chunks], device)
        rows = np.concatenate([chunk + sets.points.shape[1] * i for i, chunk in enumerate(chunks)])
        yield Sets(sets.points.flatten(0, 1)[layout.to_device(rows)], layout)


def codes(model: Clusterer, chunks: Sequence[Sets], wanted: Collection[int]) -> Iterator[Tensor]:
    """Yield the code of everything read so far, after the chunks with these numbers, which start at 1.

    It comes from a state, or from another pass over all chunks. Encoders that can do neither get the mean of the codes
    of the chunks.
    """
    encoder = model.encoder
    if isinstance(encoder, MergeableEncoder | MaxPool):
        state: Any = encoder.begin(len(chunks[0]))
        for number, chunk in enumerate(chunks, 1):
            state = encoder.update(state, chunk)
            if number in wanted:
                yield encoder.finish(state)
        return
    if isinstance(encoder, DeepUMBC):
        for number in sorted(wanted):
            yield encoder.stream(list(chunks[:number]))
        return
    total = count = torch.zeros((), device=chunks[0].device)
    for start in range(0, len(chunks), GROUP):
        # Chunks have separate codes, so many can be encoded at a time.
        group = Sets.cat(chunks[start : start + GROUP])
        group_codes = model.code(group).unflatten(0, (-1, len(chunks[0])))
        present = (
            (group.layout.lengths > 0)
            .reshape(*group_codes.shape[:2], *[1] * (group_codes.dim() - 2))
            .to(group_codes.dtype)
        )
        for number, (code, mask) in enumerate(zip(group_codes, present, strict=True), start + 1):
            # Every stream has a first chunk, so the count is never 0.
            total, count = total + mask * code, count + mask
            if number in wanted:
                yield total / count


def evaluation_steps(length: int) -> set[int]:
    """Return after which chunks a stream is evaluated: evenly on a logarithmic scale, and at the end."""
    return {round(n) for n in np.geomspace(1, length, min(EVALUATIONS, length))} | {length}


@torch.no_grad()
def arrive(model: Clusterer, name: str, order: str, sets: Draw) -> tuple[dict[str, Any], Mixture]:
    """Return the NLL of the whole set during a stream, and the last mixture."""
    chunks = list(arriving_chunks(sets, order))
    wanted = sorted(evaluation_steps(len(chunks)))
    read = np.cumsum([chunk.layout.total for chunk in chunks]) / len(sets.points)
    values = []
    mixture, code = sets.truth, sets.points
    for code in codes(model, chunks, wanted):
        mixture = model.mixture(code)
        values.append(float(mixture.nll(sets.points).mean()))
    whole = model.code(as_sets(sets.points))
    row = {
        "title": name,
        "order": order,
        "points": [float(read[number - 1]) for number in wanted],
        "nll": values,
        "at_once": float(model.mixture(whole).nll(sets.points).mean()),
        "apart": float((code - whole).abs().max() / whole.abs().max()),
    }
    return row, mixture


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of the last NLL of each model and order, beside reading at once."""
    names = list(dict.fromkeys(row["title"] for row in rows))
    cells = []
    for name in names:
        mine = {row["order"]: row for row in rows if row["title"] == name}
        ends = [f"{mine[order]['nll'][-1]:.3f}" for order in ORDERS]
        furthest = max(row["apart"] for row in mine.values())
        cells.append([name, f"{mine[ORDERS[0]]['at_once']:.3f}", *ends, f"{furthest:.1e}"])
    return table(["model", "read at once", *ORDERS, "code differs by"], cells)

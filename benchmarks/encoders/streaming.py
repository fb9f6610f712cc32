"""Points that arrive in pieces: what a model knows about the whole set after each (figures 2 and 8).

Claims checked: an encoder with a state ends at the same mixture in every order of arrival, that of the whole set read
at once; an encoder without one, which gets the mean of the codes of its pieces, does not.

Four orders (appendix C.1): "single": point by point; "class": all points of one Gaussian, then of the next; "chunk": 8
random points at a time; "one each": one point of each Gaussian that has points left. The likelihood is always that of
all 1,024 points. Models come from `clustering`, by the same file of results, and are trained if they are not there:
UMBC with a Set Transformer, DeepSets and SSE on whole sets (the sampled gradient of 8 points, which the paper has, is
too noisy for UMBC with softmax: see `clustering`), the Set Transformer on sets of 8 points, as in the paper, and on
whole sets.
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
    Fit,
    add_options,
    base_fit,
    judged_sets,
    load,
    model_file,
    origin_of,
    read_found,
    results_file,
    run_missing,
)
from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, as_sets
from benchmarks.encoders.clustering_plots import draw_sets, draw_streams
from benchmarks.encoders.mixtures import Draw, Mixture
from benchmarks.lib.device import resolve_device
from benchmarks.lib.tables import table
from benchmarks.lib.trials import show_page
from setgrad.encoders import DeepUMBC, MaxPool, MergeableEncoder
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets

ORDERS = ("single", "class", "chunk", "one each")
CHUNK = 8
# Pieces that an encoder without a state encodes at a time.
GROUP = 32
# Moments at which a stream is looked at, besides its end.
LOOKS = 12
READERS = (
    ("umbc-st", "full"),
    ("deep-umbc", "full"),
    ("deep-sets", "full"),
    ("sse", "full"),
    ("set-transformer", "subset"),
    ("set-transformer", "full"),
)
# Rows of figure 8.
PICTURES = (("set-transformer", "subset"), ("umbc-st", "full"))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--streams", type=int, default=100, help="sets that arrive, at most 100 (default: 100)")
    parser.add_argument("--drawn", type=int, default=2, help="number of the set in figure 8 (default: 2)")
    parser.add_argument("--shown", type=Path, metavar="FILE", help="print and draw what --json wrote, and run nothing")
    add_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train what is missing, let the points arrive, print where the streams end and draw both figures."""
    with results_file(options) as results:
        found = measure(options, results) if options.shown is None else read_found(options.shown)
        said = f"NLL of all points at the end of the stream. The true mixtures have {found['truth']:.3f}."
        page = results.with_name(f"{results.stem}-streams.md")
        show_page(f"# Points that arrive\n\n{summary(found['rows'])}\n\n{said}", [found["origin"]], options, page)
        if found["rows"] and not options.quick:
            draw_streams(found["rows"], results.with_name(f"{results.stem}-streams.png"), found["truth"])
            draw_sets(found["example"], results.with_name(f"{results.stem}-sets.png"))
    return found


def measure(options: argparse.Namespace, results: Path) -> dict[str, Any]:
    """Let the points arrive at all models; what is found fits into JSON."""
    base = base_fit(options)
    fits = [replace(base, model=model, gradient=gradient) for model, gradient in READERS]
    device = resolve_device(options.device)
    records, failed = run_missing(fits, options, results, models=True)
    models = {fit: load(fit, results).to(device) for fit in records if model_file(fit, results).is_file()}
    sets = some(next(judged_sets(base, device)), 4 if options.quick else options.streams, 64 if options.quick else None)
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
            if (fit.model, fit.gradient) in PICTURES:
                numbers = (mixture.log_weights.exp(), mixture.means, mixture.deviations)
                values = dict(
                    zip(("weights", "means", "deviations"), (t[number].tolist() for t in numbers), strict=True)
                )
                example["pictures"].append({"title": row["title"], "order": order, **values})
    truth = float(sets.truth.nll(sets.points).mean())
    return {"truth": truth, "rows": rows, "example": example, "failed": failed, "origin": origin_of(options)}


def title(fit: Fit) -> str:
    """The name of a model, and what it was trained on where that is a choice."""
    name = CONTENDERS[fit.model].title
    if CONTENDERS[fit.model].consistent:
        return name
    return f"{name}, trained on {'sets of ' + str(fit.piece) if fit.gradient == 'subset' else 'whole sets'}"


def some(sets: Draw, count: int, points: int | None) -> Draw:
    """The first sets, and of each the first points."""
    if count < 1:
        raise OptionError(f"at least one set must arrive, not {count}; give --streams 1 or more")
    truth = Mixture(*(t[:count] for t in (sets.truth.log_weights, sets.truth.means, sets.truth.deviations)))
    return Draw(sets.points[:count, :points], sets.labels[:count, :points], truth)


def arrivals(labels: np.ndarray, order: str, generator: np.random.Generator) -> list[np.ndarray]:
    """Numbers of the points of one set in the pieces in which they come."""
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


def chunks(sets: Draw, order: str, seed: int = 0) -> Iterator[Sets]:
    """A piece of every set, then the next; nothing of sets that have ended."""
    generator = np.random.default_rng(seed)
    streams = [arrivals(labels, order, generator) for labels in sets.labels.cpu().numpy()]
    device, nothing = sets.points.device, np.zeros(0, np.int64)
    for number in range(max(len(stream) for stream in streams)):
        pieces = [stream[number] if number < len(stream) else nothing for stream in streams]
        layout = Layout.from_lengths([len(piece) for piece in pieces], device)
        rows = np.concatenate([piece + sets.points.shape[1] * i for i, piece in enumerate(pieces)])
        yield Sets(sets.points.flatten(0, 1)[layout.to_device(rows)], layout)


def codes(model: Clusterer, pieces: Sequence[Sets], wanted: Collection[int]) -> Iterator[Tensor]:
    """The code of all that has come, after the pieces with these numbers, from 1.

    By state, or by going through all of it anew; encoders that do neither get the mean of the codes of the pieces.
    """
    encoder = model.encoder
    if isinstance(encoder, MergeableEncoder | MaxPool):
        state: Any = encoder.begin(len(pieces[0]))
        for number, piece in enumerate(pieces, 1):
            state = encoder.update(state, piece)
            if number in wanted:
                yield encoder.finish(state)
        return
    if isinstance(encoder, DeepUMBC):
        for number in sorted(wanted):
            yield encoder.stream(list(pieces[:number]))
        return
    total: Tensor | float = 0.0
    count: Tensor | float = 0.0
    for start in range(0, len(pieces), GROUP):
        # Pieces have codes of their own, so that many can be encoded at a time.
        group = Sets.cat(pieces[start : start + GROUP])
        found = model.code(group).unflatten(0, (-1, len(pieces[0])))
        here = (group.layout.lengths > 0).reshape(*found.shape[:2], *[1] * (found.dim() - 2)).to(found.dtype)
        for number, (code, some) in enumerate(zip(found, here, strict=True), start + 1):
            # Every stream brings something with its first piece, so that nothing is divided by 0.
            total, count = total + some * code, count + some
            if number in wanted:
                yield total / count


def looks(length: int) -> set[int]:
    """Numbers of pieces after which a stream is looked at: evenly on a scale of logarithms, and the last."""
    return {round(n) for n in np.geomspace(1, length, min(LOOKS, length))} | {length}


@torch.no_grad()
def arrive(model: Clusterer, name: str, order: str, sets: Draw) -> tuple[dict[str, Any], Mixture]:
    """Let all points arrive: how well the whole set is known at some moments, and the mixture named at the end."""
    pieces = list(chunks(sets, order))
    wanted = sorted(looks(len(pieces)))
    read = np.cumsum([piece.layout.total for piece in pieces]) / len(sets.points)
    values = []
    mixture, code = sets.truth, sets.points
    for code in codes(model, pieces, wanted):
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
    """Where streams end, for each model and order, beside reading at once."""
    names = list(dict.fromkeys(row["title"] for row in rows))
    cells = []
    for name in names:
        mine = {row["order"]: row for row in rows if row["title"] == name}
        ends = [f"{mine[order]['nll'][-1]:.3f}" for order in ORDERS]
        furthest = max(row["apart"] for row in mine.values())
        cells.append([name, f"{mine[ORDERS[0]]['at_once']:.3f}", *ends, f"{furthest:.1e}"])
    return table(["model", "read at once", *ORDERS, "code differs by"], cells)

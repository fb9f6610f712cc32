"""Multiple-instance learning: classical sets of bags, bags of digits, and a network tuned through bags of thousands.

Claims checked: over ten folds the encoders come within a deviation over folds of published attention on the same sets,
and so do plain statistics of bags. A network pretrained on 100 labelled images and tuned end to end through bags of
2,000 to 6,000 images with `gradient="exact"` or `"sample"` is better than the same network frozen. A step takes the
same memory for 1,000 to 64,000 images. The whole graph of a bag that is tuned on would fit into a GPU: the graph of
64,000 images does not fit into a limit of 1 GB that the benchmark sets itself. (Willette et al., 2023,
arXiv:2208.12401, do this with slides of Camelyon16 in table 4, which are not available.)

`folds`: musk1, musk2, elephant, fox, tiger, protein, ten folds, drawn again for every seed; bags that share an instance
are in one fold; features are standardised on training bags. Networks have the same options everywhere, set beforehand,
and a fixed number of steps: no test bag is used to stop or to choose. "statistics" are mean, minimum and maximum of
each feature in a bag, and its size, for logistic regression, an SVM (both with options from five inner folds) and
randomised trees. Always on the CPU. `activations`: UMBC with a Set Transformer with each of five activations on the
same folds (published for Camelyon16: softmax is best and slot-sigmoid is behind it, table 5). Accuracies are the mean
over all folds of all seeds ± the deviation over them; other cells are the mean over seeds ± the deviation over them.

`small`: bags of about 10 MNIST images, positive if one is a nine, and a LeNet learned from labels of bags alone.

`large`: the label of a bag is the share of every digit. The network is pretrained on 100 labelled images, the pooling
on its features; then the pooling is trained alone (frozen), or both are, with the gradient of the whole bag (exact), of
one chunk of 256 images with the value of the whole (sample), or on 256 images as if they were the bag (subset). "all
labels" is frozen after pretraining with all 60,000 labels: a limit. A row counts the seeds that all rows of its pooling
have, and so does its change from frozen. `memory`: peak of one step.

Results: Published rows: Ilse et al., 2018 (arXiv:1802.04712). Plain statistics of bags are level with the encoders. The
five activations are level. Shares of digits: a network pretrained on 100 labelled images is tuned through bags of 2,000
to 6,000 images; frozen is the network without tuning, all labels a limit. The slides of the publication (Camelyon16)
are not available.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from benchmarks.encoders.mil_digits import learn_small
from benchmarks.encoders.mil_folds import FOLDS, PLAIN, Training, cross_validate
from benchmarks.encoders.mil_large import LARGE, QUICK, WAYS, Large, tune
from benchmarks.encoders.mil_memory import GRADIENTS, LIMIT, measure
from benchmarks.encoders.mil_models import ACTIVATED, POOLS, USUAL
from benchmarks.encoders.mil_published import ILSE, SPREAD, published_cell
from benchmarks.lib.pages import Report
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import format_bytes, table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.datasets import MIL_DATASETS

PARTS = ("folds", "activations", "small", "large", "memory")
BAGS = ("musk1", "musk2", "elephant", "fox", "tiger", "protein")
SMALL = (100, 500)
IMAGES = (1_000, 4_000, 16_000, 64_000)


@final
@dataclass(frozen=True)
class Trial:
    """One fit or measurement. `data` is a set of bags, a number of bags or of images; `options` lists its options."""

    part: str
    data: str
    model: str
    seed: int
    options: str
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.part} {self.data} {self.model} seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--parts", default=",".join(PARTS), help=f"default: all: {', '.join(PARTS)}")
    parser.add_argument("--bags", default=",".join(BAGS), help=f"sets of bags (default: {', '.join(BAGS)})")
    parser.add_argument("--models", help="contenders of folds and small (default: all)")
    parser.add_argument(
        "--steps", type=int, default=Training.steps, help=f"of folds; small takes twice (default: {Training.steps})"
    )
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    trials = plan(options)
    parts = {"mil": ("folds", "activations"), "mnist": ("small", "large")}
    folders = {name: "the bags" for name, uses in parts.items() if any(trial.part in uses for trial in trials)}
    return run_and_show(options, trials, partial(attempt, steps=_steps(options)), REPORT, folders=folders)


def show(records: Sequence[Record]) -> str:
    """Return a table for each part that has records."""
    return "\n\n".join(SHOWN[part](selected) for part, selected in _by_part(records).items() if selected)


def _by_part(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {part: [record for record in records if record["part"] == part] for part in PARTS}


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials: measurements first, while little else is on the device, then tuning, which takes longest."""
    parts = parse_names(options.parts, PARTS, "part")
    models = parse_names(options.models or ",".join((*POOLS, *PLAIN)), (*POOLS, *PLAIN), "model")
    quick, seeds = options.quick, range(1 if options.quick else options.seeds)
    trained = str(Training(steps=_steps(options)))
    images, small = ((500, 2000), SMALL[:1]) if quick else (IMAGES, SMALL)
    ways, pooled = (LARGE[: len(WAYS)], models[:1]) if quick else (LARGE, models)
    bags = parse_names(options.bags, MIL_DATASETS, "set of bags")[: 1 if quick else None]
    # The sets with most instances first.
    bags.sort(key=lambda name: ("protein", "musk2").index(name) if name in ("protein", "musk2") else 2)
    trials = {
        "memory": [Trial("memory", str(n), way, 0, "", quick) for n in images for way in GRADIENTS],
        "large": [Trial("large", "shares", way, seed, str(_large(quick)), quick) for seed in seeds for way in ways],
        "folds": [
            Trial("folds", data, model, seed, trained if model in POOLS else "", quick)
            for data in bags
            for model in reversed(models)
            for seed in seeds
        ],
        "activations": [
            Trial("activations", data, model, seed, trained, quick)
            for seed in seeds
            for data in reversed(bags)
            for model in (USUAL, *ACTIVATED)[: 2 if quick else None]
        ],
        "small": [
            Trial("small", str(n), model, seed, trained, quick)
            for n in reversed(small)
            for model in pooled
            for seed in seeds
            if model in POOLS
        ],
    }
    return [trial for part, group in trials.items() if part in parts for trial in group]


def attempt(trial: Trial, context: RunContext, *, steps: int) -> Record:
    """Run one trial."""
    if trial.part in ("folds", "activations"):
        folds = 1 if trial.quick else FOLDS
        return cross_validate(trial.data, trial.model, trial.seed, context, steps=steps, folds=folds)
    if trial.part == "small":
        tested = 100 if trial.quick else 1000
        return learn_small(int(trial.data), trial.model, trial.seed, context, steps=2 * steps, tested=tested)
    if trial.part == "large":
        return tune(trial.model, trial.seed, context, _large(trial.quick))
    return measure(int(trial.data), trial.model, context)


def _steps(options: argparse.Namespace) -> int:
    return 10 if options.quick else options.steps


def _large(quick: bool) -> Large:
    return QUICK if quick else Large()


def show_folds(records: Sequence[Record]) -> str:
    """Return the tables of accuracy, with published ones, and of the area under the ROC curve."""
    data = [name for name in MIL_DATASETS if any(record["data"] == name for record in records)]
    published = [[f"*{method}, published*", *(published_cell(method, name) for name in data)] for method in ILSE]
    folds = [[model, *(mean_cell(c, ".1f") for c in row)] for model, row in _columns(records, data, _folds).items()]
    return (
        f"## Accuracy (%)\n\n{table(['', *data], [*folds, *published])}\n\n"
        f"Mean ± standard deviation over the folds: {_times(records)}. {SPREAD}\n\n"
        f"## AUROC (%) of all folds together\n\n{table(['', *data], _rows(records, data, 'auroc'))}"
    )


def _folds(record: Record) -> list[float]:
    return record["fold_accuracies"]


def _times(records: Sequence[Record]) -> str:
    """Return how often the bags were cut into folds, and into how many."""
    folds = max(len(_folds(record)) for record in records)
    seeds: dict[str, set[int]] = {}
    for record in records:
        seeds.setdefault(record["data"], set()).add(record["seed"])
    least, most = (pick(len(numbers) for numbers in seeds.values()) for pick in (min, max))
    if most == 1:
        return f"{folds} folds, cut once"
    return f"{folds} folds, drawn again for each of {most if least == most else f'{least} to {most}'} seeds"


def show_activations(records: Sequence[Record]) -> str:
    """Return the area under the ROC curve of UMBC with each activation."""
    data = [name for name in MIL_DATASETS if any(record["data"] == name for record in records)]
    rows = []
    for model in (USUAL, *ACTIVATED):
        runs = [record for record in records if record["model"] == model]
        if runs:
            cells = [mean_cell([r["auroc"] for r in runs if r["data"] == name], ".1f") for name in data]
            rows.append([model.removeprefix(USUAL).strip() or "softmax", *cells, mean_cell(_means(runs, data), ".1f")])
    note = "UMBC with a Set Transformer; AUROC (%) of all folds together, and the mean over the sets of bags."
    return f"## Activations\n\n{table(['', *data, 'mean'], rows)}\n\n{note}"


def _means(records: Sequence[Record], data: Sequence[str]) -> list[float]:
    """Return the mean over the sets of bags for each seed that has all of them."""
    seeds: dict[int, list[float]] = {}
    for record in records:
        seeds.setdefault(record["seed"], []).append(record["auroc"])
    return [sum(areas) / len(areas) for areas in seeds.values() if len(areas) == len(data)]


def show_small(records: Sequence[Record]) -> str:
    """Return the area under the ROC curve by the number of training bags."""
    counts = sorted({record["data"] for record in records}, key=int)
    heads = ["training bags", *counts]
    return f"## Does a bag hold a nine? AUROC (%)\n\n{table(heads, _rows(records, counts, 'auroc'))}"


def show_large(records: Sequence[Record]) -> str:
    """Return the results of each way to train the network."""
    rows = []
    for model in LARGE:
        runs = _shared(records, model)
        if not runs:
            continue
        peaks = [record["peak"] for record in runs.values() if record["peak"] is not None]
        columns = [mean_cell([r[n] for r in runs.values()], form) for n, form in zip(_LARGE, _FORMS, strict=True)]
        frozen = _shared(records, _frozen(model))
        gaps = [runs[seed]["error"] - frozen[seed]["error"] for seed in runs if seed in frozen]
        change = "" if model == _frozen(model) else mean_cell(gaps, ".2f")
        rows.append(
            [model, str(len(runs)), columns[0], change, *columns[1:], format_bytes(max(peaks)) if peaks else "-"]
        )
    heads = ["", "seeds", "error of a share (points)", "from frozen", "AUROC, many nines (%)"]
    heads += ["images before (%)", "images after (%)", "peak"]
    return f"## Shares of digits in bags of thousands of images\n\n{table(heads, rows)}"


def _frozen(model: str) -> str:
    return f"{model.split()[0]} frozen"


def _shared(records: Sequence[Record], model: str) -> dict[int, Record]:
    """Return the records of a model by seed, for the seeds that all models with its pooling have."""
    ways: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["model"].split()[0] == model.split()[0]:
            ways.setdefault(record["model"], {})[record["seed"]] = record
    common = set.intersection(*(set(runs) for runs in ways.values())) if ways else set()
    return {seed: ways[model][seed] for seed in sorted(common)} if model in ways else {}


def show_memory(records: Sequence[Record]) -> str:
    """Return the peak memory of a step by the size of the bag."""
    by_case = {(int(r["data"]), r["model"]): r for r in records}
    images = sorted({number for number, _ in by_case})
    rows = [[f"{n:,}", *(_peak(by_case.get((n, way))) for way in GRADIENTS)] for n in images]
    limited = any(record["limit"] for record in records)
    note = f", with a limit of {format_bytes(LIMIT)}" if limited else ""
    return f"## Memory of one step{note}\n\n{table(['images of the bag', *GRADIENTS], rows)}"


def _peak(record: Record | None) -> str:
    if record is None:
        return "-"
    return "out of memory" if record["bytes"] is None else format_bytes(record["bytes"])


def _columns(
    records: Sequence[Record], data: Sequence[str], values: Callable[[Record], list[float]]
) -> dict[str, list[list[float]]]:
    """Return, for every model and every column, the values of all its records."""
    models = [model for model in (*PLAIN, *POOLS) if any(record["model"] == model for record in records)]
    return {
        model: [[v for r in records if (r["model"], r["data"]) == (model, name) for v in values(r)] for name in data]
        for model in models
    }


def _rows(records: Sequence[Record], data: Sequence[str], score: str) -> list[list[str]]:
    columns = _columns(records, data, lambda record: [record[score]])
    return [[model, *(mean_cell(c, ".1f") for c in row)] for model, row in columns.items()]


def draw(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw the memory of a step by the size of the bag, and the error after tuning, if there are records of both."""
    by_part = _by_part(records)
    if not (by_part["memory"] and by_part["large"]):
        return []
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    for way in GRADIENTS:
        peaks = sorted((int(r["data"]), r["bytes"]) for r in by_part["memory"] if r["model"] == way and r["bytes"])
        left.loglog([n for n, _ in peaks], [peak / 1e6 for _, peak in peaks], "o-", label=way)
    left.set_xlabel("images of the bag")
    left.set_ylabel("peak memory of a step (MB)")
    left.legend()
    for row, model in enumerate(LARGE):
        errors = [r["error"] for r in by_part["large"] if r["model"] == model]
        right.plot(errors, [row] * len(errors), "o", color=f"C{row % len(WAYS)}")
    right.set_yticks(range(len(LARGE)), LARGE)
    right.set_xlabel("error of a share (percentage points), one dot a seed")
    return save_figure(figure, page.with_suffix(".png"))


_LARGE, _FORMS = ("error", "auroc", "before", "after"), (".2f", ".1f", ".1f", ".1f")
SHOWN = {
    "folds": show_folds,
    "activations": show_activations,
    "small": show_small,
    "large": show_large,
    "memory": show_memory,
}

REPORT = Report.of_module(
    __doc__, "Multiple-instance learning", show, "mil --data-dir DATA --device cuda --jobs 15", draw
)

"""Figures of the clustering experiments."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.encoders.clustering_fits import READS, Fit
from benchmarks.encoders.clustering_models import CONTENDERS
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    """Return a figure and its axes `[row][column]`."""
    figure = new_figure(3.6 * columns, 3.3 * rows)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=True)


def _mean(records: Sequence[Record], reads: int) -> float:
    return statistics.fmean(record["nll"][str(reads)] for record in records)


def draw_gradients(records: Mapping[Fit, Record], path: Path) -> list[Path]:
    """Draw NLL against the points that had a graph in training, for each gradient."""
    groups: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for fit, record in records.items():
        if CONTENDERS[fit.model].consistent:
            count = fit.points if fit.gradient == "full" else fit.chunk
            groups.setdefault((fit.model, fit.gradient), {}).setdefault(count, []).append(record)
    models = [model for model in CONTENDERS if (model, "sample") in groups]
    if not models:
        return []
    figure, axes = _figure(1, len(models))
    for axis, model in zip(axes[0], models, strict=True):
        for (name, gradient), by_count in groups.items():
            if name != model:
                continue
            values = {count: _mean(seeds, 1024) for count, seeds in sorted(by_count.items())}
            if gradient == "full":
                axis.axhline(*values.values(), color="black", label="full")
            else:
                axis.plot(list(values), list(values.values()), "o-", label=gradient)
        axis.set(title=CONTENDERS[model].title, xlabel="points with a graph")
        axis.set_xscale("log", base=2)
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("NLL, 1,024 points")
    return save_figure(figure, path)


def draw_activations(records: Mapping[Fit, Record], path: Path, bound: float) -> list[Path]:
    """Draw NLL against the points read, for each activation."""
    figure, axes = _figure(1, 1)
    groups: dict[str, list[Record]] = {}
    for fit, record in records.items():
        groups.setdefault(fit.activation, []).append(record)
    for name, runs in groups.items():
        axes[0][0].plot(READS, [_mean(runs, reads) for reads in READS], "o-", label=name)
    axes[0][0].axhline(bound, color="0.5", linestyle=":", label="true mixtures")
    axes[0][0].set(xlabel="points read", ylabel="NLL, 1,024 points")
    axes[0][0].set_xscale("log", base=2)
    axes[0][0].legend(fontsize=7)
    return save_figure(figure, path)


def draw_streams(rows: Sequence[Mapping[str, Any]], path: Path, bound: float) -> list[Path]:
    """Draw NLL of the whole set against the points that have arrived, for each order of arrival."""
    orders = list(dict.fromkeys(row["order"] for row in rows))
    figure, axes = _figure(1, len(orders))
    for axis, order in zip(axes[0], orders, strict=True):
        for row in rows:
            if row["order"] == order:
                axis.plot(row["points"], row["nll"], ".-", label=row["title"])
        axis.axhline(bound, color="0.5", linestyle=":", label="true mixtures")
        axis.set(title=order, xlabel="points read")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axes[0][0].set_ylabel("NLL of the whole set")
    axes[0][0].legend(fontsize=7)
    return save_figure(figure, path)


def draw_sets(example: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the points of one set and the predicted Gaussians at the end of each stream, one row for each model."""
    pictures = {(picture["title"], picture["order"]): picture for picture in example["pictures"]}
    titles, orders = (list(dict.fromkeys(key[i] for key in pictures)) for i in (0, 1))
    from matplotlib.patches import Ellipse

    figure, axes = _figure(max(1, len(titles)), max(1, len(orders)))
    across, up = zip(*example["points"], strict=True)
    for (title, order), picture in pictures.items():
        axis = axes[titles.index(title)][orders.index(order)]
        axis.scatter(across, up, c=example["labels"], s=3, cmap="tab10", vmin=0, vmax=9)
        for weight, mean, (wide, high) in zip(picture["weights"], picture["means"], picture["deviations"], strict=True):
            # Two deviations to each side; the heavier a component, the bolder its line.
            axis.add_patch(Ellipse(tuple(mean), 4 * wide, 4 * high, fill=False, linewidth=0.5 + 3 * weight))
        axis.set(xlim=(-6, 6), ylim=(-6, 6))
        axis.set_title(f"{title}: {order}", fontsize=7)
    return save_figure(figure, path)


def draw_variances(variances: Mapping[str, Mapping[str, float]], path: Path) -> list[Path]:
    """Draw the variance of codes against the number of chunks; rounding lies at the bottom."""
    figure, axes = _figure(1, 1)
    for name, row in variances.items():
        style = "o-" if CONTENDERS[name].consistent else "s--"
        axes[0][0].plot(
            [int(count) for count in row],
            [max(value, 1e-36) for value in row.values()],
            style,
            label=CONTENDERS[name].title,
        )
    axes[0][0].set(xlabel="chunks", ylabel="variance of the code, relative")
    axes[0][0].set_xscale("log", base=2)
    axes[0][0].set_yscale("log")
    axes[0][0].legend(fontsize=6)
    return save_figure(figure, path)

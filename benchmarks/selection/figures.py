"""Figures of the results, if Matplotlib is there: scores by category, and memory against iterations (figure 1)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.records import Record
from benchmarks.selection.baselines import BASELINES
from benchmarks.selection.models import MODELS
from benchmarks.selection.scores import collect, latest

# What `python -m benchmarks implicit-memory --json` writes, where figure 1 is looked for.
MEMORY_FILE = "implicit-memory.json"


def draw_figures(records: Sequence[Record], folder: Path, stem: str) -> list[str]:
    """Write the figures that the results allow, and return the names of their files."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    records = latest([record for record in records if not record["quick"]] or records)
    names = []
    families = sorted({_family(record["task"]) for record in records})
    for family in families:
        chosen = [record for record in records if _family(record["task"]) == family]
        name = f"{stem}-{family.replace(':', '-')}.png"
        _draw_scores(chosen, folder / name, family)
        names.append(name)
    if (folder / MEMORY_FILE).is_file():
        _draw_memory(json.loads((folder / MEMORY_FILE).read_text(encoding="utf-8"))["rows"], folder / "figure1.png")
        names.append("figure1.png")
    return names


def _family(task: str) -> str:
    """Tasks of one picture: an Amazon protocol, a family, or the generated tasks together."""
    head, *rest = task.split(":")
    if head == "amazon":
        return f"amazon:{rest[-1]}"
    return head if rest else "others"


def _axes(width: float) -> tuple[Any, Any]:
    # Without pyplot, which would keep figures and choose a window system.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.2), layout="constrained")
    return figure, figure.add_subplot()


def _draw_scores(records: Sequence[Record], path: Path, title: str) -> None:
    found = collect(records, "true_size")
    tasks = sorted(found)
    models = [m for m in (*MODELS, *BASELINES) if any(m in found[task] for task in tasks)]
    figure, axes = _axes(3 + 0.16 * len(tasks) * len(models))
    bar = 0.8 / max(1, len(models))
    for place, model in enumerate(models):
        there = [(x, found[task][model]) for x, task in enumerate(tasks) if model in found[task]]
        axes.bar(
            [x + (place - (len(models) - 1) / 2) * bar for x, _ in there],
            [summary.mean for _, summary in there],
            bar,
            yerr=[0.0 if summary.count < 2 else summary.deviation for _, summary in there],
            label=model,
            error_kw={"linewidth": 0.7},
            color=f"C{place}" if place < 10 else str(0.2 + 0.14 * (place - 10)),
        )
    axes.set_xticks(range(len(tasks)), [task.split(":")[1] if ":" in task else task for task in tasks])
    axes.set_ylabel("test Jaccard, true size (%)")
    axes.set_title(title)
    axes.legend(fontsize=7, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110)


def _draw_memory(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = _axes(5)
    steps = [row["iterations"] for row in rows]
    for way in ("unrolled", "implicit"):
        axes.plot(steps, [row[way]["step"] / 1e6 for row in rows], "o-", label=way)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("fixed-point iterations K")
    axes.set_ylabel("peak memory (MB)")
    axes.legend()
    figure.savefig(path, dpi=110)

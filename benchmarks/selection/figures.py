"""Figures of the scores by category."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record
from benchmarks.selection.baselines import BASELINES
from benchmarks.selection.models import MODELS
from benchmarks.selection.scores import collect, latest


def draw_figures(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw one figure for each family of tasks beside the page, and return their paths."""
    records = latest([record for record in records if not record["quick"]] or records)
    paths = []
    for family in sorted({_family(record["task"]) for record in records}):
        selected = [record for record in records if _family(record["task"]) == family]
        paths += _draw_scores(selected, page.with_name(f"{page.stem}-{family.replace(':', '-')}.png"), family)
    return paths


def _family(task: str) -> str:
    """Return the figure of a task: an Amazon protocol, a family, or the generated tasks together."""
    head, *rest = task.split(":")
    if head == "amazon":
        return f"amazon:{rest[-1]}"
    return head if rest else "others"


def _draw_scores(records: Sequence[Record], path: Path, title: str) -> list[Path]:
    by_task = collect(records, "true_size")
    tasks = sorted(by_task)
    models = [m for m in (*MODELS, *BASELINES) if any(m in by_task[task] for task in tasks)]
    figure = new_figure(3 + 0.16 * len(tasks) * len(models), 4.2)
    axes = figure.add_subplot()
    bar = 0.8 / max(1, len(models))
    for number, model in enumerate(models):
        bars = [(x, by_task[task][model]) for x, task in enumerate(tasks) if model in by_task[task]]
        axes.bar(
            [x + (number - (len(models) - 1) / 2) * bar for x, _ in bars],
            [summary.mean for _, summary in bars],
            bar,
            yerr=[0.0 if summary.count < 2 else summary.deviation for _, summary in bars],
            label=model,
            error_kw={"linewidth": 0.7},
            # Ten colours, then greys from dark to light.
            color=f"C{number}" if number < 10 else str(0.2 + 0.7 * (number - 10) / (len(models) - 10)),
        )
    axes.set_xticks(range(len(tasks)), [task.split(":")[1] if ":" in task else task for task in tasks])
    axes.set_ylabel("test Jaccard, true size (%)")
    axes.set_title(title)
    axes.legend(fontsize=7, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))
    return save_figure(figure, path)

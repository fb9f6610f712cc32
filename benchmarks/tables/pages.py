"""The sections of a page with a row for each model and its lead over one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.lib.records import Record
from benchmarks.lib.summary import compare, summarise
from benchmarks.lib.tables import table


def sections(records: Sequence[Record], models: Sequence[str], scores: Mapping[str, str], base: str) -> str:
    """Return a section for each task; the arguments are those of `task_table`."""
    tasks = dict.fromkeys(record["task"] for record in records)
    return "\n\n".join(
        f"## {task}\n\n{task_table([r for r in records if r['task'] == task], models, scores, base)}"
        for task in sorted(tasks)
    )


def task_table(records: Sequence[Record], models: Sequence[str], scores: Mapping[str, str], base: str) -> str:
    """Return the scores of the models on one task.

    Args:
        records: The records of the task.
        models: The models, in the order of the rows.
        scores: The scores, with what they are called.
        base: The model that others are compared with, paired by seed.
    """
    rows = []
    for model in models:
        found = [record for record in records if record["model"] == model]
        if not found:
            continue
        cells = []
        for score in scores:
            ours, theirs = ({r["seed"]: r[score] for r in records if r["model"] == m} for m in (model, base))
            summary = summarise(list(ours.values()))
            is_compared = model != base and bool(ours.keys() & theirs.keys())
            cells += [
                f"{summary.mean:.1f}" + (f" ± {summary.error:.1f}" if summary.count > 1 else ""),
                str(compare(ours, theirs, paired=True)) if is_compared else "-",
            ]
        rows.append([model, str(len(found)), *cells, f"{summarise([r['seconds'] for r in found]).mean:.0f}"])
    heads = [head for name in scores.values() for head in (name, f"vs {base}")]
    return table(["columns", "seeds", *heads, "fit (s)"], rows)

"""Tables of scores, inference, time and memory, beside the published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.lib.records import Record
from benchmarks.lib.summary import Summary, compare
from benchmarks.lib.tables import format_bytes, table
from benchmarks.selection.baselines import BASELINES
from benchmarks.selection.models import MODELS
from benchmarks.selection.published import published, published_converged, published_seconds
from benchmarks.selection.scores import (
    DEFAULT,
    OURS,
    SCORES,
    averages,
    best_preset,
    collect,
    latest,
    summaries,
    values_of,
    verdicts,
)

_SPLITS = {
    "folds": "Five-fold cross-validation",
    "drawn": "Splits drawn again for each seed",
    "published": "Published split, several seeds",
}


def show(records: Sequence[Record]) -> str:
    """Return all tables, by the way tasks are split."""
    full = [record for record in records if not record["quick"]]
    records = latest(full or records)
    parts = []
    for splits, title in _SPLITS.items():
        selected = [record for record in records if record["splits"] == splits]
        if selected:
            parts += [f"## {title}", *_sections(selected, paired=splits != "published")]
    return "\n\n".join(parts)


def score_table(records: Sequence[Record], score: str, *, paired: bool) -> str:
    """Return rows for tasks and averages over Amazon, with leads of the default and of ours."""
    values = values_of(records, score)
    rows = {**dict(sorted(values.items())), **averages(values)}
    models = _present(values)
    cells = []
    for task, row in rows.items():
        by_model = summaries({task: row})[task]
        best = max(summary.mean for summary in by_model.values()) if by_model else 0.0
        shown = [_bold(str(by_model[m]), by_model[m].mean >= best - 0.05) if m in by_model else "-" for m in models]
        rival = best_preset(row)
        cells.append(
            [
                task,
                _counts(by_model.values()),
                *shown,
                _versus(row, DEFAULT, OURS, paired),
                _versus(row, OURS, "direct", paired),
                f"{_versus(row, OURS, rival, paired)} ({rival})" if rival and OURS in row else "-",
            ]
        )
    leads = [f"{DEFAULT} - {OURS}", f"{OURS} - direct", f"{OURS} - best published method"]
    return table(["task", "n", *models, *leads], cells)


def published_table(records: Sequence[Record]) -> str:
    """Return the scores of the presets beside the published ones."""
    ours = collect(records, "true_size")
    rows = []
    names = [name for name in _present(ours) if name in published("moons")]
    for task, row in sorted(ours.items()):
        printed = published(task)
        if printed:
            cells = [
                f"{row[n].mean:.1f} / {printed[n][0]:.1f} ± {printed[n][1]:.1f}" if n in row else "-" for n in names
            ]
            rows.append([task, *cells])
    return table(["task: ours / published", *names], rows) if rows and names else ""


def inference_table(records: Sequence[Record]) -> str:
    """Return the scores of the same fitted models with one step of inference and with converged inference."""
    one, converged = collect(records, "one_step"), collect(records, "converged")
    share = collect(records, "share_converged_test")
    models = _present(one)
    rows = []
    for task in sorted(one):
        cells = []
        for model in models:
            if model not in one[task]:
                cells.append("-")
                continue
            printed = published_converged(task).get(model)
            rate = share[task][model].mean if model in share.get(task, {}) else 0.0
            text = f"{one[task][model].mean:.1f} / {converged[task][model].mean:.1f} ({100 * rate:.0f} %)"
            cells.append(text + (f" [{printed[0]:.1f}]" if printed else ""))
        rows.append([task, *cells])
    return table(["task", *models], rows) if rows else ""


def cost_table(records: Sequence[Record]) -> str:
    """Return seconds of a fit, with the published ones in brackets, epochs, and peak memory."""
    fitted = [record for record in records if record["model"] in MODELS]
    time, memory, epochs = (collect(fitted, name) for name in ("seconds", "peak_memory", "epochs"))
    models = _present(time)
    rows = []
    for task in sorted(time):
        printed = published_seconds(task)
        cells = []
        for m in models:
            if m not in time[task]:
                cells.append("-")
                continue
            theirs = f" [{printed[m]:.0f}]" if m in printed else ""
            peak = format_bytes(memory[task][m].mean)
            cells.append(f"{time[task][m].mean:.0f} s{theirs}, {epochs[task][m].mean:.0f} ep, {peak}")
        rows.append([task, *cells])
    return table(["task", *models], rows) if rows else ""


def _sections(records: Sequence[Record], *, paired: bool) -> list[str]:
    parts = [
        f"### Test Jaccard in percent; {meaning}\n\n{score_table(records, score, paired=paired)}"
        for score, meaning in SCORES.items()
    ]
    if lines := verdicts(records, paired=paired):
        parts.append("\n".join(f"- {line}" for line in lines))
    optional = {
        "Beside the published numbers (true size)": published_table(records),
        "One step / converged inference, true size (share of converged sets) [published, converged]": inference_table(
            records
        ),
        "Seconds of a fit [published], epochs, peak memory": cost_table(records),
    }
    return [*parts, *(f"### {title}\n\n{text}" for title, text in optional.items() if text)]


def _present(values: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the models that have a result, in the order of the columns."""
    present = {model for row in values.values() for model in row}
    return [model for model in (*MODELS, *BASELINES) if model in present]


def _versus(row: Mapping[str, Mapping[int, float]], first: str, second: str, paired: bool) -> str:
    if first not in row or second not in row or not row[first].keys() & row[second].keys():
        return "-"
    return str(compare(row[first], row[second], paired=paired))


def _counts(values: Iterable[Summary]) -> str:
    """Return how many folds or seeds there are, from the model with the fewest to the one with the most."""
    counts = sorted(summary.count for summary in values) or [0]
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text

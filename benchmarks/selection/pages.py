"""The page of results: tables of scores, of inference, of time and memory, beside the published numbers."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.lib.records import Record
from benchmarks.lib.summary import Summary, compare
from benchmarks.lib.tables import size, table
from benchmarks.selection.baselines import BASELINES
from benchmarks.selection.models import MODELS
from benchmarks.selection.published import published, published_converged, published_seconds
from benchmarks.selection.scores import SCORES, averages, best_preset, collect, latest, summaries, values_of, verdicts

_SPLITS = {
    "folds": "Five-fold cross-validation",
    "drawn": "Splits drawn anew for each seed",
    "published": "Published split, several seeds",
}
_HEAD = """# Table 2

Mean ± standard deviation over folds or seeds; the best of a row is bold. "se" is the standard error of the difference,
fold by fold, or split by split, where they differ; several fits of one fold count as one, their mean. ":pixels" are
images as plain vectors. "Published" numbers are those of arXiv:2412.11239 (one held-out test part, BERT vectors for
Amazon, times on an A100): not the same data, so only roughly comparable. All options are in the JSON lines.
"""


def page(records: Sequence[Record], figures: Sequence[str] = ()) -> str:
    """The whole page in Markdown; `figures` are names of files beside it."""
    full = [record for record in records if not record["quick"]]
    records = latest(full or records)
    parts = [_HEAD, _origin(records)]
    for splits, title in _SPLITS.items():
        chosen = [record for record in records if record["splits"] == splits]
        if chosen:
            parts += [f"## {title}\n", *_sections(chosen, paired=splits != "published")]
    if figures:
        parts += ["## Figures\n", "\n".join(f"![{name}]({name})" for name in figures) + "\n"]
    return "\n".join(parts)


def score_table(records: Sequence[Record], score: str, *, paired: bool) -> str:
    """One row for each task and for averages over Amazon: each model, default minus direct and minus the best rival."""
    values = values_of(records, score)
    rows = {**dict(sorted(values.items())), **averages(values)}
    models = _present(values)
    cells = []
    for task, row in rows.items():
        found = summaries({task: row})[task]
        best = max(summary.mean for summary in found.values()) if found else 0.0
        shown = [_bold(str(found[m]), found[m].mean >= best - 0.05) if m in found else "-" for m in models]
        rival = best_preset(row)
        cells.append(
            [
                task,
                _counts(found.values()),
                *shown,
                _versus(row, "default", "direct", paired),
                f"{_versus(row, 'default', rival, paired)} ({rival})" if rival and "default" in row else "-",
            ]
        )
    return table(["task", "n", *models, "default - direct", "default - best published method"], cells)


def published_table(records: Sequence[Record]) -> str:
    """Our presets beside the printed numbers."""
    found = collect(records, "true_size")
    rows = []
    names = [name for name in _present(found) if name in published("moons")]
    for task, row in sorted(found.items()):
        printed = published(task)
        if printed:
            cells = [
                f"{row[n].mean:.1f} / {printed[n][0]:.1f} ± {printed[n][1]:.1f}" if n in row else "-" for n in names
            ]
            rows.append([task, *cells])
    return table(["task: ours / published", *names], rows) if rows and names else ""


def inference_table(records: Sequence[Record]) -> str:
    """Table 7: one step and converged inference of the same fitted models."""
    one, settled = collect(records, "one_step"), collect(records, "converged")
    share = collect(records, "settled_test")
    models = _present(one)
    rows = []
    for task in sorted(one):
        cells = []
        for model in models:
            if model not in one[task]:
                cells.append("-")
                continue
            printed = published_converged(task).get(model)
            done = share[task][model].mean if model in share.get(task, {}) else 0.0
            text = f"{one[task][model].mean:.1f} / {settled[task][model].mean:.1f} ({100 * done:.0f} %)"
            cells.append(text + (f" [{printed[0]:.1f}]" if printed else ""))
        rows.append([task, *cells])
    return table(["task", *models], rows) if rows else ""


def cost_table(records: Sequence[Record]) -> str:
    """Seconds of a fit, with the published ones in brackets, epochs, and peak memory."""
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
            there = f" [{printed[m]:.0f}]" if m in printed else ""
            cells.append(
                f"{time[task][m].mean:.0f} s{there}, {epochs[task][m].mean:.0f} ep, {size(memory[task][m].mean)}"
            )
        rows.append([task, *cells])
    return table(["task", *models], rows) if rows else ""


def _sections(records: Sequence[Record], *, paired: bool) -> list[str]:
    parts = []
    for score, meaning in SCORES.items():
        parts += [f"### Test Jaccard in percent; {meaning}\n", score_table(records, score, paired=paired) + "\n"]
    lines = verdicts(records, paired=paired)
    if lines:
        parts += ["\n".join(f"- {line}" for line in lines) + "\n"]
    optional = (
        ("Beside the published numbers (true size)", published_table(records)),
        ("One step / converged inference, true size (share of sets that settled) [published, converged]",
         inference_table(records)),
        ("Seconds of a fit [published], epochs, peak memory", cost_table(records)),
    )  # fmt: skip
    for title, text in optional:
        if text:
            parts += [f"### {title}\n", text + "\n"]
    return parts


def _origin(records: Sequence[Record]) -> str:
    """Where the numbers come from: commits, machines and commands, with the number of fits of each."""
    lines = []
    for name in ("commit", "device", "torch", "command"):
        counts = collections.Counter(record.get(name) or "unknown" for record in records if record["model"] in MODELS)
        lines += [f"- {name}: `{value}` ({count} fits)" for value, count in counts.most_common()]
    searched = sum(bool(record.get("tuned")) for record in records)
    if searched:
        lines.append(f"- options found by a search: {searched} fits; the others have those of their presets")
    spent = sum(record["seconds"] for record in records)
    return "\n".join([*lines, f"- {len(records)} results, {spent:.0f} s of fitting in all, several at a time", ""])


def _present(values: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Models that have a result, in the order of the table of models."""
    there = {model for row in values.values() for model in row}
    return [model for model in (*MODELS, *BASELINES) if model in there]


def _versus(row: Mapping[str, Mapping[int, float]], first: str, second: str, paired: bool) -> str:
    if first not in row or second not in row or not row[first].keys() & row[second].keys():
        return "-"
    return str(compare(row[first], row[second], paired=paired))


def _counts(found: Iterable[Summary]) -> str:
    """How many folds or seeds there are, from the model with the fewest to that with the most."""
    counts = sorted(summary.count for summary in found) or [0]
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text

"""Tables and figure of the estimated gradients."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.discrete.gradients_methods import METHODS
from benchmarks.lib.records import Record
from benchmarks.lib.tables import table

BUDGETS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
LAWS = {"normal": "b ~ N", "absolute": "b = |N|"}


@final
@dataclass(frozen=True)
class Curve:
    """One line of a table or figure: a method with its noise and warm-up, and what was found, by calls or by knob."""

    name: str
    method: str
    rows: tuple[Record, ...]

    def within(self, budget: int) -> Record | None:
        """What the most samples that cost no more than the budget gave."""
        return max((row for row in self.rows if row["calls"] <= budget), key=lambda row: row["calls"], default=None)


def curves(records: Sequence[Record], part: str) -> dict[tuple[int, int, str], list[Curve]]:
    """For each problem (n, k, target) its curves, in the order of the methods."""
    found: dict[tuple[int, int, str], dict[tuple[str, str], list[Record]]] = {}
    for record in records:
        if record["part"] != part:
            continue
        problem = (record["n"], record["k"], record["target"])
        noise = f", {record['noise']}" if record["noise"] and record["k"] > 1 else ""
        for row in record["rows"]:
            warm_up = f", {row['warm_up']} steps" if "warm_up" in row else ""
            key = (record["method"], record["method"] + noise + warm_up)
            found.setdefault(problem, {}).setdefault(key, []).append(row)
    order = list(METHODS)
    return {
        problem: [
            Curve(name, method, tuple(sorted(rows, key=lambda row: (row["calls"], row.get("knob", 0)))))
            for (method, name), rows in sorted(lines.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        ]
        for problem, lines in sorted(found.items(), key=lambda item: (item[0][1], item[0][0], item[0][2]))
    }


def page(records: Sequence[Record]) -> str:
    """All tables."""
    texts = []
    for problem, lines in curves(records, "samples").items():
        texts += [
            _by_budget(problem, lines),
            _by_samples(problem, lines, "cosine"),
            _by_samples(problem, lines, "zeros"),
        ]
    texts += [_by_knob(problem, lines) for problem, lines in curves(records, "knobs").items()]
    return "\n\n".join(texts)


def _title(problem: tuple[int, int, str]) -> str:
    n, k, target = problem
    return f"{k} of {n}, {LAWS[target]}"


def _by_budget(problem: tuple[int, int, str], lines: Sequence[Curve]) -> str:
    rows = []
    for line in lines:
        points = [line.within(budget) for budget in BUDGETS]
        rows.append([line.name, *("-" if p is None else f"{p['cosine']:.3f}" for p in points)])
    best = []
    for budget in BUDGETS:
        reached = [(p["cosine"], line.name) for line in lines if (p := line.within(budget)) is not None]
        best.append(f"{budget:,}: {max(reached)[1]}" if reached else f"{budget:,}: none")
    heads = ["calls at most", *(f"{budget:,}" for budget in BUDGETS)]
    return f"## {_title(problem)}: cosine for a number of calls\n\n{table(heads, rows)}\n\nBest for {'; '.join(best)}."


def _by_samples(problem: tuple[int, int, str], lines: Sequence[Curve], what: str) -> str:
    counts = sorted({row["samples"] for line in lines for row in line.rows if row["samples"]})
    rows = []
    for line in lines:
        cells = {row["samples"]: row for row in line.rows}
        if what == "zeros" and not any(row["zeros"] for row in line.rows):
            continue
        # Without samples there is one result for all S.
        shown = [cells.get(0, cells.get(count)) for count in counts]
        some = line.rows[0]
        rows.append([line.name, f"{some['calls'] / max(1, some['samples']):.0f}", *(_cell(row, what) for row in shown)])
    title = "cosine ± deviation over runs" if what == "cosine" else "zero entries (zero gradients), %; not shown: none"
    return f"### {_title(problem)}: {title}\n\n{table(['S', 'calls for each', *(f'{c:,}' for c in counts)], rows)}"


def _cell(row: Record | None, what: str) -> str:
    if row is None:
        return "-"
    return (
        f"{row['cosine']:.2f} ± {row['spread']:.2f}" if what == "cosine" else f"{row['zeros']:.0f} ({row['dead']:.0f})"
    )


def _by_knob(problem: tuple[int, int, str], lines: Sequence[Curve]) -> str:
    knobs = sorted({row["knob"] for line in lines for row in line.rows})
    rows = []
    for line in lines:
        cells = {row["knob"]: row for row in line.rows}
        best = max(line.rows, key=lambda row: row["cosine"])
        shown = (f"{cells[knob]['cosine']:.2f} ({cells[knob]['zeros']:.0f})" for knob in knobs)
        rows.append([f"{line.name}, {METHODS[line.method].knob}", *shown, f"{best['cosine']:.3f} at {best['knob']:g}"])
    heads = ["", *(f"{knob:g}" for knob in knobs), "best"]
    return f"## {_title(problem)}: cosine (zero entries, %) by lambda or temperature\n\n{table(heads, rows)}"


def draw(records: Sequence[Record], path: Path) -> None:
    """Cosine against calls, zeros against calls, cosine against lambda or temperature, a row for each problem.

    Problems whose b is normal and whose knobs were turned, where there are any: the others look much the same.
    """
    by_calls, by_knob = curves(records, "samples"), curves(records, "knobs")
    telling = {problem: lines for problem, lines in by_calls.items() if problem in by_knob and problem[2] == "normal"}
    by_calls = telling or by_calls
    if importlib.util.find_spec("matplotlib") is None or not by_calls:
        return
    # Without pyplot, which would keep figures and choose a window system.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(19, 5.5 * len(by_calls)), layout="constrained")
    for (problem, lines), axes in zip(by_calls.items(), figure.subplots(len(by_calls), 3, squeeze=False), strict=True):
        for number, line in enumerate(lines):
            style = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4], "marker": "."}
            calls = [row["calls"] for row in line.rows]
            axes[0].plot(calls, [row["cosine"] for row in line.rows], label=line.name, **style)
            axes[1].plot(calls, [row["zeros"] for row in line.rows], **style)
        for number, line in enumerate(by_knob.get(problem, [])):
            label = f"{line.name}, {METHODS[line.method].knob}"
            knobs, style = [row["knob"] for row in line.rows], {"color": f"C{number % 10}", "marker": "."}
            axes[2].plot(knobs, [row["cosine"] for row in line.rows], label=label, **style)
        _name(axes, _title(problem))
    figure.savefig(path, dpi=80)


def _name(axes: Sequence[Any], title: str) -> None:
    for axis, what in zip(axes, ("cosine", "zero entries (%)", "cosine"), strict=True):
        axis.set_ylabel(what)
        axis.set_title(title)
    for axis in axes[:2]:
        axis.set_xscale("log")
        axis.set_xlabel("calls, warm-up included")
    axes[0].legend(fontsize=6, ncols=2)
    axes[2].set_xlabel("lambda or temperature, S = 1,000")
    if axes[2].lines:
        axes[2].legend(fontsize=6)

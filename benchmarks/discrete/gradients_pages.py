"""Tables and figure of the estimated gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.discrete.gradients_methods import METHODS
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record
from benchmarks.lib.tables import table

BUDGETS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
TARGET_TITLES = {"normal": "b ~ N", "absolute": "b = |N|"}


@final
@dataclass(frozen=True)
class Curve:
    """One line of a table or figure: a method with its noise and warm-up, and its results by calls or by option."""

    name: str
    method: str
    rows: tuple[Record, ...]

    def within(self, budget: int) -> Record | None:
        """Return the result with most samples whose calls are within the budget, if there is one."""
        return max((row for row in self.rows if row["calls"] <= budget), key=lambda row: row["calls"], default=None)


def curves(records: Sequence[Record], part: str) -> dict[tuple[int, int, str], list[Curve]]:
    """Map each problem (n, k, target) to its curves, in the order of the methods."""
    groups: dict[tuple[int, int, str], dict[tuple[str, str], list[Record]]] = {}
    for record in records:
        if record["part"] != part:
            continue
        problem = (record["n"], record["k"], record["target"])
        noise = f", {record['noise']}" if record["noise"] and record["k"] > 1 else ""
        for row in record["rows"]:
            warm_up = f", {row['warm_up']} steps" if "warm_up" in row else ""
            key = (record["method"], record["method"] + noise + warm_up)
            groups.setdefault(problem, {}).setdefault(key, []).append(row)
    order = list(METHODS)
    return {
        problem: [
            Curve(name, method, tuple(sorted(rows, key=lambda row: (row["calls"], row.get("option", 0)))))
            for (method, name), rows in sorted(lines.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        ]
        for problem, lines in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0], item[0][2]))
    }


def show(records: Sequence[Record]) -> str:
    """Return all tables."""
    texts = []
    for problem, lines in curves(records, "samples").items():
        texts += [
            _by_budget(problem, lines),
            _by_samples(problem, lines, "cosine"),
            _by_samples(problem, lines, "zeros"),
        ]
    texts += [_by_option(problem, lines) for problem, lines in curves(records, "knobs").items()]
    return "\n\n".join(texts)


def _title(problem: tuple[int, int, str]) -> str:
    n, k, target = problem
    return f"{k} of {n}, {TARGET_TITLES[target]}"


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


def _by_samples(problem: tuple[int, int, str], lines: Sequence[Curve], column: str) -> str:
    counts = sorted({row["samples"] for line in lines for row in line.rows if row["samples"]})
    rows = []
    for line in lines:
        cells = {row["samples"]: row for row in line.rows}
        if column == "zeros" and not any(row["zeros"] for row in line.rows):
            continue
        # Without samples there is one result for all S.
        shown = [cells.get(0, cells.get(count)) for count in counts]
        first = line.rows[0]
        rows.append(
            [line.name, f"{first['calls'] / max(1, first['samples']):.0f}", *(_cell(row, column) for row in shown)]
        )
    title = (
        "cosine ± deviation over runs" if column == "cosine" else "zero entries (zero gradients), %; not shown: none"
    )
    return f"### {_title(problem)}: {title}\n\n{table(['S', 'calls for each', *(f'{c:,}' for c in counts)], rows)}"


def _cell(row: Record | None, column: str) -> str:
    if row is None:
        return "-"
    return (
        f"{row['cosine']:.2f} ± {row['spread']:.2f}"
        if column == "cosine"
        else f"{row['zeros']:.0f} ({row['dead']:.0f})"
    )


def _by_option(problem: tuple[int, int, str], lines: Sequence[Curve]) -> str:
    values = sorted({row["option"] for line in lines for row in line.rows})
    rows = []
    for line in lines:
        cells = {row["option"]: row for row in line.rows}
        best = max(line.rows, key=lambda row: row["cosine"])
        shown = (f"{cells[option]['cosine']:.2f} ({cells[option]['zeros']:.0f})" for option in values)
        rows.append(
            [f"{line.name}, {METHODS[line.method].option}", *shown, f"{best['cosine']:.3f} at {best['option']:g}"]
        )
    heads = ["", *(f"{option:g}" for option in values), "best"]
    return f"## {_title(problem)}: cosine (zero entries, %) by lambda or temperature\n\n{table(heads, rows)}"


def draw(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw cosine and zeros against calls, and cosine against lambda or temperature, a row for each problem.

    Only problems with a normal b and a sweep are drawn, if there are any: the others look much the same.
    """
    by_calls, by_option = curves(records, "samples"), curves(records, "knobs")
    swept = {problem: lines for problem, lines in by_calls.items() if problem in by_option and problem[2] == "normal"}
    by_calls = swept or by_calls
    if not by_calls:
        return []
    figure = new_figure(19, 5.5 * len(by_calls))
    for (problem, lines), axes in zip(by_calls.items(), figure.subplots(len(by_calls), 3, squeeze=False), strict=True):
        for number, line in enumerate(lines):
            style = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4], "marker": "."}
            calls = [row["calls"] for row in line.rows]
            axes[0].plot(calls, [row["cosine"] for row in line.rows], label=line.name, **style)
            axes[1].plot(calls, [row["zeros"] for row in line.rows], **style)
        for number, line in enumerate(by_option.get(problem, [])):
            label = f"{line.name}, {METHODS[line.method].option}"
            values, style = [row["option"] for row in line.rows], {"color": f"C{number % 10}", "marker": "."}
            axes[2].plot(values, [row["cosine"] for row in line.rows], label=label, **style)
        _label_axes(axes, _title(problem))
    return save_figure(figure, page.with_suffix(".png"), dpi=80)


def _label_axes(axes: Sequence[Any], title: str) -> None:
    for axis, label in zip(axes, ("cosine", "zero entries (%)", "cosine"), strict=True):
        axis.set_ylabel(label)
        axis.set_title(title)
    for axis in axes[:2]:
        axis.set_xscale("log")
        axis.set_xlabel("calls, warm-up included")
    axes[0].legend(fontsize=6, ncols=2)
    axes[2].set_xlabel("lambda or temperature, S = 1,000")
    if axes[2].lines:
        axes[2].legend(fontsize=6)

"""From the results of many fits to tables: mean, spread, and whether a difference is more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import final

from benchmarks._fits import Record
from benchmarks._published import best_published
from benchmarks._tables import table

SCORES = {"true_size": "the true size is given away, as in the papers", "own_size": "the model chooses the size"}


@final
@dataclass(frozen=True)
class Summary:
    """Mean of a score over seeds, with the standard deviation and the standard error of the mean."""

    mean: float
    deviation: float
    error: float
    count: int

    def to_json(self) -> dict[str, float | None]:
        """The numbers, None where a spread is unknown."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        if self.count < 2:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ± {self.deviation:.1f} ({self.error:.1f})"


def summarise(values: Sequence[float]) -> Summary:
    """Mean, deviation and error of the values; both spreads are unknown (NaN) for a single one.

    Example:
        >>> print(summarise([1.0, 3.0]))
        2.0 ± 1.4 (1.0)
    """
    if len(values) < 2:
        return Summary(values[0], math.nan, math.nan, 1)
    deviation = statistics.stdev(values)
    return Summary(statistics.fmean(values), deviation, deviation / math.sqrt(len(values)), len(values))


def compare(first: Summary, second: Summary) -> float:
    """Difference of two means in standard errors of the difference; infinite if neither has any spread."""
    difference = first.mean - second.mean
    error = math.hypot(first.error, second.error)
    if error == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / error


def latest(records: Sequence[Record]) -> list[Record]:
    """The last record of each (task, model, seed), so that a repeated fit counts once."""
    return list({(r["task"], r["model"], r["seed"]): r for r in records}.values())


def collect(records: Sequence[Record], score: str) -> dict[str, dict[str, Summary]]:
    """Summaries by task and model."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in latest(records):
        values.setdefault(record["task"], {}).setdefault(record["model"], []).append(record[score])
    return {task: {model: summarise(v) for model, v in models.items()} for task, models in values.items()}


def mixed_options(records: Sequence[Record]) -> list[str]:
    """Models whose records were not all made with the same options."""
    seen: dict[str, set[str]] = {}
    for record in latest(records):
        seen.setdefault(record["model"], set()).add(record["options"])
    return sorted(model for model, options in seen.items() if len(options) > 1)


def score_table(records: Sequence[Record], score: str, models: Sequence[str]) -> str:
    """One row for each task: the published best, each model, and default minus direct."""
    rows = []
    for task, found in sorted(collect(records, score).items()):
        published = best_published(task)
        versus = "-"
        if "default" in found and "direct" in found:
            z = compare(found["default"], found["direct"])
            versus = "-" if math.isnan(z) else f"{found['default'].mean - found['direct'].mean:+.1f} = {z:+.1f} se"
        rows.append(
            [
                task,
                str(max(summary.count for summary in found.values())),
                f"{published[0]:.1f} ± {published[1]:.1f}" if published and score == "true_size" else "-",
                *(str(found[model]) if model in found else "-" for model in models),
                versus,
            ]
        )
    return table(["task", "seeds", "published best", *models, "default - direct"], rows)


def verdicts(records: Sequence[Record]) -> list[str]:
    """What the claims of the benchmark come to, in sentences."""
    found = collect(records, "true_size")
    lines = []
    pairs = {task: compare(m["default"], m["direct"]) for task, m in found.items() if "default" in m and "direct" in m}
    known = {task: z for task, z in pairs.items() if not math.isnan(z)}
    if known:
        worse = sorted(task for task, z in known.items() if z < -1)
        text = f"default below direct by more than one standard error: {len(worse)} of {len(known)} tasks"
        lines.append(text + (f" ({', '.join(worse)})" if worse else ""))
    for protocol in ("farthest", "random"):
        gaps = {
            task: m["default"].mean - m["paper"].mean
            for task, m in found.items()
            if task.endswith(f":{protocol}") and "default" in m and "paper" in m
        }
        if gaps:
            least = min(gaps, key=lambda task: gaps[task])
            mean = statistics.fmean(gaps.values())
            lines.append(
                f"default minus paper preset, {protocol}: {mean:+.1f} on average over {len(gaps)} categories, "
                f"least {gaps[least]:+.1f} ({least})"
            )
    mixed = mixed_options(records)
    if mixed:
        lines.append(f"careful: results of different options are mixed for {', '.join(mixed)}; fit the missing ones")
    return lines

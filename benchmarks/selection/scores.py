"""Scores of many fits by task and model, averages over categories, and differences beyond noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from benchmarks.lib.records import Record
from benchmarks.lib.summary import Summary, compare, summarise
from benchmarks.selection.published import ALGORITHMS, SMALL_CATEGORIES
from benchmarks.selection.tasks import FOLDS
from setgrad.datasets import AMAZON_PROTOCOLS
from setgrad.selector import PRESETS

# The model of ours that the pages compare with others: the one with records of eight members on all tasks. The default
# of the selector is compared with it.
OURS, DEFAULT = "unrolled", "conditional"
# INSET and HORSE are from later publications.
OF_THE_PAPER = (*ALGORITHMS, "equivset-copula-free", "idiffmf-c")
# Rivals of ours by their name in a verdict.
_RIVALS: dict[str, Collection[str]] = {
    "best published method": PRESETS,
    "best method of arXiv:2412.11239 (diffmf, idiffmf, equivset)": OF_THE_PAPER,
}
_HOW = {
    True: "the best method of a category has the best mean over its folds; the difference is over the folds that it "
    "shares with ours",
    False: "the best method of a category has the best mean over its seeds; the difference is between means",
}

SCORES = {"true_size": "the true size is given, as in publications", "own_size": "the model chooses the size"}


# Values of one score by task, model and number of the fold or seed.
Values = Mapping[str, Mapping[str, Mapping[int, float]]]


def latest(records: Sequence[Record]) -> list[Record]:
    """Return the last record of each fit, so that a repeated fit counts once."""
    names = ("task", "model", "seed", "splits")
    return list({tuple(r.get(name) for name in names): r for r in records}.values())


def values_of(records: Sequence[Record], score: str) -> dict[str, dict[str, dict[int, float]]]:
    """Return one score of each record, by task, model and fold or seed; records without it are left out.

    Several fits of one fold count as one, their mean: they share their data, so only folds tell how much a score
    varies.
    """
    by_fold: dict[str, dict[str, dict[int, list[float]]]] = {}
    for record in latest(records):
        if record.get(score) is not None:
            number = record["seed"] % FOLDS if record.get("splits") == "folds" else record["seed"]
            of_task = by_fold.setdefault(record["task"], {})
            of_task.setdefault(record["model"], {}).setdefault(number, []).append(record[score])
    return {
        task: {model: {number: statistics.fmean(fits) for number, fits in row.items()} for model, row in rows.items()}
        for task, rows in by_fold.items()
    }


def collect(records: Sequence[Record], score: str) -> dict[str, dict[str, Summary]]:
    """Return summaries of a score by task and model."""
    return summaries(values_of(records, score))


def summaries(values: Values) -> dict[str, dict[str, Summary]]:
    """Return summaries of values by task and model."""
    return {
        task: {model: summarise(list(v.values())) for model, v in models.items()} for task, models in values.items()
    }


def averages(values: Values) -> dict[str, dict[str, dict[int, float]]]:
    """Return rows for the mean over the large and over the small Amazon categories, for each protocol.

    A fold of a model counts if all categories have it, so that all models average the same folds.
    """
    rows: dict[str, dict[str, dict[int, float]]] = {}
    for protocol in AMAZON_PROTOCOLS:
        tasks = [task for task in values if task.startswith("amazon:") and task.endswith(f":{protocol}")]
        small = [task for task in tasks if task.split(":")[1] in SMALL_CATEGORIES]
        for kind, group in (("large", [task for task in tasks if task not in small]), ("small", small)):
            if len(group) < 2:
                continue
            row: dict[str, dict[int, float]] = {}
            for model in {model for task in group for model in values[task]}:
                common = set.intersection(*(set(values[task].get(model, {})) for task in group))
                if common:
                    row[model] = {n: statistics.fmean(values[task][model][n] for task in group) for n in sorted(common)}
            rows[f"mean of {len(group)} {kind}, {protocol}"] = row
    return rows


def best_preset(row: Mapping[str, Mapping[int, float]], *, among: Collection[str] = PRESETS) -> str | None:
    """Return the published method, or the one among others, with the best mean, if there is one."""
    means = {model: statistics.fmean(v.values()) for model, v in row.items() if model in among}
    return max(means, key=lambda model: means[model]) if means else None


def mixed_options(records: Sequence[Record]) -> list[str]:
    """Return the models that have records of one task with different options."""
    options_of: dict[tuple[str, str], set[str]] = {}
    for record in latest(records):
        options_of.setdefault((record["task"], record["model"]), set()).add(record["options"])
    return sorted({model for (_, model), options in options_of.items() if len(options) > 1})


def verdicts(records: Sequence[Record], *, paired: bool) -> list[str]:
    """Return sentences that say which claims hold."""
    values = values_of(records, "true_size")
    lines = []
    pairs = {task: compare(m[OURS], m["direct"], paired=paired) for task, m in values.items() if _both(m)}
    known = {task: difference for task, difference in pairs.items() if not math.isnan(difference.errors)}
    if known:
        worse = sorted(task for task, difference in known.items() if difference.errors < -1)
        text = f"true size: {OURS} below direct by more than one standard error: {len(worse)} of {len(known)} tasks"
        lines.append(text + (f" ({', '.join(worse)})" if worse else ""))
    for protocol in AMAZON_PROTOCOLS:
        rows = {task: m for task, m in values.items() if task.endswith(f":{protocol}") and OURS in m}
        large = {task: m for task, m in rows.items() if _category(task) not in SMALL_CATEGORIES}
        lines += _against_rivals(large, protocol, paired=paired)
        small = {task: m for task, m in rows.items() if _category(task) in SMALL_CATEGORIES and len(m) > 1}
        if small:
            best = sorted(task for task, m in small.items() if _winner(m) == OURS)
            lines.append(
                f"true size: {OURS} above all others (but {DEFAULT} and one member) on small categories, {protocol}: "
                f"{len(best)} of {len(small)}" + (f" ({', '.join(best)})" if best else "")
            )
    mixed = mixed_options(records)
    if mixed:
        lines.append(f"warning: results of different options are mixed for {', '.join(mixed)}; fit the missing ones")
    return lines


def _both(row: Mapping[str, Mapping[int, float]]) -> bool:
    return bool(row.get(OURS, {}).keys() & row.get("direct", {}).keys())


def _against_rivals(rows: Values, protocol: str, *, paired: bool) -> list[str]:
    lines = []
    for name, rivals in _RIVALS.items():
        leads = {task: lead for task, m in rows.items() if (lead := _lead(m, rivals, paired=paired)) is not None}
        if leads:
            least = min(leads, key=lambda task: leads[task])
            mean = statistics.fmean(leads.values())
            lines.append(
                f"true size: {OURS} minus {name}, large categories, {protocol}: {mean:+.1f} on average over "
                f"{len(leads)}, least {leads[least]:+.1f} ({least})"
            )
    return [*lines, _HOW[paired]] if lines else []


def _lead(row: Mapping[str, Mapping[int, float]], rivals: Collection[str], *, paired: bool) -> float | None:
    """Return how far ours is above the best rival; None if there is no rival to compare with."""
    ours = row[OURS]
    comparable = {model: v for model, v in row.items() if not paired or v.keys() & ours.keys()}
    best = best_preset(comparable, among=rivals)
    return None if best is None else compare(ours, comparable[best], paired=paired).points


def _winner(row: Mapping[str, Mapping[int, float]]) -> str:
    """Return the best model; the default, and ours with one member, do not count."""
    others = (f"{OURS}-single", DEFAULT, f"{DEFAULT}-single")
    return max((model for model in row if model not in others), key=lambda model: statistics.fmean(row[model].values()))


def _category(task: str) -> str:
    return task.split(":")[1] if task.startswith("amazon:") else ""

"""Tables of several benchmarks side by side, for README and the first page of the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from benchmarks.lib.pages import RESULTS
from benchmarks.lib.records import Record, read_records
from benchmarks.lib.summary import paired_differences, summarise
from benchmarks.selection.given import by_number
from benchmarks.selection.published import SMALL_CATEGORIES
from benchmarks.selection.scores import OF_THE_PAPER, Values, averages, values_of
from setgrad.datasets import AMAZON_CATEGORIES

Fits = Mapping[int, float]
_BOTH = ("true_size", "own_size")
_LARGE = [name for name in AMAZON_CATEGORIES if name not in SMALL_CATEGORIES]
_MEANS = {
    "mean of the nine": "mean of 9 large, farthest",
    "mean of the three": "mean of 3 small, farthest",
}
# Rows by the name that a page shows: tasks, and means over categories.
_AMAZON = {
    **{name: f"amazon:{name}:farthest" for name in _LARGE},
    "mean of the nine": _MEANS["mean of the nine"],
    **{name: f"amazon:{name}:farthest" for name in SMALL_CATEGORIES},
    "mean of the three": _MEANS["mean of the three"],
}
_PIXELS = {"odd faces, vectors of pixels": "anomaly:olivetti:pixels"}
_ONE_MEMBER = {**_AMAZON, "Moons": "moons", "Gaussian": "gaussian", **_PIXELS}
_EIGHT_MEMBERS = {
    **_AMAZON,
    "Davis": "compounds:davis:diverse",
    "KIBA": "compounds:kiba:diverse",
    "odd digits, images": "anomaly:mnist",
    "odd faces, images": "anomaly:olivetti",
    **_PIXELS,
}
# With the published score and what no method can exceed.
_DEMO = {
    "Moons": ("moons", "58.97", "100"),
    "Gaussian": ("gaussian", "91.03", "90.5 on this draw"),
    "digits (odd ones out)": ("digits", "-", "-"),
}
_SHOPS = ("clothing", "electronic", "food")
_UTILITY = {
    "Moons": "moons",
    "Gaussian": "gaussian",
    "digits": "digits",
    **{f"bundles, {shop}": f"bundles:{shop}" for shop in _SHOPS},
    **{f"Amazon {name}": f"amazon:{name}:farthest" for name in (*_LARGE, *SMALL_CATEGORIES)},
}
_COMPLETED = {**{f"bundles, {shop}": f"bundles:{shop}" for shop in _SHOPS}, "clusters": "clusters"}
_NEAR_PERFECT = 99.7
_UTILITY_COLUMNS = ("true_size", "greedy", "local", "completion", "own_size", "swaps")
_UTILITY_MODELS = {"conditional": "conditional-single", "unrolled": "unrolled-single"}


@cache
def _records(name: str) -> list[Record]:
    return read_records(RESULTS / f"{name}.jsonl")


@cache
def _scores(name: str, score: str) -> dict[str, dict[str, dict[int, float]]]:
    values = values_of([record for record in _records(name) if not record["quick"]], score)
    return {**values, **averages(values)}


def demo_tasks() -> str:
    """Return the generated tasks, and digits: the default, boosting, and the earlier default."""
    lines = [["task", "published", "limit", "DiffMF, true size"]]
    lines[0] += [
        f"{name}, true / own size" for name in ("boosting", "conditional, one member", "unrolled, eight members")
    ]
    for name, (task, *known) in _DEMO.items():
        both = [_scores("demo-scores", score)[task] for score in _BOTH]
        models = ("lightgbm", "conditional-single", "unrolled")
        columns = [_best_bold([row[model] for model in models]) for row in both]
        cells = [" / ".join(column) for column in zip(*columns, strict=True)]
        lines.append([name, *known, _cell(both[0]["diffmf"]), *cells])
    return _table(lines)


def one_member() -> str:
    """Return the default beside the earlier one, with one member each."""
    return _against_unrolled(_ONE_MEMBER, "-single")


def eight_members() -> str:
    """Return the default beside the earlier one, with the members of a GPU."""
    return _against_unrolled(_EIGHT_MEMBERS, "")


def _against_unrolled(rows: Mapping[str, str], suffix: str) -> str:
    heads = ["task", "folds", "true size: conditional", "unrolled", "difference"]
    lines = [[*heads, "own size: conditional", "unrolled", "difference"]]
    for name, task in rows.items():
        cells, folds = [name], 0
        for score in _BOTH:
            row = _scores("table2", score).get(task, {})
            ours, theirs = (row.get(f"{model}{suffix}", {}) for model in ("conditional", "unrolled"))
            if not ours or not theirs:
                break
            folds = len(ours)
            first, second = _mean(ours), _mean(theirs)
            cells += _best_bold([ours, theirs]) if f"{first:.1f}" != f"{second:.1f}" else [_cell(ours), _cell(theirs)]
            cells.append(_difference(ours, theirs))
        else:
            lines.append([cells[0], str(folds), *cells[1:]])
    return _table(lines)


def utility() -> str:
    """Return search on F beside `predict`."""
    lines = [["task, method", "folds", "predict", "greedy on F", "local search on F", "best completion"]]
    lines[0] += ["own size", "exchanges that lower F"]
    for name, task in _UTILITY.items():
        for method, model in _UTILITY_MODELS.items():
            fits = [_scores("utility", score).get(task, {}).get(model, {}) for score in _UTILITY_COLUMNS]
            if all(fits):
                lines.append([f"{name}, {method}", str(len(fits[0])), *map(_cell, fits)])
    return _table(lines)


def bundle_completion() -> str:
    """Return the completion of bundles and clusters with one given item."""
    scores, found = (by_number(_records("given"), name) for name in ("jaccard", "found"))
    ours = "conditional-single"
    rivals = {"co-occurrence": "co-occurrence", "nearest items": "nearest"}
    rivals["boosting that knows the given items"] = "lightgbm-given"
    lines = [["task", "nothing given", "one given: unrolled", "one given: conditional", "found", *rivals]]
    for name, task in _COMPLETED.items():
        row = _row(scores, 1, task)
        first, ours_cell, *others = _best_bold([row.get(m, {}) for m in ("unrolled-single", ours, *rivals.values())])
        nothing, share = _cell(_row(scores, 0, task)[ours]), _cell(_row(found, 1, task)[ours])
        lines.append([name, nothing, first, ours_cell, share, *(cell or "-" for cell in others)])
    return _table(lines)


def boosting() -> str:
    """Return gradient boosting beside the default on Amazon, true size and own size."""
    heads = ["category", "boosting", "conditional, eight members", "difference", "conditional, one member"]
    lines = [heads]
    for name in (*_LARGE, *SMALL_CATEGORIES):
        rows = [_scores("table2", score).get(f"amazon:{name}:farthest", {}) for score in _BOTH]
        if not all(row.get("lightgbm") for row in rows):
            continue
        of_each = [[_cell(row[model]) for row in rows] for model in ("lightgbm", "conditional", "conditional-single")]
        theirs, ours, one = (" / ".join(cells) for cells in of_each)
        differences = " / ".join(_difference(row["conditional"], row["lightgbm"]) for row in rows)
        lines.append([name, theirs, ours, differences, one])
    return _table(lines)


def amazon_completion() -> str:
    """Return the completion of registries with random other products, large categories and small ones."""
    values = by_number(_records("given"), "jaccard")
    models = {"conditional": "conditional-single", "co-occurrence": "co-occurrence", "nearest items": "nearest"}
    models["chance"] = "chance"
    lines = [["given", *models]]
    for number in (0, 1, 2, 3):
        large, small = (_row(values, number, f"mean of {kind}, random") for kind in ("9 large", "3 small"))
        cells = _best_bold([large.get(model, {}) for model in models.values()])
        others = _best_bold([small.get(model, {}) for model in models.values()], spread=False)
        lines.append([str(number), *(_with(cell, other) for cell, other in zip(cells, others, strict=True))])
    return _table(lines)


def other_tasks() -> str:
    """Return the default and the strongest other methods on all tasks, for README."""
    nine, three = _MEANS["mean of the nine"], _MEANS["mean of the three"]
    heads = ["Moons", "Gaussian", "digits", "Amazon, 9 large", "Amazon, 3 small", "faces", "Davis", "bundles"]
    tasks = ["moons", "gaussian", "digits", nine, three, "anomaly:olivetti:pixels", "compounds:davis:diverse"]
    # The name of a row, the score, the model in the tables of generated tasks, and in table 2.
    rows = [
        ("**setgrad, own size**", "own_size", "conditional-single", "conditional"),
        ("**setgrad, true size**", "true_size", "conditional-single", "conditional"),
        ("unrolled, own size", "own_size", "unrolled", "unrolled"),
        ("unrolled, true size", "true_size", "unrolled", "unrolled"),
        ("gradient boosting with group features, own size", "own_size", "lightgbm", "lightgbm"),
        ("gradient boosting with group features, true size", "true_size", "lightgbm", "lightgbm"),
        ('set transformer (`method="direct"`), true size', "true_size", "direct", "direct"),
        ("HORSE, true size", "true_size", "horse", "horse"),
    ]
    names = [name for name, *_ in rows]
    columns = []
    for task in tasks:
        column = []
        for _, score, model, other in rows:
            drawn = _scores("demo-scores", score).get(task, {}).get(model)
            of_task = _scores("table2", score).get(task, {})
            column.append(drawn or of_task.get(other) or (of_task.get(f"{other}-single", {}) if drawn is None else {}))
        columns.append(_true_sizes_bold(names, [*column, _best_fits(task)]))
    bundles = [*(_bundles(score, model) for _, score, model, _ in rows), _bundles_of_best()]
    names.append("best of DiffMF, iDiffMF and EquiVSet, true size")
    columns = [[*column, "-"] for column in columns]
    columns.append([*bundles, _bundles("true_size", "alike")])
    names.append("most similar items, nothing learned, true size")
    return _table([["method", *heads], *([name, *cells] for name, *cells in zip(names, *columns, strict=True))])


def _true_sizes_bold(names: Sequence[str], column: Sequence[Fits]) -> list[str]:
    """Return a cell for each of the fits, with the best one of those with the true size in bold."""
    is_true = [*("own size" not in name for name in names), True]
    best = _best_bold([fits if wanted else {} for fits, wanted in zip(column, is_true, strict=True)])
    others = [_cell(fits) if fits else "-" for fits in column]
    return [cell if wanted and cell else other for cell, other, wanted in zip(best, others, is_true, strict=True)]


def _bundles(score: str, model: str) -> str:
    if model == "conditional-single":
        source, name = "utility", "completion" if score == "true_size" else score
    else:
        source, name = "table2", score
    means = [_mean(fits) for shop in _SHOPS if (fits := _scores(source, name).get(f"bundles:{shop}", {}).get(model))]
    return _range(means)


def _bundles_of_best() -> str:
    return _range([_mean(fits) for shop in _SHOPS if (fits := _best_fits(f"bundles:{shop}"))])


def _best_fits(task: str) -> Fits:
    candidates = [
        fits
        for source in ("demo-scores", "table2")
        for model in OF_THE_PAPER
        if (fits := _scores(source, "true_size").get(task, {}).get(model))
    ]
    return max(candidates, key=_mean, default={})


def _row(values: Mapping[int, Values], number: int, task: str) -> Mapping[str, Fits]:
    return values.get(number, {}).get(task, {})


def _mean(fits: Fits) -> float:
    return statistics.fmean(fits.values())


def _cell(fits: Fits) -> str:
    summary = summarise(list(fits.values()))
    # Near 100 a tenth of a point is much.
    return f"{summary.mean:.2f} ± {summary.deviation:.2f}" if summary.mean > _NEAR_PERFECT else str(summary)


def _best_bold(rows: Sequence[Fits], *, spread: bool = True) -> list[str]:
    """Return a cell for each of the fits, with the best mean in bold; empty where there are none."""
    best = max((_mean(fits) for fits in rows if fits), default=0.0)
    shown = [(_cell(fits) if spread else f"{_mean(fits):.1f}") if fits else "" for fits in rows]
    return [f"**{text}**" if fits and _mean(fits) == best else text for fits, text in zip(rows, shown, strict=True)]


def _with(cell: str, other: str) -> str:
    return f"{cell} ({other})" if other else cell


def _difference(first: Fits, second: Fits) -> str:
    pairs = paired_differences(first, second)
    summary = summarise(pairs) if pairs else None
    return "-" if summary is None else f"{summary.mean:+.1f}" + (f" ± {summary.error:.1f}" if len(pairs) > 1 else "")


def _range(means: Sequence[float]) -> str:
    return f"{min(means):.1f} to {max(means):.1f}" if means else "-"


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]).replace("| --- ", "|---")


# The tables by the name that marks their place in a page.
TABLES: dict[str, Callable[[], str]] = {
    "demo tasks": demo_tasks,
    "one member": one_member,
    "eight members": eight_members,
    "utility": utility,
    "amazon completion": amazon_completion,
    "bundle completion": bundle_completion,
    "boosting": boosting,
    "other tasks": other_tasks,
}

"""Bundles of products as tables: titles and categories as texts, against numbers that were made from them by hand.

Claims checked: the selector learns bundles from a table with the titles and the categories of products as text columns
no worse than from the 384 numbers of the loader, with nothing given and with one item given.

The task is that of `load_task("bundles:CATEGORY")`, with its split. Each model is `SubsetSelector()` with its defaults
on a table with these columns. "numbers" has the hashed words, groups of letters and paths of categories of the loader,
"text" the title and the categories as texts.

Results: Test Jaccard in percent, mean ± standard error over splits (seeds): with the true size and nothing given, with
the true size and one random item of the bundle given, and with its own size. The columns of scores have different sets,
so compare rows. "vs numbers" is the difference from "numbers", and "se" the standard error of that difference, paired
by split. "fit" is in seconds, with one thread.
"""

from __future__ import annotations

import argparse
import csv
import html
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.lib.data import data_folder
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.given import score_completion
from benchmarks.selection.models import describe, make_selector
from benchmarks.tables.pages import sections
from benchmarks.tables.trial import Trial, options_of
from setgrad.datasets import BUNDLE_CATEGORIES, load_task
from setgrad.sets import Choices, Sets

if TYPE_CHECKING:
    import pyarrow as pa

SEEDS = 5
NUMBERS, TEXT = "numbers", "text"
# What each model is told about the columns.
_COLUMNS: dict[str, dict[str, Any]] = {
    NUMBERS: {"features": ["vector"]},
    TEXT: {"features": ["title", "categories"], "columns": {"title": "text", "categories": "text"}},
}
MODELS = tuple(_COLUMNS)
SCORES = {"nothing": "nothing given", "one": "one given", "own_size": "own size"}
_FOLDER, _CONTENT = "bundle_sun2022", "the bundles"
_QUICK_SETS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--categories", default="food", help=f"default: food; of {', '.join(BUNDLE_CATEGORIES)}")
    add_trial_options(parser, seeds=SEEDS, unit="fit")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    trials = [
        Trial(f"bundles:{category}", model, seed, describe(options_of(options.quick)), options.quick)
        for seed in range(min(options.seeds, 2) if options.quick else options.seeds)
        for category in parse_names(options.categories, BUNDLE_CATEGORIES, "category")
        for model in parse_names(options.models, MODELS, "model")
    ]
    return run_and_show(options, trials, attempt, REPORT, folders={_FOLDER: _CONTENT})


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test. Scores are percentages."""
    sets = _QUICK_SETS if trial.quick else None
    task = load_task(
        trial.task, random_state=trial.seed, data_dir=context.data_dir, n_train=sets, n_validation=sets, n_test=sets
    )
    products = read_products(data_folder(context.data_dir, _FOLDER, _CONTENT) / trial.task.split(":")[1])
    train, validation, test = (as_table(part, products) for part in (task.train, task.validation, task.test))
    selector = make_selector(options_of(trial.quick), seed=trial.seed, device=context.device)
    started = time.perf_counter()
    with warnings.catch_warnings():
        # The columns that a model does not have are meant to be so.
        warnings.simplefilter("ignore", UserWarning)
        columns = _COLUMNS[trial.model]
        selector.fit(train, set_id="bundle", chosen="chosen", item_id="product", validation=validation, **columns)
    seconds = round(time.perf_counter() - started, 2)

    def complete(choices: Choices, sizes: torch.Tensor, given: Sets) -> Sets:
        # The items of these sets are the rows of the table of all.
        rows = choices.sets.values[:, 0].long().numpy()
        part = test.take(rows)
        picks = selector.predict(part, size=sizes.tolist(), given=given.values.numpy())
        return choices.sets.with_values(torch.from_numpy(np.array(picks["chosen"])))

    numbered = task.test.sets.with_values(torch.arange(task.test.sets.layout.total)[:, None])
    found = score_completion(complete, Choices(numbered, task.test.subsets), seed=trial.seed)["jaccard"]
    scores = {"nothing": found["0"], "one": found["1"], "own_size": 100 * float(selector.score(test))}
    shown = ", ".join(f"{SCORES[name]} {score:.1f}" for name, score in scores.items())
    return {**scores, "seconds": seconds, "summary": shown}


def read_products(folder: Path) -> dict[int, tuple[str, str]]:
    """Return title and categories of the products, as the files have them, by their numbers."""
    titles, categories = (_read(folder / f"item_{name}.csv") for name in ("titles", "categories"))
    return {number: (titles[number], categories[number]) for number in titles.keys() & categories.keys()}


def as_table(choices: Choices, products: Mapping[int, tuple[str, str]]) -> pa.Table:
    """Return sets as a table with the number, the texts and the vector of each product."""
    import pyarrow as pa

    numbers = np.asarray(choices.item_ids)
    items = choices.sets.values.numpy()
    titles, categories = zip(*(products[number] for number in numbers.tolist()), strict=True)
    # A session with several bundles is several sets.
    return pa.table(
        {
            "bundle": np.repeat(np.arange(len(choices.sets)), choices.sets.layout.host_lengths),
            "product": numbers,
            "title": titles,
            "categories": categories,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(items.ravel()), items.shape[1]),
            "chosen": choices.subsets.values.numpy(),
        }
    )


def _read(path: Path) -> dict[int, str]:
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row[0]): html.unescape(row[1]) for row in list(csv.reader(file))[1:]}


def show(records: Sequence[Record]) -> str:
    """Return a section for each task, with a row for each model."""
    return sections(records, MODELS, SCORES, NUMBERS)


REPORT = Report.of_module(__doc__, "Bundles as tables", show, "bundle-tables --device cpu --jobs 1")

"""Baby registries as tables: the product's name as text, its id, or the vector of a language model.

Claims checked: the selector learns from a table with the name of a product, or its id, without vectors that were
computed before.

The task is that of `load_task("amazon:CATEGORY:PROTOCOL")`, with its split: of 30 products, those that a customer
listed. Each model is `SubsetSelector()` with its defaults on a table with these columns. "vectors" has MiniLM vectors
of the names (384 numbers), "text" the names themselves, "id" learns a vector for each product (`embed=`), "text+id" and
"vectors+id" have both. "popularity" counts how often a product was listed in training. Items are the same in all.

In "random" the other products of a set are drawn from the category, so that popular products are in the right subset
more often. In "farthest" they are those whose vectors are least like the mean of the listed ones, so the vectors decide
by construction.

Results: Test Jaccard in percent, mean ± standard error over seeds. "vs vectors" is the difference from "vectors", and
"se" the standard error of that difference, paired by seed. "fit" is in seconds, with one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.data import data_folder
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.baselines import popularity
from benchmarks.selection.models import describe, make_selector
from benchmarks.tables.pages import sections
from benchmarks.tables.trial import Trial, options_of
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, Task, load_task
from setgrad.selector import jaccard, pick_top
from setgrad.selector.sizes import calibrate
from setgrad.sets import Choices, Sets, subset_sizes

if TYPE_CHECKING:
    import pyarrow as pa

SEEDS = 5
VECTORS, POPULARITY = "vectors", "popularity"
# What each model is told about the columns.
_COLUMNS: dict[str, dict[str, Any]] = {
    VECTORS: {"features": ["vector"]},
    "text": {"features": ["name"], "columns": {"name": "text"}},
    "id": {"features": [], "embed": ["product"]},
    "text+id": {"features": ["name"], "columns": {"name": "text"}, "embed": ["product"]},
    "vectors+id": {"features": ["vector"], "embed": ["product"]},
}
MODELS = (*_COLUMNS, POPULARITY)
_SCORES = {"true_size": "true size", "own_size": "own size"}
_FOLDER, _CONTENT = "amazon_baby_registry", "the Amazon registries"
_QUICK_SETS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--categories", default="safety,furniture", help="default: safety,furniture; or all")
    parser.add_argument("--protocols", default=",".join(AMAZON_PROTOCOLS), help="default: both")
    add_trial_options(parser, seeds=SEEDS, unit="fit")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    categories = ",".join(AMAZON_CATEGORIES) if options.categories == "all" else options.categories
    trials = [
        Trial(
            f"amazon:{category}:{protocol}",
            model,
            seed,
            describe(options_of(options.quick)) if model in _COLUMNS else "rival",
            options.quick,
        )
        for seed in range(min(options.seeds, 2) if options.quick else options.seeds)
        for category in parse_names(categories, AMAZON_CATEGORIES, "category")
        for protocol in parse_names(options.protocols, AMAZON_PROTOCOLS, "protocol")
        for model in parse_names(options.models, MODELS, "model")
    ]
    return run_and_show(options, trials, attempt, REPORT, folders={_FOLDER: _CONTENT})


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit and test. Scores are percentages."""
    sets = _QUICK_SETS if trial.quick else None
    task = load_task(
        trial.task, random_state=trial.seed, data_dir=context.data_dir, n_train=sets, n_validation=sets, n_test=sets
    )
    names = read_names(data_folder(context.data_dir, _FOLDER, _CONTENT), trial.task.split(":")[1])
    started = time.perf_counter()
    if trial.model == POPULARITY:
        own, true = _popular(task, trial.seed)
    else:
        own, true = _fitted(task, names, trial, context.device)
    scores = {"true_size": _score(true, task.test), "own_size": _score(own, task.test)}
    return {
        **scores,
        "seconds": round(time.perf_counter() - started, 2),
        "summary": f"true size {scores['true_size']:.1f}, own size {scores['own_size']:.1f}",
    }


def read_names(folder: Path, category: str) -> list[str]:
    """Return the names of the products of a category, by their numbers from 1."""
    lines = (folder / f"1_100_100_100_{category}_item_names.txt").read_text(encoding="latin-1").splitlines()
    # Before the colon are the number and the category.
    return [line.partition(": ")[2] for line in lines if line.strip()]


def as_table(choices: Choices, names: Sequence[str]) -> pa.Table:
    """Return sets as a table with the name, the number and the vector of each product."""
    import pyarrow as pa

    products = np.asarray(choices.item_ids)
    items = choices.sets.values.numpy()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(items.ravel()), items.shape[1])
    return pa.table(
        {
            "registry": np.repeat(np.asarray(choices.set_ids), choices.sets.layout.host_lengths),
            "product": products,
            "name": [names[number - 1] for number in products.tolist()],
            "vector": vectors,
            "listed": choices.subsets.values.numpy(),
        }
    )


def _fitted(task: Task, names: Sequence[str], trial: Trial, device: str | None) -> tuple[Sets, Sets]:
    train, validation, test = (as_table(part, names) for part in (task.train, task.validation, task.test))
    selector = make_selector(options_of(trial.quick), seed=trial.seed, device=device)
    with warnings.catch_warnings():
        # The columns that a model does not have, and unknown products, are meant to be so.
        warnings.simplefilter("ignore", UserWarning)
        columns = _COLUMNS[trial.model]
        selector.fit(train, set_id="registry", chosen="listed", item_id="product", validation=validation, **columns)
        picks = [
            selector.predict(test, size=size)["chosen"] for size in (None, subset_sizes(task.test.subsets).tolist())
        ]
    own, true = (task.test.sets.with_values(torch.from_numpy(np.array(chosen))) for chosen in picks)
    return own, true


def _popular(task: Task, seed: int) -> tuple[Sets, Sets]:
    score = popularity(task, seed)
    least = int(subset_sizes(task.train.subsets).min())
    rule, _ = calibrate(score(task.validation), task.validation.subsets, least)
    logits: Tensor = score(task.test)
    sets, true = task.test.sets, subset_sizes(task.test.subsets)
    return pick_top(logits, sets, rule.sizes_from(least, logits, sets)), pick_top(logits, sets, true)


def _score(picks: Sets, choices: Choices) -> float:
    return 100 * float(jaccard(picks, choices.subsets).mean())


def show(records: Sequence[Record]) -> str:
    """Return a section for each task, with a row for each model."""
    return sections(records, MODELS, _SCORES, VECTORS)


REPORT = Report.of_module(__doc__, "Baby registries as tables", show, "amazon-tables --device cpu --jobs 1")

"""The variants of the ablation, each `method="unrolled"` with one change, and a fit of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

from torch import Tensor

from benchmarks.lib.records import Record, RunContext
from benchmarks.selection.models import (
    MEMBERS,
    RELATION,
    Options,
    default_relation,
    describe,
    make_selector,
    options_of,
)
from benchmarks.selection.published import AMAZON_PAIRS
from benchmarks.selection.tasks import load_split
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.encoders import ContextItems, ItemEncoder
from setgrad.selector import SelectorOptions
from setgrad.sets import Sets

DEFAULT, TRANSFER = "default", "transfer"
# A name among the options; the module is built when the shape of an item is known.
_NO_SKIP = "context, no skip"

# The changes of each variant. All have one member, because eight members would hide the effect of a change.
CONTENDERS: dict[str, Options] = {
    DEFAULT: {},
    "four members": {"members": 4},
    "eight members": {"members": MEMBERS},
    "no context": {"phi": "mlp"},
    "one layer": {"layers": 1},
    "smaller rho": {"hidden": (256, 256)},
    "no skip": {"phi": _NO_SKIP},
    # One of them is the default: which one depends on the number of training sets.
    "no relation": {"relation": 0},
    "relation": {"relation": RELATION},
    "negatives": {"loss": "negatives"},
    "no averaging": {"average": 0.0},
    "no decay": {"weight_decay": 1e-5},
    "raw features": {"standardize": False},
    # Prediction draws as many as the default does, so only training differs.
    "one sample": {
        "samples": 1,
        "predict_samples": SubsetSelector(method="unrolled").validate().resolved_predict_samples,
    },
    "patience 6": {"patience": 6},
    "rate 1e-4": {"learning_rate": 1e-4},
    # With a single step from 1/2 it would be the default itself: there is no earlier step to differentiate.
    "one-step of 5": {"method": "one-step", "steps": 5},
    "gaussian": {"estimator": "gaussian"},
    "implicit": {"method": "implicit", "scale": "l2"},
    "direct": {"method": "direct"},
    "related direct": {"method": "direct", "relation": RELATION},
    TRANSFER: {},
}


@final
class _WithoutScore(ItemEncoder):
    """The same features, called itemwise: then DeepSetFunction adds no linear score of them."""

    itemwise = True

    def __init__(self, phi: ContextItems) -> None:
        super().__init__()
        self.phi, self.out_dim = phi, phi.out_dim

    def forward(self, sets: Sets) -> Tensor:
        return self.phi(sets)


@final
@dataclass(frozen=True)
class Trial:
    """One fit. The seed is also the fold; `start` is the task that the initial weights come from, if any.

    `options` has all options of the selector, so records of an older default do not count.
    """

    task: str
    model: str
    seed: int
    options: str
    start: str = ""
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task}, {self.model}, fold {self.seed}"


def make_trial(category: str, model: str, seed: int, *, quick: bool) -> Trial:
    """Return the trial of a variant on one fold of a category."""
    task = task_of(category)
    start = task_of(largest_other(category)) if model == TRANSFER else ""
    return Trial(task, model, seed, describe(_options(task, model, quick)), start, quick)


def task_of(category: str) -> str:
    """Return the name of the task of a category."""
    return f"amazon:{category}:farthest"


def largest_other(category: str) -> str:
    """Return the category with most registries, other than the given one.

    Examples:
        >>> largest_other("toys"), largest_other("feeding")
        ('feeding', 'diaper')
    """
    return max((name for name in AMAZON_PAIRS if name != category), key=lambda name: AMAZON_PAIRS[name])


def changes_of(model: str) -> str:
    """Return the changes of a variant, as options of the selector."""
    if model == TRANSFER:
        return "start"
    if model == "no skip":
        return "skip=False"
    return ", ".join(f"{name}={value!r}" for name, value in CONTENDERS[model].items())


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit, from the weights of another category if the trial names one, and test. Scores are percentages."""
    source = (trial.start, trial.seed, trial.quick, context.device, context.data_dir)
    start = _fitted_source(*source) if trial.start else None
    task = _load(trial.task, trial.seed, trial.quick, context.data_dir)
    selector = untrained(trial, tuple(task.train.sets.item_shape), len(task.train), context.device)
    selector.fit(*task.train, validation=task.validation, start=start)
    score = 100 * selector.score_true_size(*task.test)
    return {
        "true_size": score,
        "own_size": 100 * selector.score(*task.test),
        "validation": 100 * selector.validation_score_,
        "best_epoch": selector.best_epoch_,
        "epochs": len(selector.history_),
        "summary": f"true size {score:.2f}",
    }


def untrained(trial: Trial, shape: tuple[int, ...], sets: int, device: str | None) -> SubsetSelector:
    """Return the untrained selector of a trial. The module of "no skip" is initialised by torch's global generator."""
    selector = make_selector(_options(trial.task, trial.model, trial.quick), seed=trial.seed, device=device)
    if selector.phi != _NO_SKIP:
        return selector
    context = ContextItems(shape, selector.dim, layers=selector.layers, heads=selector.heads)
    # The relation is the default's.
    relation = default_relation(SelectorOptions(method="unrolled"), sets)
    return selector.set_params(phi=_WithoutScore(context), relation=relation)


def _options(task: str, model: str, quick: bool) -> Options:
    return options_of("unrolled-single", task, quick=quick, tuned=CONTENDERS[model])


def _load(name: str, number: int, quick: bool, data_dir: str | None) -> Task:
    return load_split(name, splits="folds", number=number, data_dir=data_dir, quick=quick)


# One is cached, because trials that start from the same weights follow each other.
@lru_cache(maxsize=1)
def _fitted_source(name: str, seed: int, quick: bool, device: str | None, data_dir: str | None) -> SubsetSelector:
    task = _load(name, seed, quick, data_dir)
    options = _options(name, DEFAULT, quick)
    selector = make_selector(options, seed=seed, device=device)
    return selector.fit(*task.train, validation=task.validation)

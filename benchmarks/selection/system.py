"""One system: sets read in chunks, F learned by implicit inference, and a choice under a budget; and without each part.

Claims checked: each part of the system is worth its place: without it the score falls, or memory grows with the set.

A customer looks at 24 items and buys those close to the middle of what is on offer, for an amount that differs from
customer to customer and is no feature. So what is good depends on the whole set V, and a good item may be left out
because it is dear. The best basket is known: a knapsack, solved exactly.

"all" reads V in chunks of 8 by UMBC (Willette et al., 2023), infers to convergence and differentiates the solution
(Özcan et al., 2024; Chiu, 2021), and learns through the solver of the budget: five epochs by the Fenchel-Young loss,
then two at a tenth of the rate by AIMLE for the Jaccard score of the choice (Minervini et al., 2023). Every other row
changes one part. All have as many epochs, the same rates, batches of 4 sets, and the budget in the test. `huge-set
--ways "umbc implicit,umbc implicit whole"` measures the memory.

Results: Mean ± standard deviation over seeds, for new customers: Jaccard score with the best basket, and worth of the
choice over that of the best basket, in percent; "lost" is the difference of worth to "all", with its standard error.
Every seed has its own data. Seconds are those of training, one thread of a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from benchmarks.lib.machine import describe as describe_machine
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import compare, mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from benchmarks.selection.system_task import Customers, draw
from setgrad import SubsetSelector
from setgrad.selector import jaccard, resolve_device

Options = dict[str, Any]
_COMMON: Options = {"dim": 16, "hidden": (32,), "layers": 1, "batch_size": 4}
_ALL: Options = {"phi": "umbc", "chunk_size": 8, "method": "implicit"}
_WHOLE = 2**20
FENCHEL_YOUNG = "fenchel-young"
TRAIN, TEST = 200, 500
# Epochs and learning rates of the two parts of the training.
EPOCHS, RATES = (5, 2), (1e-2, 1e-3)


@final
@dataclass(frozen=True)
class Variant:
    """What is fitted: the options, and the gradient of the choice in the first and in the second part of the training.

    None is training without the budget.
    """

    options: Options
    gradients: tuple[str | None, str | None]


_THROUGH_SOLVER = (FENCHEL_YOUNG, "aimle")
VARIANTS: dict[str, Variant] = {
    "all": Variant(_ALL, _THROUGH_SOLVER),
    "no chunks: whole sets": Variant(_ALL | {"chunk_size": _WHOLE}, _THROUGH_SOLVER),
    "no context of V": Variant({"phi": "mlp", "method": "implicit"}, _THROUGH_SOLVER),
    "one step for implicit inference": Variant(_ALL | {"method": "one-step"}, _THROUGH_SOLVER),
    "no function of subsets": Variant({"phi": "umbc", "chunk_size": _WHOLE, "method": "direct"}, _THROUGH_SOLVER),
    "no budget in training": Variant(_ALL, (None, None)),
    "Identity for AIMLE": Variant(_ALL, (FENCHEL_YOUNG, "identity")),
    "IMLE for AIMLE": Variant(_ALL, (FENCHEL_YOUNG, "imle")),
    "Fenchel-Young alone": Variant(_ALL, (FENCHEL_YOUNG, FENCHEL_YOUNG)),
    "AIMLE alone": Variant(_ALL, ("aimle", "aimle")),
    "the default method": Variant({"phi": "umbc", "chunk_size": _WHOLE}, (FENCHEL_YOUNG, FENCHEL_YOUNG)),
}


@final
@dataclass(frozen=True)
class Trial:
    """One fit of a variant."""

    variant: str
    seed: int
    options: str
    quick: bool

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.variant}, seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"default: all: {', '.join(VARIANTS)}")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fit the variants that have no record, and show all."""
    trials = [
        Trial(name, seed, repr((_COMMON, VARIANTS[name], TRAIN, EPOCHS, RATES)), options.quick)
        for seed in range(1 if options.quick else options.seeds)
        for name in parse_names(options.variants, VARIANTS, "variant")
    ]
    return run_and_show(options, trials, fit, REPORT)


def fit(trial: Trial, context: RunContext) -> Record:
    """Fit one variant to customers, and choose for new ones."""
    customers = (8, 8) if trial.quick else (TRAIN, TEST)
    train, test = (draw(count, 2 * trial.seed + part) for part, count in enumerate(customers))
    started = time.perf_counter()
    selector = train_in_parts(trial, train, context.device)
    seconds = time.perf_counter() - started
    picks = selector.predict(test.choices.sets, constraint=test.budget)
    score = 100 * float(jaccard(picks, test.choices.subsets).mean())
    worth = 100 * test.worth_of(picks)
    return {
        "score": score,
        "worth": worth,
        "seconds": round(seconds, 1),
        "device": describe_machine(resolve_device(context.device))["device"],
        "summary": f"Jaccard {score:.1f}, worth {worth:.1f}",
    }


def train_in_parts(trial: Trial, train: Customers, device: str | None) -> SubsetSelector:
    """Return the selector after both parts of the training; the second starts with the weights of the first."""
    variant = VARIANTS[trial.variant]
    selector: SubsetSelector | None = None
    for gradient, most, rate in zip(variant.gradients, EPOCHS, RATES, strict=True):
        epochs = 1 if trial.quick else most
        options = {**_COMMON, **variant.options, "max_epochs": epochs, "patience": epochs, "learning_rate": rate}
        previous = selector
        selector = SubsetSelector(**options, random_state=trial.seed, device=device, verbose=0)
        how: Options = {} if gradient is None else {"constraint": train.budget, "gradient": gradient}
        if gradient not in (None, FENCHEL_YOUNG):
            how["choice_loss"] = "jaccard"
        selector.fit(*train.choices, start=previous, **how)
    assert selector is not None
    return selector


def show(records: Sequence[Record]) -> str:
    """Return one row for each variant, in the order of the variants."""
    by_variant = {name: {r["seed"]: r for r in records if r["variant"] == name} for name in VARIANTS}
    whole = {seed: r["worth"] for seed, r in by_variant["all"].items()}
    rows = []
    for name, fits in by_variant.items():
        if fits:
            worth = {seed: r["worth"] for seed, r in fits.items()}
            lost = compare(whole, worth, paired=True) if name != "all" and whole.keys() & worth.keys() else None
            cells = [mean_cell([r[column] for r in fits.values()], ".1f") for column in ("score", "worth")]
            seconds = statistics.mean(r["seconds"] for r in fits.values())
            rows.append([name, str(len(fits)), *cells, "-" if lost is None else str(lost), f"{seconds:.0f}"])
    return table(["variant", "seeds", "Jaccard", "worth", "lost", "seconds"], rows)


REPORT = Report.of_module(__doc__, "One system", show, "system")

"""What the unknown size costs: the loss of a fitted selector, beside the least loss if its own distribution were true.

Claims checked: own sizes lose less than the best decision would lose in a world that is drawn from the model, and in
which items are found as often as in the test sets. So better rules for the size can gain little; better items can.

F makes a distribution of subsets: the next item, or the end, has a probability proportional to exp(tau * gain). From it
64 subsets are drawn for each of the first 200 test sets. For each draw, "known size" is the Jaccard score of the best
items of its size; "best size" is that of the one size with the largest mean score over half of the draws, measured on
the other half. tau makes gains more certain than the model is: the row of the tests is where "known size" is as high as
on the test sets, between the two nearest of the tried values.

Results: Jaccard in percent, mean over fits. "tests" are the test sets: with the true size, with own sizes, and what is
lost between them. "drawn" are draws from the model at a tau at which items are found as often as in the tests: with the
size of the draw, with the best size for the distribution, and what is lost between them. Nobody can lose less there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import summarise
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, run_and_show
from benchmarks.selection.variants import Trial, plan_trials
from setgrad import SubsetSelector
from setgrad.functions import SetFunction
from setgrad.selector import jaccard
from setgrad.sets import Choices, Sets, segment_max, segment_sum, subset_sizes

TASKS = "digits,amazon:toys,amazon:media"
COLUMNS = {"true_size": "true size", "own_size": "own size", "lost": "lost"}
COLUMNS |= {"drawn_known": "drawn, known size", "drawn_best": "drawn, best size", "drawn_lost": "drawn, lost"}
_TAUS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
_TEST_SETS, _DRAWS, _PARTS, _AT_ONCE = 200, 64, 8, 32
# The logit of the end is found between these numbers.
_WIDEST = 200.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default="conditional-single", help="default: conditional-single")
    parser.add_argument("--tasks", help=f"names of tasks or families (default: {TASKS})")
    add_trial_options(parser, seeds=1, unit="fit", models=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the fits that have no record, and show the page."""
    trials = plan_trials(options, tasks="digits" if options.quick else TASKS, protocol="farthest")
    return run_and_show(options, trials, attempt, REPORT)


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit, and compare what the size costs in the tests and in draws. Scores are percentages."""
    task = trial.load(context)
    selector = trial.fit(task, context)
    test = Choices(task.test.sets[:_TEST_SETS], task.test.subsets[:_TEST_SETS])
    found = score_sizes(selector, task.validation, test, draws=4 if trial.quick else _DRAWS, seed=trial.seed)
    return {**found, "summary": ", ".join(f"{name} {found[key]:.1f}" for key, name in COLUMNS.items())}


def score_sizes(
    selector: SubsetSelector, validation: Choices, test: Choices, *, draws: int, seed: int
) -> dict[str, float]:
    """Return all scores in percent."""
    generator = torch.Generator().manual_seed(seed)
    sizes = subset_sizes(test.subsets).tolist()
    true, own = (
        100 * float(jaccard(selector.predict(test.sets, size=size), test.subsets).mean()) for size in (sizes, None)
    )
    known = best = 0.0
    for tau in _TAUS if draws > 8 else _TAUS[-1:]:
        before = known, best
        end = fit_end(selector.function_, validation, tau, generator)
        known, best = score_draws(selector.function_, test.sets, tau, end, draws, generator)
        if known >= true:
            share = (true - before[0]) / (known - before[0]) if before[0] else 1.0
            known, best = (first + share * (last - first) for first, last in zip(before, (known, best), strict=True))
            break
    return {
        "true_size": true,
        "own_size": own,
        "lost": true - own,
        "drawn_known": known,
        "drawn_best": best,
        "drawn_lost": known - best,
    }


@torch.no_grad()
def score_draws(
    function: SetFunction, sets: Sets, tau: float, end: float, draws: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return the mean scores in percent, on draws from the model, with the size of the draw and with the best size."""
    known, best = [], []
    for part in _batches(sets):
        bound = function.bind(part)
        drawn = draw(function, part, tau, end, draws, generator).to(bound.sets.device)
        order = _path_places(function, part).to(bound.sets.device)
        sizes = segment_sum(drawn.long().T, part).T
        # The first k items of the path, for every k.
        prefixes = order < torch.arange(part.layout.longest + 1, device=order.device)[:, None]
        scores = torch.stack([jaccard_rows(prefix, drawn, part) for prefix in prefixes])
        known.append(scores.gather(0, sizes[None])[0].mean(0))
        half = draws // 2
        # Each half of the draws decides for the other one.
        for first, second in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            choice = scores[:, first].mean(1).argmax(0)
            best.append(scores[:, second].mean(1).gather(0, choice[None])[0])
    return 100 * float(torch.cat(known).mean()), 100 * float(torch.cat(best).mean())


def jaccard_rows(mask: Tensor, drawn: Tensor, sets: Sets) -> Tensor:
    """Return the Jaccard score of one subset of each set with every draw, `(draws, b)`."""
    both, either = (segment_sum(x.double().T, sets).T for x in (mask & drawn, mask | drawn))
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


@torch.no_grad()
def fit_end(function: SetFunction, choices: Choices, tau: float, generator: torch.Generator) -> float:
    """Return the logit of the end under which the true ends of random parts of the chosen subsets are likeliest."""
    totals, ends = [], []
    for start in range(0, len(choices), _AT_ONCE):
        sets, subsets = (part[start : start + _AT_ONCE] for part in choices)
        bound, chosen = function.bind(_double(sets)), subsets.values
        joins = torch.rand(_PARTS, len(sets), generator=generator)[:, sets.layout.ids]
        parts = chosen & (torch.rand(_PARTS, len(chosen), generator=generator) < joins)
        gains = (tau * bound.gains(parts)).double().masked_fill(parts, -torch.inf)
        total, is_end = _log_sum(gains, sets), segment_sum((chosen & ~parts).T, sets).T == 0
        is_open = total.isfinite()
        totals.append(total[is_open])
        ends.append(is_end[is_open].double())
    return likeliest_end(torch.cat(totals), torch.cat(ends))


def likeliest_end(totals: Tensor, ends: Tensor) -> float:
    """Return the logit of the end that makes ends likeliest where the others have these logits in all."""
    low, high = -_WIDEST, _WIDEST
    for _ in range(60):
        middle = (low + high) / 2
        # The derivative of the likelihood falls with the logit.
        low, high = (middle, high) if float((ends - torch.sigmoid(middle - totals)).sum()) > 0 else (low, middle)
    return (low + high) / 2


@torch.no_grad()
def draw(function: SetFunction, sets: Sets, tau: float, end: float, count: int, generator: torch.Generator) -> Tensor:
    """Return drawn subsets, booleans `(count, total)`."""
    bound, ids = function.bind(_double(sets)), sets.layout.ids
    picks = torch.zeros(count, sets.layout.total, dtype=torch.bool)
    is_open = torch.ones(count, len(sets), dtype=torch.bool)
    for _ in range(sets.layout.longest):
        keys = tau * bound.gains(picks).double() + _gumbel(picks.shape, generator)
        keys = keys.masked_fill(picks, -torch.inf)
        best = segment_max(keys.T, sets).T
        is_open &= end + _gumbel(is_open.shape, generator) < best
        if not bool(is_open.any()):
            break
        picks = picks | ((keys == best[:, ids]) & is_open[:, ids])
    return picks


@torch.no_grad()
def _path_places(function: SetFunction, sets: Sets) -> Tensor:
    """Return when each item joins, from 0, if the one with the largest gain joins next."""
    bound, ids = function.bind(_double(sets)), sets.layout.ids
    places = torch.full((sets.layout.total,), sets.layout.longest, dtype=torch.long)
    for place in range(sets.layout.longest):
        joined = places < place
        gains = bound.gains(joined[None])[0].double().masked_fill(joined, -torch.inf)
        best = segment_max(gains, sets)[ids]
        places = torch.where((gains == best) & ~joined, place, places)
    return places


def _batches(sets: Sets) -> Iterator[Sets]:
    for start in range(0, len(sets), _AT_ONCE):
        yield _double(sets[start : start + _AT_ONCE])


def _double(sets: Sets) -> Sets:
    # Ties would make two items join at once.
    return sets.with_values(sets.values.double())


def _gumbel(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return -(-torch.rand(shape, generator=generator, dtype=torch.float64).clamp(2**-54, 1 - 2**-54).log()).log()


def _log_sum(gains: Tensor, sets: Sets) -> Tensor:
    """Return the logarithm of the sum of exp(gain) over each set, `(m, b)`."""
    top = segment_max(gains.T, sets)
    return (top + segment_sum((gains.T - top[sets.layout.ids]).exp(), sets).log()).T


def show(records: Sequence[Record]) -> str:
    """Return a table with a row for each task and model."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(f"{record['task']}, {record['model']}", []).append(record)
    cells = [
        [name, str(len(found)), *(str(summarise([record[column] for record in found])) for column in COLUMNS)]
        for name, found in sorted(rows.items())
    ]
    return table(["task, model", "fits", *COLUMNS.values()], cells)


REPORT = Report.of_module(__doc__, "What the unknown size costs", show, "size-limit --seeds 3 --data-dir DATA")

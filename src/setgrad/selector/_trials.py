"""The trials of a search: fits with other options, in one process or in several that share a journal."""

from __future__ import annotations

import math
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from setgrad._progress import announce
from setgrad.columns._arguments import TableArguments
from setgrad.errors import OptionError, TrainingError, parameter
from setgrad.selector._choice_gradient import FENCHEL_YOUNG, make_gradient
from setgrad.selector._monitor import Callback
from setgrad.selector._search_space import Space, suggest
from setgrad.selector._table_input import is_table
from setgrad.selector.selector import SubsetSelector

# A trial is compared with others after so many of them, and from so many epochs on.
_COMPARED_TRIALS, _COMPARED_EPOCHS = 4, 8
DATA, MODEL, OPTIONS, EPOCHS = "data", "model", "options", "epochs"
_ROLES = ("set_id", "chosen", "item_id", "features", "weight", "columns", "embed")


@final
@dataclass(frozen=True, eq=False)
class Search:
    """What every process of a search knows.

    Attributes:
        selector: The selector with the options that are not searched.
        data: Sets and subsets, or a table, as for `fit`.
        arguments: The other arguments of `fit`.
        spaces: The values of the options that are searched.
        folder: The folder for the journal and the models of trials.
        trials: How many trials there are in the end; None for no limit.
        ends: When the search ends, in seconds of the clock of the system; None for no limit.
        jobs: Number of processes.
    """

    selector: SubsetSelector
    data: tuple[Any, Any]
    arguments: dict[str, Any]
    spaces: dict[str, Space]
    folder: Path
    trials: int | None
    ends: float | None
    jobs: int

    @property
    def journal(self) -> Path:
        """The file in which Optuna keeps the trials."""
        return self.folder / "journal.log"

    def study(self, worker: int = 0) -> Any:
        """Return the study of the journal, which is made if it is missing."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        # One line for each trial is ours.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.journal))),
            study_name="setgrad",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(_COMPARED_TRIALS, _COMPARED_EPOCHS, n_min_trials=2),
            load_if_exists=True,
        )
        # A search that goes on must not draw the same numbers again, nor two processes.
        seeds = [int(self.selector.random_state or 0), worker, len(study.get_trials(deepcopy=False))]
        seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
        return study

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self.ends is not None and time.time() >= self.ends

    @cached_property
    def fit(self) -> Callable[[SubsetSelector, Callback], SubsetSelector]:
        """Fits a selector; a table is read once."""
        (sets, subsets), rest = self.data, dict(self.arguments)
        if not is_table(sets):
            return lambda selector, callback: selector.fit(sets, subsets, **rest, callback=callback)
        names = {name: rest.pop(name, () if name == "embed" else None) for name in _ROLES}
        arguments = TableArguments(**names)
        groups, sample_weight = rest.get("groups"), rest.get("sample_weight")
        validation, constraint = rest.get("validation"), rest.get("constraint")
        read = self.selector.read_to_fit(
            sets, arguments, subsets, groups, sample_weight, has_validation=validation is not None
        )
        gradient, loss = rest.get("gradient", FENCHEL_YOUNG), rest.get("choice_loss")
        training = make_gradient(gradient, loss, constrained=constraint is not None)
        return lambda selector, callback: selector.fit_read(read, validation, constraint, training, None, callback)


def run_trials(search: Search, worker: int = 0) -> None:
    """Run trials until there are enough, or the time is over, or Ctrl-C is pressed."""
    if search.jobs > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // search.jobs))
    with warnings.catch_warnings():
        if worker:
            # The first process tells what looks wrong.
            warnings.simplefilter("ignore")
        study, is_going_on = search.study(worker), True
        fit = search.fit
        while is_going_on and not search.is_late:
            is_going_on = _run(search, study, fit)


def is_counted(trial: Any) -> bool:
    """Return whether a trial runs or has ended by itself; a killed one does not count."""
    return trial.state.name != "FAIL" or EPOCHS in trial.user_attrs


def _run(search: Search, study: Any, fit: Callable[[SubsetSelector, Callback], SubsetSelector]) -> bool:
    """Run one trial, and return whether the search goes on."""
    from optuna import TrialPruned
    from optuna.trial import TrialState

    if _count(study) >= (search.trials or math.inf):
        return False
    trial, epochs = study.ask(), 0
    before = _count(study, trial.number)
    if before >= (search.trials or math.inf):
        # Another process was faster.
        study.tell(trial, state=TrialState.FAIL)
        return False
    # The first one has the options as they are.
    options = suggest(trial, search.spaces) if before else {}
    trial.set_user_attr(OPTIONS, {name: list(v) if isinstance(v, tuple) else v for name, v in options.items()})

    def watch(record: dict[str, float]) -> bool:
        nonlocal epochs
        epochs = int(record["epoch"])
        if _is_orphan():
            raise SystemExit("the search was killed")
        trial.report(record["validation_jaccard"], epochs)
        if trial.should_prune():
            raise TrialPruned
        return search.is_late

    started = time.perf_counter()
    selector = SubsetSelector(**{**search.selector.get_params(), "verbose": 0, **options})
    try:
        fit(selector, watch)
    except (TrialPruned, TrainingError, OptionError) as error:
        # Options that do not go together, or a rate at which training diverges, are not good.
        if isinstance(error, OptionError) and not options:
            study.tell(trial, state=TrialState.FAIL)
            raise
        pruned = isinstance(error, TrialPruned)
        trial.set_user_attr(EPOCHS, epochs)
        study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        _say(search, trial.number, options, f"ended after {epochs} epochs" if pruned else str(error))
        return True
    except BaseException:
        study.tell(trial, state=TrialState.FAIL)
        raise
    _check_data(study, selector, search)
    score = selector.validation_score_
    trial.set_user_attr(EPOCHS, len(selector.history_))
    done = [each for each in study.get_trials(deepcopy=False) if MODEL in each.user_attrs and each.value is not None]
    if all(score >= other.value for other in done):
        selector.save(search.folder / f"trial-{trial.number}")
        trial.set_user_attr(MODEL, True)
    study.tell(trial, score)
    by = "" if selector.best_epoch_ else " by boosted trees alone"
    _say(search, trial.number, options, f"score {100 * score:.2f}{by} in {time.perf_counter() - started:.1f} s")
    return not selector.stopped_ or search.is_late


def _is_orphan() -> bool:
    """Return whether this process searches for another one that was killed."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _count(study: Any, before: float = math.inf) -> int:
    """Return how many trials count, of those with a smaller number."""
    return sum(is_counted(trial) and trial.number < before for trial in study.get_trials(deepcopy=False))


def _check_data(study: Any, selector: SubsetSelector, search: Search) -> None:
    digest, known = selector.origin_.sha256, study.user_attrs.get(DATA)  # type: ignore[union-attr]
    if known is None:
        study.set_user_attr(DATA, digest)
    elif known != digest:
        raise OptionError(
            f"{search.folder} holds a search on other data; name another folder for the model, "
            f"{parameter('folder')}, or delete {search.folder} to start again"
        )


def _say(search: Search, number: int, options: dict[str, Any], result: str) -> None:
    if search.selector.verbose > 0:
        told = ", ".join(f"{name}={_text(value)}" for name, value in options.items()) or "the options as they are"
        announce(f"trial {number}: {told}: {result}")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

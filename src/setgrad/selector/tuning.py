"""A search for good options by Optuna: resumable, in parallel, within a time."""

from __future__ import annotations

import inspect
import multiprocessing
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from numbers import Integral, Real
from pathlib import Path
from typing import Any, final

from torch import nn

from setgrad._files import owned_file
from setgrad._text_table import TextTable, percent
from setgrad.errors import DataError, MissingDependencyError, OptionError, TrainingError, parameter
from setgrad.selector._load import load
from setgrad.selector._model_files import check_model_folder
from setgrad.selector._search_space import search_space
from setgrad.selector._trials import EPOCHS, MODEL, OPTIONS, Search, is_counted, run_trials
from setgrad.selector.selector import SubsetSelector

_TRIALS = 30
# Arguments of `fit` that a search does not have: the options to start from are searched, and the callback is its own.
_NOT_PASSED = ("self", "sets", "subsets", "start", "callback")
_ENDS = {"COMPLETE": "", "PRUNED": "ended early", "FAIL": "failed"}


@final
@dataclass(frozen=True)
class Trial:
    """A fit of a search.

    Attributes:
        number: Its number; 0 is the fit with the options as they were passed.
        options: The options that were tried.
        score: The validation score of the best epoch, as in `history_`; None if it ended early or failed.
        epochs: Number of epochs.
        end: "" if it was finished, "ended early" if others were better after as many epochs, or "failed".
    """

    number: int
    options: dict[str, Any]
    score: float | None
    epochs: int
    end: str


@final
@dataclass(frozen=True, eq=False)
class TuneResult:
    """The result of a search.

    Attributes:
        selector: The best selector, fitted.
        best: Its trial.
        trials: All trials.
    """

    selector: SubsetSelector
    best: Trial
    trials: tuple[Trial, ...]

    def table(self, most: int = 10) -> TextTable:
        """Return the best trials as a table of texts."""
        names = sorted({name for trial in self.trials for name in trial.options})
        ranked = sorted(self.trials, key=lambda trial: -1.0 if trial.score is None else trial.score, reverse=True)
        rows = [
            (
                str(trial.number),
                trial.end or percent(trial.score),
                str(trial.epochs),
                *(_text(trial.options.get(name)) for name in names),
            )
            for trial in ranked[:most]
        ]
        return TextTable("the best trials", ("trial", "score", "epochs", *names), tuple(rows))


def tune(
    selector: SubsetSelector,
    sets: Any,
    subsets: Any = None,
    *,
    folder: str | Path,
    trials: int | None = None,
    max_time: float | None = None,
    jobs: int = 1,
    search: Iterable[str] | Mapping[str, Any] | None = None,
    **arguments: Any,
) -> TuneResult:
    """Search for options with a good validation score, and save the best model.

    The first trial has the options as they are, so the result is not worse on the validation sets. A trial ends early
    if it is below the median of the others after as many epochs. Trials are kept in a journal in `FOLDER.tune`, beside
    the folder of the model: the same call goes on after an interruption, and with more trials or time.

    The best of many scores on the same validation sets is too good: score the result on other sets.

    Args:
        selector: A selector with the options that stay. One without `random_state` gets 0, so that all trials have the
            same validation sets.
        sets: What `fit` takes: sets, or a table.
        subsets: What `fit` takes.
        folder: The folder for the best model.
        trials: How many trials there are in the end, with those of an interrupted search; None is 30 without
            `max_time`, else no limit.
        max_time: Seconds for the search, which ends within an epoch after it; the last fit is kept as it is then.
        jobs: Processes that search together. Each imports the script, which needs `if __name__ == "__main__":`.
        search: Names of the options to search, or a dictionary of their values: a list, or the ends `(low, high)` of a
            range, which is searched on a logarithmic scale. None is dim, layers, relation, pairs, half and
            learning_rate, without those that the selector has set, or that do not apply.
        **arguments: The other arguments of `fit`, but `start` and `callback`.

    Returns:
        The best selector, its trial, and all trials.

    Raises:
        DataError: If no trial was finished, another process uses the journal, or errors of `fit`.
        MissingDependencyError: If Optuna is not installed.
        OptionError: If an argument is not allowed, or the journal belongs to other data or other options.
        TrainingError: If a process was killed.

    Examples:
        >>> import tempfile
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=8, n_test=8)
        >>> selector = SubsetSelector(dim=8, max_epochs=1, verbose=0)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     found = tune(selector, *task.train, folder=f"{place}/model", trials=2, search=["layers"])
        >>> len(found.trials), list(found.trials[1].options)
        (2, ['layers'])
    """
    _check_optuna()
    _check(selector, trials, max_time, jobs, arguments)
    selector = SubsetSelector(**selector.get_params())
    if selector.random_state is None:
        selector.set_params(random_state=0)
    selector.validate()
    check_model_folder(folder)
    place = Path(folder).resolve()
    plan = Search(
        selector,
        (sets, subsets),
        arguments,
        search_space(selector, search),
        place.with_name(f"{place.name}.tune"),
        _TRIALS if trials is None and max_time is None else trials,
        None if max_time is None else time.time() + max_time,
        jobs,
    )
    with owned_file(plan.journal.with_name("search")):
        _resume(plan)
        _run(plan)
        return _finish(plan, place)


def _resume(plan: Search) -> None:
    """Check that the journal belongs to this search, and end the trials of processes that died."""
    from optuna.trial import TrialState

    study, own = plan.study(), {"options": _plain(plan.selector), "search": _lists(plan.spaces)}
    known = study.user_attrs.get("search")
    if known is not None and known != own:
        raise OptionError(
            f"{plan.folder} holds a search with other options; name another folder for the model, "
            f"{parameter('folder')}, or delete {plan.folder} to start again"
        )
    study.set_user_attr("search", own)
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)


def _run(plan: Search) -> None:
    if plan.jobs == 1:
        run_trials(plan)
        return
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        # Not a pool, whose idle processes stay for ever if this one is killed.
        for number in range(plan.jobs):
            ours, theirs = context.Pipe(duplex=False)
            workers.append((context.Process(target=_work, args=(plan, number, theirs)), ours))
            workers[-1][0].start()
            theirs.close()
        for _, end in workers:
            error = _wait(end)
            if error is not None:
                raise error
    finally:
        for process, end in workers:
            process.terminate()
            process.join()
            end.close()


def _work(plan: Search, worker: int, end: Connection) -> None:
    """Run trials in a process of their own, and send how they ended."""
    try:
        run_trials(plan, worker)
    except BaseException as error:
        end.send(error)
    else:
        end.send(None)


def _wait(end: Connection) -> BaseException | None:
    """Return the error of a process; None if it ended well."""
    while True:
        try:
            error: BaseException | None = end.recv()
            return error
        except KeyboardInterrupt:
            # The process gets Ctrl-C too, and ends its trial with the best model so far.
            continue
        except EOFError:
            return TrainingError(
                f"a process of the search was killed, perhaps because memory was short; use fewer {parameter('jobs')}, "
                "and start the search again: it goes on"
            )


def _finish(plan: Search, place: Path) -> TuneResult:
    """Save the best model, and remove those of other trials."""
    found = [
        each for each in plan.study().get_trials(deepcopy=False) if is_counted(each) and OPTIONS in each.user_attrs
    ]
    saved = [each for each in found if each.value is not None and MODEL in each.user_attrs]
    if not saved:
        raise DataError(f"no trial was finished; give the search more time, {parameter('max_time')}, or fewer epochs")
    best = max(saved, key=lambda each: (each.value, -each.number))
    phi = plan.selector.phi if isinstance(plan.selector.phi, nn.Module) else None
    selector = load(plan.folder / f"trial-{best.number}", phi=phi, device=plan.selector.device)
    selector.verbose = plan.selector.verbose
    selector.save(place)
    for other in saved:
        if other.number != best.number:
            shutil.rmtree(plan.folder / f"trial-{other.number}", ignore_errors=True)
    told = tuple(map(_trial, found))
    return TuneResult(selector, next(trial for trial in told if trial.number == best.number), told)


def _trial(found: Any) -> Trial:
    end = _ENDS.get(found.state.name, "running")
    # Optuna gives a trial that ended early its last score.
    score = None if end else found.value
    return Trial(found.number, found.user_attrs[OPTIONS], score, found.user_attrs.get(EPOCHS, 0), end)


def _check_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError('a search for options needs Optuna: pip install "setgrad[tune]"') from error


def _check(selector: Any, trials: int | None, max_time: float | None, jobs: int, arguments: Mapping[str, Any]) -> None:
    if not isinstance(selector, SubsetSelector):
        raise OptionError(f"{parameter('selector')} must be a SubsetSelector, not {type(selector).__name__}")
    allowed = [name for name in inspect.signature(SubsetSelector.fit).parameters if name not in _NOT_PASSED]
    for name in arguments:
        if name not in allowed:
            raise OptionError(f"tune has no argument {name!r}; it takes those of fit: {', '.join(allowed)}")
    for name, number in (("trials", trials), ("jobs", jobs)):
        if number is not None and (not isinstance(number, Integral) or isinstance(number, bool) or number < 1):
            raise OptionError(f"{parameter(name)} must be a whole number of at least 1, not {number!r}")
    if max_time is not None and (not isinstance(max_time, Real) or isinstance(max_time, bool) or not max_time > 0):
        raise OptionError(f"{parameter('max_time')} must be a number of seconds above 0, not {max_time!r}")
    if selector.checkpoint is not None:
        raise OptionError(f"the fits of a search cannot share a {parameter('checkpoint')}; leave it out")


def _plain(selector: SubsetSelector) -> str:
    # Text, because options may be modules; the number of threads and the place of the fit may change.
    return repr(SubsetSelector(**{**selector.get_params(), "verbose": 1, "device": None}))


def _lists(spaces: Mapping[str, Any]) -> str:
    return repr(dict(spaces))


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)

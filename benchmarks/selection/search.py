"""Search a grid of hyperparameters: one Optuna study for each task, model and grid, by the validation score alone.

All studies are in one journal file, which any number of processes and machines may use at the same time; a killed
search can be resumed. A trial is one fit of fold (or seed) 0, and its value is the best validation score. Fits repeat
exactly, so no point is tried twice: every command goes through the grid in the same shuffled order and takes points
that are free, which neither Optuna's queue nor its samplers ensure for parallel commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.parallel import Outcome, run_parallel
from benchmarks.lib.records import Record, RunContext
from benchmarks.selection import fits
from benchmarks.selection.fits import Job, describe_options, expected_cost
from benchmarks.selection.models import GRIDS
from setgrad.errors import MissingDependencyError, OptionError

Point = dict[str, Any]

# Longer than any fit. A trial of another machine, whose processes are not visible, is abandoned after this time.
_PATIENCE = 24 * 3600.0
_PAUSE = 2.0


def search(
    jobs: Sequence[Job], context: RunContext, *, trials: int, journal: Path, workers: int, time_limit: float | None
) -> list[Job]:
    """Run every study of these jobs up to `trials` trials, and return the jobs with the best options.

    Running trials of other commands are waited for, so that all commands continue with the same options. A study
    without a finished trial, because time ran out, does not change its jobs.
    """
    if trials < 1:
        raise OptionError(f"a search of {trials} trials finds nothing; use --search 1 or more")
    journal.parent.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys(replace(job, seed=0, tuned="") for job in jobs if job.model in GRIDS))
    studies = {case: _study(journal, case) for case in cases}
    deadline = time.monotonic() + time_limit if time_limit is not None else math.inf
    work = partial(_try_once, context=context, journal=journal, trials=trials)
    waiting: list[str] = []
    while True:
        missing = [case for case in cases for _ in _free(studies[case], _points(case, trials))]
        if missing or not waiting:
            print(f"{len(missing)} trials to run in {journal}", flush=True)
        _run(sorted(missing, key=lambda case: -expected_cost(case)), work, workers=workers, deadline=deadline)
        others = [process for case in cases for process in _workers(studies[case], _points(case, trials))]
        if not others or time.monotonic() >= deadline:
            break
        if others != waiting:
            print(f"waiting for trials of other commands: {', '.join(others)}", flush=True)
        waiting = others
        time.sleep(_PAUSE)
    best = {case: best_point(journal, case) for case in cases}
    return [replace(job, tuned=best.get(replace(job, seed=0, tuned=""), "")) for job in jobs]


def best_point(journal: Path, case: Job) -> str:
    """Return the best point of a study as JSON; empty if there is none."""
    trials = _trials(_study(journal, case), "COMPLETE")
    # Ties are broken by the text, not by which command was faster.
    return max(((trial.value, _text(trial.params)) for trial in trials), default=(0.0, ""))[1]


def _run(missing: Sequence[Job], work: Callable[[Job], Outcome], *, workers: int, deadline: float) -> None:
    for done, (case, outcome) in enumerate(run_parallel(missing, work, workers=workers, deadline=deadline), start=1):
        name = f"{case.task} {case.model}"
        if isinstance(outcome, str):
            print(f"trial of {name} failed: {outcome}", file=sys.stderr, flush=True)
        elif outcome:
            print(
                f"[trial {done}/{len(missing)}] {name}: {outcome['validation']:.2f} with {outcome['tuned']}", flush=True
            )


def _try_once(case: Job, context: RunContext, journal: Path, trials: int) -> Record | str:
    """Run one trial; return an empty record if no point is free. A fit that fails is not repeated."""
    study = _study(journal, case)
    trial = _claim(study, GRIDS[case.model], _points(case, trials))
    if trial is None:
        return {}
    try:
        record = fits.fit(replace(case, tuned=_text(trial.params)), context)
    except Exception as error:
        _end(study, trial, state=_optuna().trial.TrialState.FAIL)
        return f"{type(error).__name__}: {error}"
    _end(study, trial, value=record["validation"])
    return record


def _points(case: Job, trials: int) -> list[Point]:
    """Return the first points of the grid, one for each trial, in an order that all commands share."""
    grid = GRIDS[case.model]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return sorted(points, key=lambda point: _digest(_name(case), _text(point)))[:trials]


def _free(study: Any, points: Sequence[Point]) -> list[Point]:
    """Return the points that have no finished or running trial."""
    taken = [trial.params for trial in _holders(study)]
    return [point for point in points if point not in taken]


def _claim(study: Any, grid: Mapping[str, tuple[Any, ...]], points: Sequence[Point]) -> Any | None:
    """Start a trial of a free point and return it; None if there is none.

    The journal has one order for all: a trial is added together with its point, and is ours unless an older one has the
    same point. If two commands claim a point, the younger one withdraws and tries again.
    """
    optuna = _optuna()
    choices = {name: optuna.distributions.CategoricalDistribution(values) for name, values in grid.items()}
    while free := _free(study, points):
        mark = uuid.uuid4().hex
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=free[0],
                distributions=choices,
                user_attrs={"mark": mark, "process": _process(), "began": time.time()},
            )
        )
        # In the order of the journal: the first is the oldest.
        same = [trial for trial in _holders(study) if trial.params == free[0]]
        own = next(trial for trial in same if trial.user_attrs["mark"] == mark)
        if own is same[0]:
            return own
        _end(study, own, state=optuna.trial.TrialState.PRUNED)
    return None


def _holders(study: Any) -> list[Any]:
    """Return the trials whose points are taken: finished, failed or running. Withdrawn or abandoned ones are "pruned".

    A trial of a killed command must not block its point forever. A journal file has no heartbeats, so a trial is
    abandoned here if its process is gone or its time is over.
    """
    for trial in _trials(study, "RUNNING"):
        if not _alive(trial.user_attrs):
            _end(study, trial, state=_optuna().trial.TrialState.PRUNED)
    return _trials(study, "COMPLETE", "FAIL", "RUNNING")


def _workers(study: Any, points: Sequence[Point]) -> list[str]:
    """Return the processes that run one of these points."""
    return [trial.user_attrs["process"] for trial in _trials(study, "RUNNING") if trial.params in points]


def _end(study: Any, trial: Any, *, state: Any = None, value: float | None = None) -> None:
    # Another command may have abandoned the trial in the meantime.
    with contextlib.suppress(_optuna().exceptions.UpdateFinishedTrialError):
        study.tell(trial.number, value, state=state, skip_if_finished=True)


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _alive(marks: Mapping[str, Any]) -> bool:
    """Return whether a trial may still be running; on another machine only its age tells."""
    host, _, number = marks.get("process", "").rpartition(":")
    if not host or time.time() - marks.get("began", 0.0) > _PATIENCE:
        return False
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _name(case: Job) -> str:
    """Return the name of a study. It depends on all options and the grid, so results for others do not count."""
    parts = (case.task, case.model, case.splits, *(("quick",) if case.quick else ()))
    return ":".join((*parts, _digest(describe_options(case), _text(GRIDS[case.model]))[:12]))


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _study(journal: Path, case: Job) -> Any:
    optuna = _optuna()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    return optuna.create_study(storage=storage, study_name=_name(case), direction="maximize", load_if_exists=True)


def _trials(study: Any, *states: str) -> list[Any]:
    """Return the trials in one of these states, oldest first."""
    known = _optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=tuple(known[state] for state in states))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingDependencyError("--search needs Optuna; install it with: pip install 'setgrad[bench]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

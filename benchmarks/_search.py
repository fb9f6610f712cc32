"""Hyper-parameters by Optuna: one study for each task and model, chosen by the validation score alone.

All studies lie in one journal file, which any number of processes and machines with that file may work on at a time; a
killed search goes on where it stopped. A trial is one fit of fold (or seed) 0, and its value is the best validation
score. A grid that is small enough is tried whole, a larger one by Optuna's sampler.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _fits
from benchmarks._fits import Job, Place, Record, expected_cost, outcomes
from benchmarks._models import GRIDS
from setgrad.errors import MissingDependencyError


def search(
    jobs: Sequence[Job], place: Place, *, trials: int, journal: Path, workers: int, time_limit: float | None
) -> list[Job]:
    """Bring every study of these jobs to `trials` trials, and return the jobs with the best options found.

    A study without any finished trial, because time ran out, leaves its jobs as they are.
    """
    journal.parent.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys(replace(job, seed=0, tuned="") for job in jobs if job.model in GRIDS))
    missing: list[Job] = []
    for case in cases:
        missing += [case] * _prepare(_study(journal, case, trials), GRIDS[case.model], trials)
    missing.sort(key=lambda case: -expected_cost(case))
    print(f"{len(missing)} trials to go in {journal}", flush=True)
    ends = time.monotonic() + time_limit if time_limit is not None else math.inf
    work = partial(_try_once, place=place, journal=journal, trials=trials)
    for done, (case, outcome) in enumerate(outcomes(missing, work, workers=workers, ends=ends), start=1):
        name = f"{case.task} {case.model}"
        if isinstance(outcome, str):
            print(f"trial of {name} failed: {outcome}", file=sys.stderr, flush=True)
        else:
            print(
                f"[trial {done}/{len(missing)}] {name}: {outcome['validation']:.2f} with {outcome['tuned']}", flush=True
            )
    found = {case: best_point(journal, case) for case in cases}
    return [replace(job, tuned=found.get(replace(job, seed=0, tuned=""), "")) for job in jobs]


def best_point(journal: Path, case: Job) -> str:
    """The best point of a study in JSON; empty if there is none."""
    trials = _trials(_study(journal, case, 1), "COMPLETE")
    if not trials:
        return ""
    return json.dumps(max(trials, key=lambda trial: trial.value).params, sort_keys=True)


def _try_once(case: Job, place: Place, journal: Path, trials: int) -> Record | str:
    """One trial. A fit that fails is noted in the study and not repeated."""
    study = _study(journal, case, trials)
    trial = study.ask()
    trial.set_user_attr("process", _process())
    grid = GRIDS[case.model]
    point = {name: trial.suggest_categorical(name, list(values)) for name, values in grid.items()}
    try:
        record = _fits.fit(replace(case, tuned=json.dumps(point, sort_keys=True)), place)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        trial.set_user_attr("error", message)
        study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        return message
    study.tell(trial, record["validation"])
    return record


def _prepare(study: Any, grid: dict[str, tuple[Any, ...]], trials: int) -> int:
    """Give up trials whose process has died, queue the grid if all of it is to be tried, and count what is to do."""
    running = []
    for trial in _trials(study, "RUNNING"):
        if _alive(trial.user_attrs.get("process", "")):
            running.append(trial)
        else:
            study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
    failed = [trial for trial in _trials(study, "FAIL") if "error" in trial.user_attrs]
    taken = [*_trials(study, "COMPLETE"), *failed, *running]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if trials >= len(points):
        # A trial that waits holds its point where Optuna keeps what was asked for.
        waiting = [trial.system_attrs.get("fixed_params") for trial in _trials(study, "WAITING")]
        for point in points:
            if point not in waiting and point not in [trial.params for trial in taken]:
                study.enqueue_trial(point)
    return max(0, min(trials, len(points)) - len(taken))


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _alive(process: str) -> bool:
    """Whether the process of a trial may still be at work; on another machine there is no way to know."""
    host, _, number = process.rpartition(":")
    if host != socket.gethostname():
        return bool(host)
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _study(journal: Path, case: Job, trials: int) -> Any:
    optuna = _optuna()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    name = ":".join((case.task, case.model, case.splits, *(("quick",) if case.quick else ())))
    # Without a seed, or all processes would suggest the same points.
    sampler = optuna.samplers.TPESampler(n_startup_trials=max(4, trials // 3), constant_liar=True)
    return optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
    )


def _trials(study: Any, state: str) -> list[Any]:
    return study.get_trials(deepcopy=False, states=(_optuna().trial.TrialState[state],))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingDependencyError("--search needs Optuna; install it with: pip install 'setgrad[bench]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

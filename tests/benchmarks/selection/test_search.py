"""A search resumes, shares its studies, tries all of a small grid, and never uses the test split."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.records import Record, RunContext
from benchmarks.selection import fits, models
from benchmarks.selection import search as search_module
from benchmarks.selection.fits import Job
from benchmarks.selection.models import GRIDS, options_of
from benchmarks.selection.search import _alive, _claim, _free, _points, _process, _study, best_point, search
from setgrad.errors import OptionError

pytest.importorskip("optuna")

JOBS = [Job("moons", "diffmf", seed, True, "folds") for seed in (0, 1)]
GRID_SIZE = 8


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Replace the fit by a known function of the point, with a test score that misleads."""
    tried: list[dict[str, float]] = []

    def fit(job: Job, context: RunContext) -> Record:
        point = json.loads(job.tuned)
        tried.append(point)
        if point["learning_rate"] == 1e-2:
            raise RuntimeError("diverged")
        good = 10.0 * (point["learning_rate"] == 1e-3) + point["rho_layers"]
        return {"validation": good, "true_size": 100 - good, "tuned": job.tuned}

    monkeypatch.setattr(fits, "fit", fit)
    return tried


def _run(journal: Path, trials: int, limit: float | None = None) -> list[Job]:
    return search(JOBS, RunContext(), trials=trials, journal=journal, workers=1, time_limit=limit)


def _distinct(points: Sequence[dict[str, Any]]) -> int:
    return len({json.dumps(point, sort_keys=True) for point in points})


def test_a_small_grid_is_searched_completely_by_validation(
    tmp_path: Path, fake: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = _run(tmp_path / "s" / "j.log", 50)
    assert len(fake) == _distinct(fake) == GRID_SIZE
    best = json.dumps({"learning_rate": 1e-3, "rho_layers": 3}, sort_keys=True)
    # Both folds get the best point of the first.
    assert [job.tuned for job in found] == [best, best]
    assert "diverged" in capsys.readouterr().err
    # All is done now, failures too.
    assert _run(tmp_path / "s" / "j.log", 50) == found
    assert len(fake) == GRID_SIZE


def test_fewer_trials_than_points_and_more_later(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    for trials in (2, 5, 7):
        _run(tmp_path / "j.log", trials)
        assert len(fake) == _distinct(fake) == trials


def test_equal_scores_are_decided_by_the_points_and_not_by_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "fit", lambda job, place: {"validation": 1.0, "tuned": job.tuned})
    found = []
    for name, order in (("a", 1), ("b", -1)):
        monkeypatch.setattr(search_module, "_points", lambda case, trials, order=order: _points(case, trials)[::order])
        found.append(_run(tmp_path / name, GRID_SIZE))
    assert found[0] == found[1]


def test_results_for_other_options_or_grids_do_not_count(
    tmp_path: Path, fake: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path / "j.log", 3)
    monkeypatch.setitem(models.MODELS, "diffmf", {**models.MODELS["diffmf"], "batch_size": 64})
    assert best_point(tmp_path / "j.log", JOBS[0]) == ""
    _run(tmp_path / "j.log", 3)
    assert len(fake) == 6
    monkeypatch.setitem(GRIDS, "diffmf", {**GRIDS["diffmf"], "rho_layers": (3, 4)})
    _run(tmp_path / "j.log", 3)
    assert len(fake) == 9
    assert all(point["rho_layers"] > 2 for point in fake[6:])


@pytest.mark.parametrize("trials", [5, GRID_SIZE])
def test_parallel_commands_share_the_work(
    tmp_path: Path, fake: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    quick, together = fits.fit, threading.Barrier(3)

    def slow(job: Job, context: RunContext) -> Record:
        time.sleep(0.1)
        return quick(job, context)

    def command(_: int) -> list[Job]:
        together.wait()
        return _run(tmp_path / "j.log", trials)

    monkeypatch.setattr(fits, "fit", slow)
    monkeypatch.setattr(search_module, "_PAUSE", 0.02)
    with ThreadPoolExecutor(together.parties) as pool:
        found = list(pool.map(command, range(together.parties)))
    assert len(fake) == _distinct(fake) == trials
    assert found[0] == found[1] == found[2]
    assert found[0][0].tuned == best_point(tmp_path / "j.log", JOBS[0])


def test_trials_of_others_are_waited_for(
    tmp_path: Path, fake: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study(tmp_path / "j.log", JOBS[0])
    theirs = _claim(study, GRIDS["diffmf"], _points(JOBS[0], GRID_SIZE))
    monkeypatch.setattr(time, "sleep", lambda pause: search_module._end(study, theirs, value=99.0))
    found = _run(tmp_path / "j.log", GRID_SIZE)
    assert json.loads(found[0].tuned) == theirs.params
    assert theirs.params not in fake
    assert len(fake) == _distinct(fake) == GRID_SIZE - 1


def test_of_two_claims_of_a_point_the_younger_withdraws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = (_study(tmp_path / "j.log", JOBS[0]) for _ in range(2))
    points = _points(JOBS[0], 2)
    rivals: list[Any] = []

    def interrupted(study: Any, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        free = _free(study, points)
        if study is mine and not rivals:
            rivals.append(_claim(others, GRIDS["diffmf"], points))
        return free

    monkeypatch.setattr(search_module, "_free", interrupted)
    trial = _claim(mine, GRIDS["diffmf"], points)
    assert [rivals[0].params, trial.params] == points
    assert _claim(mine, GRIDS["diffmf"], points) is None
    assert [trial.state.name for trial in mine.trials] == ["RUNNING", "PRUNED", "RUNNING"]


@pytest.mark.parametrize("process, age", [("", 0), ("{host}:999999999", 0), ("elsewhere.example:1", 1e6)])
def test_an_abandoned_trial_is_tried_again(
    tmp_path: Path, fake: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch, process: str, age: float
) -> None:
    began = time.time() - age
    with monkeypatch.context() as then:
        then.setattr(search_module, "_process", lambda: process.format(host=_process().rpartition(":")[0]))
        then.setattr(search_module, "_alive", lambda marks: True)
        then.setattr(time, "time", lambda: began)
        left = _claim(_study(tmp_path / "j.log", JOBS[0]), GRIDS["diffmf"], _points(JOBS[0], 50))
    # With a limit, because a search that waits for the trial would never end.
    _run(tmp_path / "j.log", 50, limit=20)
    assert left.params in fake
    assert len(fake) == _distinct(fake) == GRID_SIZE


def test_a_trial_abandoned_too_early_has_no_effect(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    study = _study(tmp_path / "j.log", JOBS[0])
    left = _claim(study, GRIDS["diffmf"], _points(JOBS[0], 1))
    study.tell(left.number, state=search_module._optuna().trial.TrialState.PRUNED)
    search_module._end(study, left, value=99.0)
    assert best_point(tmp_path / "j.log", JOBS[0]) == ""


def test_a_trial_may_be_running() -> None:
    now = time.time()
    assert _alive({"process": _process(), "began": now})
    assert _alive({"process": "elsewhere.example:1", "began": now})
    assert not _alive({"process": "elsewhere.example:1", "began": now - 1e6})
    assert not _alive({"process": _process()})
    assert not _alive({})


def test_the_scale_of_idiffmf_c_is_searched_too() -> None:
    points = _points(Job("moons", "idiffmf-c", 0), 100)
    scales = {options_of("idiffmf-c", "moons", tuned=point)["scale"] for point in points}
    assert (len(points), scales) == (24, {100.0, 1000.0, 10000.0})


def test_without_time_options_do_not_change(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    assert _run(tmp_path / "j.log", 3, limit=0) == JOBS
    assert fake == []
    assert best_point(tmp_path / "j.log", JOBS[0]) == ""


def test_a_search_needs_trials(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--search 1"):
        _run(tmp_path / "j.log", -1)


def test_baselines_have_nothing_to_search(tmp_path: Path) -> None:
    jobs = [Job("moons", "chance", 0, True, "folds")]
    assert search(jobs, RunContext(), trials=3, journal=tmp_path / "j.log", workers=1, time_limit=None) == jobs


def test_two_processes_work_on_one_study(tmp_path: Path) -> None:
    jobs = [Job("moons", "direct", 0, True, "folds")]
    found = search(jobs, RunContext("cpu"), trials=3, journal=tmp_path / "j.log", workers=2, time_limit=None)
    assert set(json.loads(found[0].tuned)) == {"learning_rate", "weight_decay", "dim"}

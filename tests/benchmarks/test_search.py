"""A search resumes, shares its studies, tries a small grid whole, and never looks at the test split."""

import json
from pathlib import Path

import pytest

from benchmarks import _fits
from benchmarks._fits import Job, Place, Record
from benchmarks._models import GRIDS
from benchmarks._search import _alive, _process, _study, best_point, search

pytest.importorskip("optuna")

JOBS = [Job("moons", "diffmf", seed, True, "folds") for seed in (0, 1)]
GRID_SIZE = 8


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Replace the fit by a known function of the point, with a test score that misleads."""
    asked: list[dict[str, float]] = []

    def fit(job: Job, place: Place) -> Record:
        point = json.loads(job.tuned)
        asked.append(point)
        if point["learning_rate"] == 1e-2:
            raise RuntimeError("diverged")
        good = 10.0 * (point["learning_rate"] == 1e-3) + point["rho_layers"]
        return {"validation": good, "true_size": 100 - good, "tuned": job.tuned}

    monkeypatch.setattr(_fits, "fit", fit)
    return asked


def _search(journal: Path, trials: int, limit: float | None = None) -> list[Job]:
    return search(JOBS, Place(), trials=trials, journal=journal, workers=1, time_limit=limit)


def test_a_small_grid_is_tried_whole_and_validation_decides(
    tmp_path: Path, fake: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = _search(tmp_path / "s" / "j.log", 50)
    assert len(fake) == len({json.dumps(point, sort_keys=True) for point in fake}) == GRID_SIZE
    best = json.dumps({"learning_rate": 1e-3, "rho_layers": 3}, sort_keys=True)
    # Both folds get what was found on the first.
    assert [job.tuned for job in found] == [best, best]
    assert "diverged" in capsys.readouterr().err
    # All is done now, failures too.
    assert _search(tmp_path / "s" / "j.log", 50) == found
    assert len(fake) == GRID_SIZE


def test_fewer_trials_than_points_and_more_later(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    _search(tmp_path / "j.log", 2)
    assert len(fake) == 2
    _search(tmp_path / "j.log", 5)
    assert len(fake) == 5


def test_a_trial_whose_process_died_is_tried_again(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    journal = tmp_path / "j.log"
    for process in ("", _process().rpartition(":")[0] + ":999999999"):
        trial = _study(journal, JOBS[0], 50).ask()
        for name, values in GRIDS["diffmf"].items():
            trial.suggest_categorical(name, list(values))
        if process:
            trial.set_user_attr("process", process)
    _search(journal, 50)
    assert len({json.dumps(point, sort_keys=True) for point in fake}) == GRID_SIZE


def test_only_processes_of_this_machine_can_be_found_dead() -> None:
    assert _alive(_process())
    assert _alive("elsewhere.example:1")
    assert not _alive("")


def test_without_time_the_options_stay(tmp_path: Path, fake: list[dict[str, float]]) -> None:
    assert _search(tmp_path / "j.log", 3, limit=0) == JOBS
    assert fake == []
    assert best_point(tmp_path / "j.log", JOBS[0]) == ""


def test_baselines_have_nothing_to_search(tmp_path: Path) -> None:
    jobs = [Job("moons", "chance", 0, True, "folds")]
    assert search(jobs, Place(), trials=3, journal=tmp_path / "j.log", workers=1, time_limit=None) == jobs


def test_two_processes_work_on_one_study(tmp_path: Path) -> None:
    jobs = [Job("moons", "direct", 0, True, "folds")]
    found = search(jobs, Place("cpu"), trials=3, journal=tmp_path / "j.log", workers=2, time_limit=None)
    assert set(json.loads(found[0].tuned)) == {"learning_rate", "weight_decay", "width"}

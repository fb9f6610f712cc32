"""Fits resume, stop at the limit, survive failures, and give the same numbers in a worker."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lib.records import Place, Record, current_commit, read_records
from benchmarks.selection import fits
from benchmarks.selection.fits import Job, checkpoint_of, describe_options, run_jobs, unfinished
from benchmarks.selection.models import MODELS
from setgrad.selector._train import Trainer

JOBS = [Job("moons", model, seed, quick=True) for model in ("diffmf", "default", "direct") for seed in (0, 1)]


def _record(job: Job) -> Record:
    return {
        "task": job.task,
        "model": job.model,
        "seed": job.seed,
        "quick": job.quick,
        "splits": job.splits,
        "options": describe_options(job),
        "true_size": 50.0,
        "own_size": 40.0,
        "seconds": 1.0,
        "best_epoch": 1,
    }


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Replace the fit by one that only notes what it was asked for, and fails for seed 1 of direct."""
    asked: list[Job] = []

    def fit(job: Job, place: Place) -> Record:
        asked.append(job)
        if (job.model, job.seed) == ("direct", 1):
            raise RuntimeError("out of luck")
        return _record(job)

    monkeypatch.setattr(fits, "fit", fit)
    return asked


@pytest.mark.parametrize("model", [*MODELS, "chance"])
def test_a_fit_records_both_scores_and_how_it_went(model: str) -> None:
    record = fits.fit(Job("moons", model, 0, True, "folds"), Place(device="cpu", commit="abc", command="do it"))
    assert 0 <= record["true_size"] <= 100
    assert 0 <= record["own_size"] <= 100
    assert 0 <= record["validation"] <= 100
    assert (record["splits"], record["commit"], record["command"]) == ("folds", "abc", "do it")
    assert json.loads(json.dumps(record)) == record
    if model in MODELS:
        assert record["epochs"] == 2
        assert record["device"].startswith("cpu: ")
        assert record["peak_memory"] > 10_000_000
        assert 0 <= record["settled"] <= 1


def test_contenders_differ_as_they_should() -> None:
    options = {job.model: json.loads(describe_options(job)) for job in JOBS}
    assert options["diffmf"]["phi"] == "paper"
    assert options["direct"]["method"] == "direct"
    assert {**options["direct"], "method": options["default"]["method"]} == options["default"]


def test_a_point_of_the_grid_is_another_fit() -> None:
    plain, tuned = (Job("moons", "diffmf", 0, True, "folds", text) for text in ("", '{"rho_layers": 3}'))
    assert json.loads(describe_options(tuned))["hidden"] == [16, 16, 16]
    assert unfinished([plain, tuned], [_record(plain)]) == [tuned]


def test_a_killed_fit_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, place = JOBS[0], Place(device="cpu", checkpoints=tmp_path)
    kept = checkpoint_of(job, place)
    assert kept is not None and kept.parent == tmp_path
    assert kept not in {checkpoint_of(other, place) for other in (replace(job, seed=1), replace(job, quick=False))}
    plain = fits.fit(job, replace(place, checkpoints=None))
    epoch = Trainer._epoch

    def killed(trainer: Trainer) -> dict[str, float]:
        if trainer.progress.epoch == 1:
            raise KeyboardInterrupt
        return epoch(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            fits.fit(job, place)
    assert kept.exists()
    epochs = []
    monkeypatch.setattr(Trainer, "_epoch", lambda trainer: epochs.append(trainer.progress.epoch) or epoch(trainer))
    file = tmp_path / "fits.jsonl"
    assert run_jobs([job], place, workers=1, results=file, time_limit=None) == 0
    (record,) = read_records(file)
    assert epochs == [1]
    assert {name: record[name] for name in ("true_size", "own_size", "epochs")} == {
        name: plain[name] for name in ("true_size", "own_size", "epochs")
    }
    assert record["seconds"] > 0
    assert not kept.exists()


def test_the_commit_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETGRAD_COMMIT", "f00d")
    assert current_commit() == "f00d"


def test_killed_run_goes_on_where_it_stopped(
    tmp_path: Path, fake: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "fits.jsonl"
    run_jobs(JOBS[:2], Place(), workers=1, results=file, time_limit=None)
    with file.open("a") as half:
        half.write('{"task": "moo')
    left = unfinished(JOBS, read_records(file))
    assert left == JOBS[2:]
    assert "damaged line" in capsys.readouterr().err
    assert run_jobs(left, Place(), workers=1, results=file, time_limit=None) == 1
    assert fake == JOBS
    # The one that failed is tried again next time, and the half line does no harm.
    assert unfinished(JOBS, read_records(file)) == [JOBS[-1]]
    assert "out of luck" in capsys.readouterr().err


def test_results_of_other_options_do_not_count() -> None:
    record = _record(JOBS[0])
    assert unfinished(JOBS[:1], [record]) == []
    assert unfinished(JOBS[:1], [{**record, "options": "{}"}]) == JOBS[:1]
    assert unfinished(JOBS[:1], [{**record, "quick": False}]) == JOBS[:1]
    assert unfinished(JOBS[:1], [{**record, "splits": "folds"}]) == JOBS[:1]


def test_no_fit_starts_after_the_limit(tmp_path: Path, fake: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_jobs(JOBS, Place(), workers=1, results=tmp_path / "fits.jsonl", time_limit=0) == 0
    assert fake == []
    assert "6 of 6 fits are still to be done" in capsys.readouterr().out


def test_workers_find_the_same_scores(tmp_path: Path) -> None:
    jobs = [Job("moons", "diffmf", 0, quick=True), Job("nowhere", "diffmf", 0, quick=True)]
    here = fits.fit(jobs[0], Place(device="cpu"))
    file = tmp_path / "fits.jsonl"
    assert run_jobs(jobs, Place(device="cpu"), workers=2, results=file, time_limit=None) == 1
    assert [record["true_size"] for record in read_records(file)] == [pytest.approx(here["true_size"])]

"""Fits resume, stop at the time limit, survive failures, and give the same numbers in a worker process."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.records import Record, RunContext, current_commit, read_records
from benchmarks.lib.trials import answers
from benchmarks.selection import fits
from benchmarks.selection.fits import Job, checkpoint_of, describe_options, settings_of
from benchmarks.selection.models import MODELS
from benchmarks.selection.table2 import run_jobs
from setgrad.selector._trainer import Trainer

JOBS = [Job("moons", model, seed, quick=True) for model in ("diffmf", "conditional", "direct") for seed in (0, 1)]


def _record(job: Job) -> Record:
    return {**settings_of(job), "true_size": 50.0, "own_size": 40.0, "seconds": 1.0, "summary": "fitted"}


def _options(**changes: Any) -> argparse.Namespace:
    usual = {"device": "cpu", "data_dir": None, "jobs": 1, "time_limit": None, "checkpoints": None}
    return argparse.Namespace(**usual | changes)


def _missing(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    known = answers(jobs, records, settings=settings_of)
    return [job for job in jobs if job not in known]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Replace the fit by one that only notes its jobs, and fails for seed 1 of direct."""
    jobs: list[Job] = []

    def fit(job: Job, context: RunContext) -> Record:
        jobs.append(job)
        if (job.model, job.seed) == ("direct", 1):
            raise RuntimeError("out of luck")
        return _record(job)

    monkeypatch.setattr(fits, "fit", fit)
    return jobs


@pytest.mark.parametrize("model", [*MODELS, "chance"])
def test_a_fit_records_both_scores_and_its_cost(model: str) -> None:
    record = fits.fit(Job("moons", model, 0, True, "folds"), RunContext(device="cpu"))
    assert 0 <= record["true_size"] <= 100
    assert 0 <= record["own_size"] <= 100
    assert 0 <= record["validation"] <= 100
    assert json.loads(json.dumps(record)) == record
    if model in MODELS:
        assert record["epochs"] == 2
        assert record["device"].startswith("cpu: ")
        assert record["peak_memory"] > 10_000_000
        assert 0 <= record["share_converged"] <= 1


def test_models_have_different_options() -> None:
    options = {job.model: json.loads(describe_options(job)) for job in JOBS}
    assert options["diffmf"]["phi"] == "paper"
    assert options["direct"]["method"] == "direct"
    assert {**options["direct"], "method": "conditional", "batch_size": None} == options["conditional"]


def test_a_point_of_the_grid_is_another_fit() -> None:
    plain, tuned = (Job("moons", "diffmf", 0, True, "folds", text) for text in ("", '{"rho_layers": 3}'))
    assert json.loads(describe_options(tuned))["hidden"] == [16, 16, 16]
    assert _missing([plain, tuned], [_record(plain)]) == [tuned]


def test_a_killed_fit_resumes_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, context = JOBS[0], RunContext(device="cpu", checkpoints=tmp_path)
    saved = checkpoint_of(job, tmp_path)
    assert saved not in {checkpoint_of(other, tmp_path) for other in (replace(job, seed=1), replace(job, quick=False))}
    plain = fits.fit(job, replace(context, checkpoints=None))
    epoch = Trainer.run_epoch

    def killed(trainer: Trainer) -> dict[str, float]:
        if trainer.progress.epoch == 1:
            raise KeyboardInterrupt
        return epoch(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            fits.fit(job, context)
    assert saved.exists()
    epochs: list[int] = []

    def noted(trainer: Trainer) -> dict[str, float]:
        epochs.append(trainer.progress.epoch)
        return epoch(trainer)

    monkeypatch.setattr(Trainer, "run_epoch", noted)
    file = tmp_path / "fits.jsonl"
    assert run_jobs([job], _options(checkpoints=tmp_path), file) == 0
    (record,) = read_records(file)
    assert epochs == [1]
    assert {name: record[name] for name in ("true_size", "own_size", "epochs")} == {
        name: plain[name] for name in ("true_size", "own_size", "epochs")
    }
    assert record["seconds"] > 0
    assert (record["splits"], record["command"]) == (job.splits, "python -m benchmarks ")
    assert not saved.exists()


def test_the_environment_may_name_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETGRAD_COMMIT", "f00d")
    assert current_commit() == "f00d"


def test_a_killed_run_resumes(tmp_path: Path, fake: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "fits.jsonl"
    run_jobs(JOBS[:2], _options(), file)
    with file.open("a") as half:
        half.write('{"task": "moo')
    left = _missing(JOBS, read_records(file))
    assert left == JOBS[2:]
    assert "damaged line" in capsys.readouterr().err
    assert run_jobs(JOBS, _options(), file) == 1
    assert fake == JOBS
    # The failed one is tried again next time, and the half line is ignored.
    assert _missing(JOBS, read_records(file)) == [JOBS[-1]]
    assert "out of luck" in capsys.readouterr().err


def test_results_of_other_options_do_not_count() -> None:
    record = _record(JOBS[0])
    assert _missing(JOBS[:1], [record]) == []
    assert _missing(JOBS[:1], [{**record, "options": "{}"}]) == JOBS[:1]
    assert _missing(JOBS[:1], [{**record, "quick": False}]) == JOBS[:1]
    assert _missing(JOBS[:1], [{**record, "splits": "folds"}]) == JOBS[:1]


def test_no_fit_starts_after_the_limit(tmp_path: Path, fake: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_jobs(JOBS, _options(time_limit=0.0), tmp_path / "fits.jsonl") == 0
    assert fake == []
    assert "6 trials are not done" in capsys.readouterr().out


def test_workers_find_the_same_scores(tmp_path: Path) -> None:
    jobs = [Job("moons", "diffmf", 0, quick=True), Job("nowhere", "diffmf", 0, quick=True)]
    expected = fits.fit(jobs[0], RunContext(device="cpu"))
    file = tmp_path / "fits.jsonl"
    assert run_jobs(jobs, _options(jobs=2), file) == 1
    assert [record["true_size"] for record in read_records(file)] == [pytest.approx(expected["true_size"])]

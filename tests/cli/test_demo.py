"""The demo on a few sets: its numbers are correct, and its files exist."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import setgrad as sg

QUICK = ["--sets", "12,6,8", "--dim", "8", "--heads", "1", "--hidden", "16", "--max-epochs", "1", "--device", "cpu"]


def test_demo_as_json(run: Callable, tmp_path: Path) -> None:
    result = run("demo", "--output", tmp_path / "d", *QUICK, "--json")
    assert result.code == 0
    moons, digits = result.data["tasks"]
    assert (moons["task"], digits["task"]) == ("moons", "digits")
    assert (moons["paper_jaccard_true_size"], moons["limit"]) == (0.5897, 1.0)
    assert (digits["paper_jaccard_true_size"], digits["limit"]) == (None, None)
    task = sg.datasets.load_task("moons", n_train=12, n_validation=6, n_test=8)
    selector = sg.load(moons["model"], device="cpu")
    assert moons["jaccard"] == selector.score(*task.test)
    assert moons["jaccard_true_size"] == selector.score_true_size(*task.test)
    page = Path(result.data["report"]).read_text(encoding="utf-8")
    # For each task two curves, two charts and six sets.
    assert page.count("<img") == 2 * (2 + 2 + 6)
    # With --json there is no progress bar, only one line for each task.
    assert result.err.splitlines() == [
        "moons: 12 sets to learn from, 8 to test on",
        "digits: 12 sets to learn from, 8 to test on",
    ]


def test_demo_as_text(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    result = run("demo", "--tasks", "gaussian,gaussian", "--output", tmp_path, *QUICK)
    assert result.code == 0
    assert "fitting" in result.err
    assert "fitting" not in result.out
    assert result.out.count("gaussian ") == 1
    task = sg.datasets.load_task("gaussian", n_train=12, n_validation=6, n_test=8)
    row = next(line for line in result.out.splitlines() if line.split()[:1] == ["gaussian"]).split()
    selector = sg.load(tmp_path / "gaussian", device="cpu")
    expected = [
        selector.score_true_size(*task.test),
        selector.score(*task.test),
        0.9103,
        sg.datasets.bayes_jaccard(task.test),
    ]
    assert row[1:5] == [f"{100 * score:.2f}" for score in expected]
    assert str(tmp_path / "report.html") in result.out
    assert str(tmp_path / "gaussian") in result.out


def test_a_repeated_demo_gives_the_same_result(run: Callable, tmp_path: Path) -> None:
    words = ["demo", "--tasks", "moons", "--output", tmp_path, *QUICK, "--json"]
    first, second = run(*words).data["tasks"][0], run(*words).data["tasks"][0]
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_demo_model_works_with_the_tables_of_the_task(run: Callable, tmp_path: Path) -> None:
    assert run("demo", "--tasks", "digits", "--output", tmp_path / "d", *QUICK).code == 0
    written = run("datasets", "digits", "-o", tmp_path / "t", "--json").data["tables"]
    result = run("evaluate", tmp_path / "d" / "digits", written[1], "--json", "--device", "cpu").data
    task = sg.datasets.load_task("digits")
    assert result["jaccard_true_size"] == sg.load(tmp_path / "d" / "digits", device="cpu").score_true_size(
        *task.validation
    )


def test_every_task_has_its_own_checkpoint(run: Callable, tmp_path: Path) -> None:
    words = ["--tasks", "moons,gaussian", "--output", tmp_path / "d", "--checkpoint", tmp_path / "run.ckpt"]
    assert run("demo", *words, *QUICK).code == 0
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"run-moons.ckpt", "run-gaussian.ckpt"}


def test_demo_checks_its_folders_before_the_fit(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "moons").mkdir()
    (tmp_path / "moons" / "photo.png").touch()
    result = run("demo", "--tasks", "moons", "--output", tmp_path, *QUICK)
    assert result.code == 1
    assert "not a setgrad model" in result.err
    assert "sets to learn from" not in result.err


def test_demo_without_matplotlib_stops_before_the_fit(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--output", tmp_path / "d", *QUICK)
    assert result.code == 1
    assert result.err == 'error: a report needs Matplotlib to draw: pip install "setgrad[demo]"\n'

"""`setgrad tune`, from a table to the best model."""

from collections.abc import Callable
from pathlib import Path

import pytest

import setgrad as sg
from tests.cli.conftest import table_rows, write_rows

pytest.importorskip("optuna", reason='the search needs Optuna: pip install "setgrad[tune]"')

QUICK = ["--max-epochs", "2", "--hidden", "8", "--verbose", "0", "--device", "cpu"]


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    table = write_rows(tmp_path / "train.csv", table_rows(0, sets=30))
    return ["tune", table, "--set-id", "basket", "--item-id", "product", "--chosen", "bought", "-o", tmp_path / "model"]


def test_it_saves_the_best_model_and_goes_on(run: Callable, words: list[object], tmp_path: Path) -> None:
    search = ["--search", "layers,half", "--ignore", "load", *QUICK]
    first = run(*words, "--trials", "2", *search)
    assert first.code == 0, first.err
    assert "best of 2 trials" in first.out
    again = run(*words, "--trials", "3", "--json", *search).data
    assert [trial["number"] for trial in again["trials"]] == [0, 1, 2]
    assert again["best"]["score"] == max(trial["score"] for trial in again["trials"])
    model = sg.load(tmp_path / "model")
    assert model.table_.features == ("price", "stars")
    assert model.layers == again["best"]["options"].get("layers", 2)
    assert run("evaluate", tmp_path / "model", tmp_path / "train.csv").code == 0


def test_it_tells_that_options_do_not_change_trees(run: Callable, words: list[object], tmp_path: Path) -> None:
    quick = ["--trials", "1", "--search", "layers", "--ignore", "load", *QUICK, "--verbose", "1"]
    done = run(*words, "--trees", *quick)
    assert "score" in done.err and "by boosted trees alone" in done.err
    assert "boosted trees alone are best" in done.out
    assert sg.load(tmp_path / "model").best_epoch_ == 0
    assert "trees" not in run(*words[:-1], tmp_path / "other", *quick).out


def test_a_search_needs_optuna(run: Callable, words: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    result = run(*words, *QUICK)
    assert result.code == 1 and 'pip install "setgrad[tune]"' in result.err


def test_options_of_one_fit_are_no_options_of_a_search(run: Callable, words: list[object]) -> None:
    assert run(*words, "--checkpoint", "run.ckpt").code == 2
    assert "--trials must be" in run(*words, "--trials", "0", *QUICK).err

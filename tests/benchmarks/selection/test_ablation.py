"""The ablation: variants differ from the default in one thing, are paired with it by fold, and run at a tiny size."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.lib.records import Record, RunContext
from benchmarks.selection import ablation_fit
from benchmarks.selection.ablation import CATEGORIES, differences, mean_difference, plan, show, verdicts
from benchmarks.selection.ablation_fit import CONTENDERS, DEFAULT, TRANSFER, Trial, attempt, make_trial, untrained
from setgrad import SubsetSelector
from setgrad.functions import DeepSetFunction
from setgrad.selector import SelectorOptions
from setgrad.selector._defaults import RELATION
from tests.benchmarks.helpers import Seeded


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two categories of 40 products; customers choose from the first or from the second half of them."""
    top = tmp_path_factory.mktemp("data")
    folder = top / "amazon_baby_registry"
    folder.mkdir()
    rng = np.random.default_rng(0)
    vectors = {name: rng.standard_normal((40, 6)).astype(np.float32) for name in ("feeding", "safety")}
    np.savez(folder / "minilm_l6_v2_item_embeddings.npz", feeding=vectors["feeding"], safety=vectors["safety"])
    for name in vectors:
        lists = [rng.choice(20, 4, replace=False) + 1 + 20 * rng.integers(2) for _ in range(60)]
        text = "\n".join(",".join(map(str, chosen)) for chosen in lists)
        (folder / f"1_100_100_100_{name}_regs.csv").write_text(text + "\n")
    return top


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["ablation", *arguments])


def _record(task: str, model: str, seed: int, score: float) -> Record:
    origin = {"command": "c", "commit": "a", "device": "cpu", "torch": "2"}
    return {"task": f"amazon:{task}:farthest", "model": model, "seed": seed, "start": "", "true_size": score, **origin}


def test_variants_change_different_options_of_the_default() -> None:
    params = SubsetSelector().get_params()
    for model, changes in CONTENDERS.items():
        assert all(params[name] != value for name, value in changes.items()), model
    trials = [make_trial("toys", model, 0, quick=False) for model in CONTENDERS]
    assert len({(trial.options, trial.start) for trial in trials}) == len(trials)


def test_one_sample_predicts_with_as_many_as_the_default() -> None:
    default, single = (SelectorOptions(method="unrolled", **CONTENDERS[name]) for name in (DEFAULT, "one sample"))
    assert default.resolved_predict_samples == single.resolved_predict_samples


def test_no_skip_is_the_default_network_without_the_modular_term(seeded: Seeded) -> None:
    with seeded(0):
        selector = untrained(make_trial("safety", "no skip", 0, quick=True), (6,), 24, "cpu")
        assert not isinstance(selector.phi, str) and selector.relation == RELATION
        made = [DeepSetFunction(6, phi, dim=16, hidden=(16,)) for phi in (selector.phi, "context")]
    assert made[0].skip is None and made[1].skip is not None
    phi = [sum(p.numel() for p in function.phi.parameters()) for function in made]
    assert phi[0] == phi[1]


def test_with_a_single_step_one_step_is_the_default(registries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the contender takes five."""
    monkeypatch.setitem(CONTENDERS, "one step", {"method": "one-step"})
    context = RunContext("cpu", str(registries))
    scores = [attempt(make_trial("safety", model, 0, quick=True), context) for model in (DEFAULT, "one step")]
    assert scores[0] == scores[1]


def test_transfer_starts_from_the_largest_other_category(registries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[SubsetSelector | None] = []
    fit = SubsetSelector.fit

    def noted(self: SubsetSelector, *data: Any, start: SubsetSelector | None = None, **more: Any) -> object:
        starts.append(start)
        return fit(self, *data, start=start, **more)

    monkeypatch.setattr(SubsetSelector, "fit", noted)
    context = RunContext("cpu", str(registries))
    trial = make_trial("safety", TRANSFER, 0, quick=True)
    assert trial.start == "amazon:feeding:farthest"
    assert make_trial("feeding", TRANSFER, 0, quick=True).start == "amazon:diaper:farthest"
    attempt(trial, context)
    attempt(trial, context)
    # The source is fitted once, and not on what it is later tested on.
    source = ablation_fit._fitted_source(trial.start, 0, True, "cpu", str(registries))
    assert starts == [None, source, source]
    task = ablation_fit._load(trial.start, 0, True, str(registries))
    mean = task.train.sets.values.double().mean(0).float().double()
    torch.testing.assert_close(source.model_.mean, mean)


def test_differences_are_paired_by_fold_and_their_errors_add_up_over_categories() -> None:
    row = {DEFAULT: {0: 50.0, 1: 80.0, 2: 10.0}, "direct": {0: 48.0, 1: 76.0}}
    gap = differences(row, "direct")
    assert gap is not None and (gap.mean, gap.count) == (-3.0, 2)
    assert gap.error == pytest.approx(1.0), "folds that are harder for both are no noise"
    assert differences(row, "no skip") is None
    other = {DEFAULT: {0: 20.0, 1: 20.0}, "direct": {0: 24.0, 1: 20.0}}
    mean = mean_difference({"a": row, "b": other, "c": {DEFAULT: {0: 1.0}}}, "direct")
    assert mean == pytest.approx((-0.5, math.sqrt(1.0**2 + 2.0**2) / 2))


def test_rows_go_from_the_largest_loss_to_the_largest_gain_after_the_default() -> None:
    scores = {"direct": (1.0, 3.0, 2.0), DEFAULT: (5.0, 6.0, 6.0), "no decay": (9.0, 9.5, 9.0), "no skip": (2.0, 3.5)}
    records = [
        _record(task, m, fold, v) for task in ("toys", "media") for m, s in scores.items() for fold, v in enumerate(s)
    ]
    records += [{**_record("toys", TRANSFER, 0, 5.5), "start": "amazon:feeding:farthest"}]
    shown = show(records)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines() if line[0:1] == "|"]
    assert rows[0] == ["", "instead", "media", "difference", "toys", "difference", "mean"]
    assert [row[0] for row in rows[2:]] == [DEFAULT, "direct", "no skip", TRANSFER, "no decay"]
    assert rows[3][1:] == ["method='direct'", "2.0 ± 1.0", "-3.7 (0.3)", "2.0 ± 1.0", "-3.7 (0.3)", "-3.7 (0.2)"]
    assert rows[5][2:] == ["-", "-", "5.5", "+0.5", "+0.5"], "one fold has no error"
    assert "transfer: amazon:toys:farthest from amazon:feeding:farthest" in shown
    # Two folds are too few to say so of "no skip".
    assert "- worse than the default by more than 2 standard errors: direct\n" in shown
    assert shown.endswith("- better than the default by more than 2 standard errors: no decay")


def test_no_verdict_without_an_error() -> None:
    assert verdicts({DEFAULT: (0.0, 0.0), "direct": (-9.0, math.nan), "no skip": None}) == []
    within = verdicts({"direct": (-1.0, 0.6), "no skip": (1.0, 0.6)})
    assert len(within) == 2 and all(line.endswith(": none") for line in within)


def test_plan_has_all_variants_on_all_folds_and_shares_sources() -> None:
    trials = plan(_options())
    assert len(set(trials)) == len(trials) == len(CONTENDERS) * len(CATEGORIES) * 5
    moved = [trial.seed for trial in trials if trial.start]
    assert [bool(trial.start) for trial in trials[: len(moved)]] == [True] * len(moved), "the longest are first"
    assert moved == sorted(moved)
    assert {trial.task for trial in trials[-2 * 5 * 16 :]} == {f"amazon:{c}:farthest" for c in ("safety", "furniture")}


def test_results_of_another_default_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_trial("toys", DEFAULT, 0, quick=False)
    monkeypatch.setitem(CONTENDERS, DEFAULT, {"dim": 64})
    after = make_trial("toys", DEFAULT, 0, quick=False)
    assert before != after and Trial(**{**after.__dict__, "options": before.options}) == before


def test_invalid_options_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, cause in [
        (["--seeds", "6"], "there are 5 folds, not 6"),
        (["--categories", "hats"], "unknown category 'hats'"),
        (["--models", "no luck"], "unknown model 'no luck'; choose one of: default, four members, eight members"),
        (["--data-dir", str(tmp_path)], "there is no folder"),
    ]:
        assert main(["ablation", "--quick", *arguments]) == 1
        assert cause in capsys.readouterr().err


def test_command(registries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, file = tmp_path / "found.jsonl", tmp_path / "found.json"
    arguments = ["ablation", "--quick", "--categories", "safety", "--seeds", "1", "--device", "cpu"]
    arguments += ["--data-dir", str(registries)]
    arguments += ["--results", str(results), "--json", str(file)]
    assert main(arguments) == 0
    total = len(CONTENDERS)
    shown = capsys.readouterr().out
    assert f"0 of {total} trials" in shown and "| no skip" in shown
    records = json.loads(file.read_text())["records"]
    assert sorted(record["model"] for record in records) == sorted(CONTENDERS)
    assert all(0 <= record[name] <= 100 for record in records for name in ("true_size", "own_size", "validation"))
    assert str(tmp_path) not in results.read_text() and str(registries) not in results.read_text()
    # A second run resumes from the file, and a table needs no data.
    assert main(arguments) == 0
    assert f"{total} of {total} trials" in capsys.readouterr().out
    assert main(["ablation", "--quick", "--table", str(results)]) == 0
    assert "| transfer" in capsys.readouterr().out

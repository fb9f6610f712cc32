"""Times are those of the right epoch, the baseline learns, flips and mask tensors train one model, trials are stored.

No time is asserted.
"""

import argparse
import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.lib.records import Record
from benchmarks.selection import time_curves, time_to_score
from benchmarks.selection.time_to_score import compare, medians, pass_table, show, time_table, trials_of, verdict
from setgrad import SubsetSelector
from setgrad.datasets import AMAZON_CATEGORIES, Task
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets
from tests.benchmarks.helpers import CPU

RIVAL = time_curves.Curve([10.0, 20.0, 30.0], [0.3, 0.5, 0.5], 0.4)


@pytest.fixture(scope="module")
def task() -> Task:
    """The two items of ten with the largest first feature: an untrained network knows nothing of it."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(3):
        items = torch.randn(24, 10, 3, generator=generator)
        chosen = items[..., 0] >= items[..., 0].topk(2).values[:, 1:]
        parts.append(Choices.of(list(items), list(chosen)))
    train, validation, test = parts
    return Task("largest", "", train, validation, test, "")


def test_a_score_counts_from_the_epoch_that_first_reached_it() -> None:
    assert RIVAL.best == 0.5
    assert RIVAL.time_to(0.5) == 20
    assert RIVAL.time_to(0.2) == 10
    assert RIVAL.time_to(0.51) == math.inf


def test_ratio_is_of_times_to_the_score_of_the_baseline() -> None:
    own = time_curves.Curve([1.0, 2.0, 3.0], [0.1, 0.495, 0.7], 0.6)
    assert time_curves.ratio(RIVAL, own) == 3 / 20
    assert time_curves.ratio(RIVAL, own, less=0.01) == 2 / 20
    assert time_curves.ratio(RIVAL, time_curves.Curve([1.0], [0.1], 0.1)) == math.inf


def test_negatives_are_as_many_as_chosen_and_differ_between_draws() -> None:
    subsets = Sets.from_list([torch.arange(10) < size for size in (1, 4, 7, 10)])
    generator = torch.Generator().manual_seed(0)
    draws = [time_curves.draw_negatives(subsets, generator) for _ in range(100)]
    for read in draws:
        assert not (read & subsets.values).any()
        # Of the third set only 3 items are left, of the fourth none.
        assert [int(part.sum()) for part in subsets.with_values(read)] == [1, 4, 3, 0]
    drawn = torch.stack(draws).any(0)
    assert drawn.equal(~subsets.values), "every item outside S* is drawn"


def test_baseline_learns_and_uses_the_best_epoch(task: Task) -> None:
    plan = time_curves.Plan(max_epochs=15, patience=15)
    curve = time_curves.train_baseline(task, 1e-3, plan, CPU)
    assert len(curve.scores) == len(curve.seconds) == 15
    assert curve.seconds == sorted(curve.seconds)
    untrained = time_curves.train_baseline(task, 1e-12, time_curves.Plan(max_epochs=1), CPU)
    assert curve.best > untrained.best + 0.2
    # Test sets as validation sets: the weights of the best epoch find again what they scored then, up to new samples.
    same = time_curves.train_baseline(replace(task, test=task.validation), 1e-3, plan, CPU)
    assert same.scores == curve.scores
    assert same.test == pytest.approx(curve.best, abs=0.05)


def test_baseline_stops_when_patience_ends(task: Task) -> None:
    # A rate this small changes nothing, so the first epochs are as good as any: only sampling noise moves the score.
    curve = time_curves.train_baseline(task, 1e-12, time_curves.Plan(max_epochs=100, patience=2), CPU)
    best = curve.scores.index(curve.best)
    assert len(curve.scores) == best + 1 + 2


def test_default_curve_is_the_history(task: Task) -> None:
    curve, selector = time_curves.train_default(task, time_curves.Plan(max_epochs=2), CPU)
    assert curve.scores == [epoch["validation_jaccard"] for epoch in selector.history_]
    assert curve.seconds[1] == pytest.approx(sum(epoch["seconds"] for epoch in selector.history_))
    assert curve.test == selector.score_true_size(*task.test)


def test_flips_and_mask_tensors_train_the_same_model(task: Task) -> None:
    selector = SubsetSelector(max_epochs=1, samples=100, random_state=0, device="cpu", verbose=0)
    selector.fit(*task.train, validation=task.validation)
    with torch.random.fork_rng(devices=[]):
        flips, masks = (
            time_curves.make_pass(copy.deepcopy(selector.model_), task.train, masks=masks) for masks in (False, True)
        )
        first = float(flips()), float(masks())
        last = [(float(flips()), float(masks())) for _ in range(3)][-1]
    # With many samples both estimate one expectation, term by term, the modular term included.
    assert first[0] == pytest.approx(first[1], rel=2e-3)
    assert last[0] == pytest.approx(last[1], rel=2e-2)
    assert last[0] < first[0]


def test_one_member_is_timed_beside_several(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setgrad.selector._defaults.default_members", lambda *_: 2)
    found = compare(task, [1e-3], time_curves.Plan(max_epochs=2, patience=2, repeats=1), 0, CPU)
    alone, _ = time_curves.train_default(task, time_curves.Plan(max_epochs=2), CPU, members=1)
    assert found["single"]["curve"]["scores"] == pytest.approx(alone.scores, abs=1e-5)
    assert found["default"]["curve"]["scores"] != found["single"]["curve"]["scores"]


def test_stored_curves_are_rounded() -> None:
    stored = time_curves.Curve([0.123456, 1.00004], [0.1234567, 0.3], 0.2000001).to_json()
    assert stored["curve"] == {"seconds": [0.1235, 1.0], "scores": [0.12346, 0.3]}
    assert (stored["best"], stored["test"], stored["time_to_best"], stored["time_in_all"]) == (0.3, 0.2, 1.0, 1.0)


def test_tables_say_never_and_count_rows_that_meet_the_claim(task: Task) -> None:
    found = compare(task, [1e-3, 1e-2], time_curves.Plan(max_epochs=1, patience=1, repeats=1), 0, CPU)
    json.dumps(found, allow_nan=False)
    slow, fast = found["baseline"]
    slow |= {"ratio": None, "default_time": None, "ratio_one_point_less": 0.3, "best": 0.9}
    fast |= {"ratio": 0.1, "default_time": 1.0, "ratio_one_point_less": 0.2, "best": 0.8}
    fast |= {"single_time": 0.5, "single_ratio": 0.05}
    record = {"task": "amazon:toys:farthest", "seed": 0, "options": json.dumps({"members": 1}), **found}
    rows = medians([record])
    shown = time_table(rows)
    assert "never" in shown.splitlines()[2]
    assert "never" not in shown.splitlines()[3]
    lines = verdict(rows).splitlines()
    assert "in 1 of 2" in lines[0]
    assert lines[0].endswith("worst never")
    assert "in 1 of 2" in lines[1]
    assert "in 0 of 1" in lines[3]
    assert [("one member" in line) for line in lines] == [False, False, True] * 2
    assert f"{found['pass']['ratio']:.2f}" in pass_table([record])


def test_a_score_that_is_never_reached_has_no_time_in_a_record(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_score, "train_baseline", lambda *_: time_curves.Curve([1.0], [1.1], 1.0))
    found = compare(task, [1e-3], time_curves.Plan(max_epochs=1, repeats=1), 0, CPU)["baseline"][0]
    assert (found["default_time"], found["ratio"], found["ratio_one_point_less"]) == (None, None, None)
    assert found["time_to_best"] == 1.0


def test_rows_are_medians_over_seeds_in_the_order_of_the_categories() -> None:
    records = [_record("toys", seed, 1e-3, value) for seed, value in enumerate((0.1, None, 0.3))]
    records += [_record("bath", 0, 1e-3, 0.4), _record("bath", 0, 1e-4, 0.5)]
    rows = medians(records)
    assert [(row["task"].split(":")[1], row["learning_rate"]) for row in rows] == [
        ("bath", 1e-4),
        ("bath", 1e-3),
        ("toys", 1e-3),
    ]
    assert [row["ratio"] for row in rows] == [0.5, 0.4, 0.3], "what was never reached is above all"
    assert [row["seeds"] for row in rows] == [1, 1, 3]
    again = medians([*records, _record("bath", 0, 1e-4, 0.2)])
    assert (again[0]["ratio"], again[0]["seeds"]) == (0.2, 1), "of one seed the last record counts"
    assert [line.split()[1] for line in pass_table(records).splitlines()[2:]] == ["bath:farthest", "toys:farthest"]
    assert "seeds: 1 or 3" in show(records)


def test_page_without_results_has_empty_tables() -> None:
    assert "all rows" not in show([])


def test_trials_have_the_options_of_the_default() -> None:
    trials = trials_of(_options("--seeds", "2", "--device", "cpu"))
    assert [trial.task for trial in trials[::2]] == [f"amazon:{name}:farthest" for name in AMAZON_CATEGORIES]
    assert [trial.seed for trial in trials[:4]] == [0, 1, 0, 1]
    options = json.loads(trials[0].options)
    assert options["dim"] == SubsetSelector().dim and options["members"] == 1
    selected = trials_of(
        _options("--categories", "toys,bath", "--protocols", "random", "--baseline-lr", "1e-2,1e-3,1e-2")
    )
    assert [(trial.task, trial.rates) for trial in selected] == [
        ("amazon:bath:random", (1e-3, 1e-2)),
        ("amazon:toys:random", (1e-3, 1e-2)),
    ]


def test_rates_and_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="positive numbers"):
        time_to_score.run(_options("--baseline-lr", "fast"))
    assert main(["time-to-score", "--categories", "hats"]) == 1
    assert "unknown Amazon category 'hats'" in capsys.readouterr().err


def test_parallel_trials_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="in parallel"):
        trials_of(_options("--jobs", "2"))
    assert main(["time-to-score", "--quick", "--jobs", "2"]) == 1
    assert "their times would mean nothing" in capsys.readouterr().err


def test_command_prints_tables_and_resumes(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, file = tmp_path / "t.jsonl", tmp_path / "t.json"
    run = ["time-to-score", "--quick", "--device", "cpu", "--data-dir", str(data_dir), "--json", str(file)]
    run += ["--results", str(results)]
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert "0 of 1 trials" in shown and "| safety:farthest (24), 0.001 " in shown
    (record,) = json.loads(file.read_text())["records"]
    assert [row["learning_rate"] for row in record["baseline"]] == record["rates"] == [1e-4, 1e-3]
    assert record["seconds"] > 0, "the time of the whole trial"
    assert time_curves.SAMPLES == 5
    # The same again runs nothing.
    stored = results.read_text()
    assert main(run) == 0
    again = capsys.readouterr().out
    assert "1 of 1 trials" in again and "[1/1]" not in again
    assert results.read_text() == stored
    # Stored results give the page, with both tables and the verdict.
    assert main(["time-to-score", "--table", str(results)]) == 0
    page = results.with_suffix(".md").read_text()
    assert page in shown and page in again
    assert "| safety:farthest (24), 0.001 " in page and "| safety:farthest (24) " in page
    assert "- all rows: ratio at most 0.2 in " in page


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["time-to-score", *arguments])


def _record(category: str, seed: int, rate: float, value: float | None) -> Record:
    curve = {"best": 0.5, "test": 0.4, "time_to_best": 2.0, "time_in_all": 3.0}
    against = {"default_time": value, "ratio": value, "ratio_one_point_less": value}
    against |= {"single_time": value, "single_ratio": value}
    return {
        "task": f"amazon:{category}:farthest",
        "seed": seed,
        "training_sets": 24,
        "options": json.dumps({"members": 8}),
        "baseline": [{"learning_rate": rate, **curve, **against}],
        "default": curve,
        "single": curve,
        "pass": {"flips": 1.0, "mask_tensor": 2.0, "ratio": 2.0},
    }

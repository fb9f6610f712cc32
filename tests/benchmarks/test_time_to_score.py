"""Times are read off the right epoch, the baseline learns, flips and mask tensors train one model. No time asserted."""

import argparse
import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import time_to_score
from benchmarks.__main__ import main
from benchmarks.time_to_score import (
    SAMPLES,
    Curve,
    Plan,
    compare,
    draw_negatives,
    make_pass,
    pass_table,
    ratio,
    time_table,
    train_baseline,
    train_default,
    verdict,
)
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets

CPU = torch.device("cpu")
RIVAL = Curve([10.0, 20.0, 30.0], [0.3, 0.5, 0.5], 0.4)


@pytest.fixture(scope="module")
def task() -> Task:
    """The two items of ten with the largest first feature: an untrained network knows nothing of it."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(3):
        items = torch.randn(24, 10, 3, generator=generator)
        chosen = items[..., 0] >= items[..., 0].topk(2).values[:, 1:]
        parts.append(Choices.of(list(items), list(chosen)))
    return Task("largest", "", *parts, "")


def test_a_score_counts_from_the_epoch_that_first_reached_it() -> None:
    assert RIVAL.best == 0.5
    assert RIVAL.time_to(0.5) == 20
    assert RIVAL.time_to(0.2) == 10
    assert RIVAL.time_to(0.51) == math.inf


def test_ratio_is_of_times_to_the_score_of_the_baseline() -> None:
    own = Curve([1.0, 2.0, 3.0], [0.1, 0.495, 0.7], 0.6)
    assert ratio(RIVAL, own) == 3 / 20
    assert ratio(RIVAL, own, less=0.01) == 2 / 20
    assert ratio(RIVAL, Curve([1.0], [0.1], 0.1)) == math.inf


def test_negatives_are_as_many_as_chosen_and_differ_between_draws() -> None:
    subsets = Sets.from_list([torch.arange(10) < size for size in (1, 4, 7, 10)])
    generator = torch.Generator().manual_seed(0)
    draws = [draw_negatives(subsets, generator) for _ in range(100)]
    for read in draws:
        assert not (read & subsets.values).any()
        # Of the third set only 3 items are left, of the fourth none.
        assert [int(part.sum()) for part in subsets.with_values(read)] == [1, 4, 3, 0]
    seen = torch.stack(draws).any(0)
    assert seen.equal(~subsets.values), "every item outside S* comes up"


def test_baseline_learns_and_keeps_the_weights_of_the_best_epoch(task: Task) -> None:
    plan = Plan(most=15, patience=15)
    curve = train_baseline(task, 1e-3, plan, CPU)
    assert len(curve.scores) == len(curve.seconds) == 15
    assert curve.seconds == sorted(curve.seconds)
    untrained = train_baseline(task, 1e-12, Plan(most=1), CPU)
    assert curve.best > untrained.best + 0.2
    # Test sets as validation sets: the weights of the best epoch find again what they scored then, up to new samples.
    same = train_baseline(replace(task, test=task.validation), 1e-3, plan, CPU)
    assert same.scores == curve.scores
    assert same.test == pytest.approx(curve.best, abs=0.05)


def test_baseline_stops_when_patience_ends(task: Task) -> None:
    # A rate this small changes nothing, so the first epochs are as good as any: only sampling noise moves the score.
    curve = train_baseline(task, 1e-12, Plan(most=100, patience=2), CPU)
    best = curve.scores.index(curve.best)
    assert len(curve.scores) == best + 1 + 2


def test_default_curve_is_the_history(task: Task) -> None:
    curve, selector = train_default(task, Plan(most=2), CPU)
    assert curve.scores == [epoch["validation_jaccard"] for epoch in selector.history_]
    assert curve.seconds[1] == pytest.approx(sum(epoch["seconds"] for epoch in selector.history_))
    assert curve.test == selector.score_true_size(*task.test)


def test_flips_and_mask_tensors_train_the_same_model(task: Task) -> None:
    selector = SubsetSelector(max_epochs=1, samples=100, random_state=0, device="cpu", verbose=0)
    selector.fit(*task.train, validation=task.validation)
    with torch.random.fork_rng(devices=[]):
        flips, masks = (make_pass(copy.deepcopy(selector.model_), task.train, masks=masks) for masks in (False, True))
        first = float(flips()), float(masks())
        last = [(float(flips()), float(masks())) for _ in range(3)][-1]
    # With many samples both estimate one expectation, term by term, the modular term included.
    assert first[0] == pytest.approx(first[1], rel=2e-3)
    assert last[0] == pytest.approx(last[1], rel=2e-2)
    assert last[0] < first[0]


def test_tables_say_never_and_count_the_rows_that_keep_the_claim(task: Task) -> None:
    result = compare(task, [1e-3, 1e-2], Plan(most=1, patience=1, repeats=1), range(1), CPU)
    json.dumps(result, allow_nan=False)
    slow, fast = result["baseline"]
    slow |= {"ratio": None, "default_time": None, "ratio_one_point_less": 0.3, "best": 0.9}
    fast |= {"ratio": 0.1, "default_time": 1.0, "ratio_one_point_less": 0.2, "best": 0.8}
    shown = time_table([result])
    assert "never" in shown.splitlines()[2]
    assert "never" not in shown.splitlines()[3]
    said = verdict([result]).splitlines()
    assert "in 1 of 2" in said[0]
    assert said[0].endswith("worst never")
    assert "in 1 of 2" in said[1]
    assert "in 0 of 1" in said[2]
    assert f"{result['pass']['ratio']:.2f}" in pass_table([result])


def test_rates_and_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="positive numbers"):
        time_to_score.run(_options("--baseline-lr", "fast"))
    assert main(["time-to-score", "--categories", "hats"]) == 1
    assert "unknown Amazon category 'hats'" in capsys.readouterr().err


def test_command_prints_tables_and_writes_json(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    run = ["time-to-score", "--quick", "--device", "cpu", "--data-dir", str(data_dir), "--json", str(file)]
    assert main(run) == 0
    assert "| safety:farthest (24), 0.001 " in capsys.readouterr().out
    stored = json.loads(file.read_text())
    assert [row["learning_rate"] for row in stored["tasks"][0]["baseline"]] == [1e-4, 1e-3]
    assert SAMPLES == 5


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    time_to_score.configure(parser)
    return parser.parse_args(arguments)

"""Timed functions give the same answers, and the verdicts follow from the numbers."""

import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.speed import discrete_pyepo as pyepo
from benchmarks.speed import discrete_speed
from benchmarks.speed.discrete_tasks import Task, tasks

TASKS = {task.name: task for task in tasks(quick=True)}


@pytest.mark.parametrize("estimator", discrete_speed.ESTIMATORS)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_setgrad_and_loop_agree(task: Task, estimator: str) -> None:
    pytest.importorskip("scipy")
    costs, weights = task.draw(48)
    solver = task.solver(1)
    right = discrete_speed.loop_step(task.plain(), costs, weights, estimator, minimise=solver.sense == "min")()
    found = discrete_speed.torch_step(discrete_speed.setgrad_layer(task, solver, estimator), costs, weights)()
    assert discrete_speed.compare(found, right, costs) == {"value": pytest.approx(0, abs=1e-6), "gradient": 0}
    assert found[0].shape == (48, task.d)
    # Instances differ, and a step along the weights changes some solutions: else the agreement would mean little.
    assert len(np.unique(right[0], axis=0)) > 1 and bool((right[1] != 0).any())


def test_a_wrong_answer_shows() -> None:
    costs = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    right = (np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    wrong = (np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.1], [1.0, 0.0]]))
    assert discrete_speed.compare(wrong, right, costs) == {"value": 0.5, "gradient": 0.5}


def test_functions_run_in_turns_and_slow_ones_once() -> None:
    calls: list[str] = []
    discrete_speed.Clock(patience=0.0, block=0.0).times([lambda: calls.append("a"), lambda: calls.append("b")])
    assert calls == ["a", "a", "b", "b", "a", "b"], "two calls to warm up, one turn that counts"


def test_a_turn_lasts_for_a_block_of_calls() -> None:
    calls: list[str] = []
    works = [lambda: time.sleep(0.001), lambda: calls.append("b")]
    slow, _ = discrete_speed.Clock(patience=0.001, block=0.01).times(works)
    assert len(calls) > 3, "two calls to warm up, and more than one in a turn"
    assert slow.clock >= 0.001


def test_verdict_is_the_smallest_ratio_of_processor_times() -> None:
    def row(cpu: float) -> dict[str, object]:
        own, rival = {"seconds": 1.0, "cpu": 1.0}, {"seconds": 9.0, "cpu": cpu}
        return {"task": "x", "ways": {"setgrad": own, "gurobipy": rival, "loop": {"seconds": 0.1, "cpu": 0.1}}}

    assert discrete_speed.slowest([row(7.0), row(6.0)]) == {("gurobipy", "x"): 6.0}
    assert (
        discrete_speed.ratio(row(7.0), "gurobipy") == "9.0 (7.0)" and discrete_speed.ratio(row(7.0), "ortools") == "-"
    )


def test_overhead_compares_one_call_with_one_step() -> None:
    found = discrete_speed.overhead(TASKS["top-k, 5 of 20"], 3, 1, discrete_speed.Clock(0.0, 0.0))
    assert found["share"] == pytest.approx(found["step"] / found["bare"] - 1) and found["batch"] == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the rival
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_pyepo_agrees(task: Task) -> None:
    pytest.importorskip("pyepo")
    costs, weights = task.draw(4)
    models = {**pyepo.ready_models(task, 1), "own": pyepo.own_model(task, task.plain())}
    for estimator in discrete_speed.ESTIMATORS:
        right = discrete_speed.torch_step(
            discrete_speed.setgrad_layer(task, task.solver(1), estimator), costs, weights
        )()
        for model in models.values():
            found = discrete_speed.torch_step(pyepo.layer(model, estimator), costs, weights)()
            assert discrete_speed.compare(found, right, costs) == {"value": pytest.approx(0, abs=1e-5), "gradient": 0}


def test_command_without_pyepo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pyepo" else find(name, *more))
    threads, file = torch.get_num_threads(), tmp_path / "speed.json"
    try:
        assert main(["discrete-speed", "--quick", "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert "PyEPO is not installed" in shown and "Time that Identity adds to its solver, batch 4" in shown
    stored = json.loads(file.read_text())
    assert stored["pyepo"] is None and len(stored["rows"]) == 2 * len(TASKS)
    assert max(way["gradient"] for row in stored["rows"] for way in row["ways"].values()) == 0

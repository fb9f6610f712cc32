"""The benchmark of quadratic programs measures what it says, with the rivals and without."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.implicit import implicit_qp
from benchmarks.implicit.implicit_qp import WAYS, Answer, Task, differences, errors, make_reference, make_task, met


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(5, 6)


def test_programs_are_as_described(task: Task) -> None:
    Q, _, G, h, A, b = (part.detach() for part in task.parts)
    assert torch.linalg.eigvalsh(Q).min() > 0
    assert G.shape == (5, 6, 6) and A.shape == (5, 1, 6)
    y = make_reference(task).answer.y[..., None]
    room = h - (G @ y)[..., 0]
    assert room.min() > -1e-12 and (A @ y)[..., 0].sub(b).abs().max() < 1e-12
    active = (room < 1e-9).double().mean()
    assert 0 < active < 1, "a part of the constraints is active"


def test_reference_proves_itself(task: Task) -> None:
    reference = make_reference(task)
    assert reference.residual < 1e-12 and reference.margin > 0
    assert differences(task, reference) < 1e-6
    wrong = Answer(reference.answer.y, reference.answer.gradient * 1.01)
    assert differences(task, implicit_qp.Reference(wrong, 0.0, 0.0)) > 1e-3, "the comparison detects a wrong gradient"


def test_a_wrong_minimum_shows_in_the_residual(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without constraints the minimum has room everywhere or breaks some, so its system is not that of the program.
    monkeypatch.setattr(implicit_qp, "quadratic", lambda Q, q, G, h, A, b: _Value(-torch.linalg.solve(Q, q) - 1e3))
    assert make_reference(task).residual > 1e-3


class _Value:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def test_errors_are_relative_for_each_program() -> None:
    right = Answer(torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), torch.ones(3, 4))
    found = Answer(right.y + torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.5]]), right.gradient * 1.5)
    assert errors(found, right) == pytest.approx(
        {"value": 0.5, "value_median": 0.2, "gradient": 0.5, "gradient_median": 0.5}
    )


def test_target_needs_speed_and_accuracy() -> None:
    own = {"seconds": 1.0, "value": 1e-9, "gradient": 1e-9}

    def verdict(**rival: float) -> bool:
        return met([{"setgrad": own, "qpth": {**own, **rival}}], ["setgrad", "qpth"])["qpth"]

    assert verdict(seconds=3.0)
    assert not verdict(seconds=2.9)
    assert not verdict(seconds=9.0, value=1e-10)
    assert not verdict(seconds=9.0, gradient=1e-10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the rivals
@pytest.mark.parametrize("name", WAYS)
def test_every_way_gives_the_reference(name: str, task: Task) -> None:
    needs, make = WAYS[name]
    for package in needs:
        pytest.importorskip(package)
    found = errors(implicit_qp._step(make(task), task)(), make_reference(task).answer)
    # The default solver of cvxpylayers is the least accurate of them.
    assert found["value_median"] < 1e-3 and found["gradient_median"] < 1e-2


def test_command_without_rivals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    rivals = ("qpth", "cvxpylayers", "diffcp")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in rivals else find(name, *more))
    file = tmp_path / "qp.json"
    assert main(["implicit-qp", "--quick", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "left out" in shown and "pip install" in shown and "| setgrad" in shown
    stored = json.loads(file.read_text())
    assert stored["missing"] == ["qpth", "cvxpylayers", "cvxpylayers, moreau"] and stored["met"] == {}
    assert stored["rows"][0]["setgrad"]["gradient"] < 1e-10

"""`setgrad export`, from the folder of a model to a program."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch


def test_it_writes_a_program_and_a_json(run: Callable, model: Path, tmp_path: Path) -> None:
    result = run("export", model, "-o", tmp_path / "model.pt2", "--json")
    assert result.code == 0, result.err
    about = json.loads(Path(result.data["about"]).read_text())
    assert list(about["inputs"]) == result.data["inputs"] == ["items", "mask", "given"]
    mask = torch.ones(2, 3, dtype=torch.bool)
    items = torch.zeros(2, 3, about["inputs"]["items"]["shape"][2], dtype=torch.double)
    program = torch.export.load(result.data["program"]).module()
    assert program(items, mask, torch.zeros_like(mask)).isfinite().all()


def test_it_replaces_no_file_of_the_model(run: Callable, model: Path) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert run("export", model, "-o", model / "config.json").code == 1
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_onnx_names_what_is_missing(
    run: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = run("export", model, "-o", tmp_path / "model.onnx")
    assert result.code == 1 and 'pip install "setgrad[export]"' in result.err and not list(tmp_path.iterdir())


def test_another_ending_is_refused(run: Callable, model: Path, tmp_path: Path) -> None:
    assert "must end in .onnx" in run("export", model, "-o", tmp_path / "model.bin").err

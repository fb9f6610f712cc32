"""What is fuzzed can be read as it is, and garbage is refused; without Atheris the command says so."""

import importlib.util

import pytest

from benchmarks.attack import fuzz
from benchmarks.attack.fuzz_inputs import INPUTS
from setgrad.errors import SetgradError


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_is_read_as_it_is_and_garbage_is_refused(name, tmp_path):
    read = INPUTS[name].prepare(tmp_path)
    (seed,) = INPUTS[name].seeds(tmp_path)
    read(seed)
    with pytest.raises(SetgradError):
        read(b"\x00\xff{")


def test_without_atheris_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fuzz.main(["--folder", str(tmp_path / "fuzz")]) == 1
    assert "install it: pip install atheris" in capsys.readouterr().err
    assert not (tmp_path / "fuzz").exists()

"""The benchmark of the server gets the answers of `predict` for every request, one at a time and at once."""

import json

import pytest

from benchmarks.__main__ import main


def test_answers_under_load_are_those_of_predict(tmp_path):
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason="serving needs other packages: pip install 'setgrad[serve]'")
    file = tmp_path / "found.json"
    assert main(["serve-load", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert list(found["rows"]) == ["predict, no server", "server, 1 client", "server, 4 clients"]
    assert found["failed"] == 0

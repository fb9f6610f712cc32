"""The benchmark of methods: every method is measured."""

import json

from benchmarks.__main__ import main
from benchmarks.speed.method_speed import METHODS


def test_every_method_is_measured(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert main(["method-speed", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert set(rows) == set(METHODS)
    assert all(seconds > 0 for row in rows.values() for seconds in row.values())
    assert "conditional, step, Amazon:" in capsys.readouterr().out

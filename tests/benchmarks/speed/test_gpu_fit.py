"""The benchmark of fits on a GPU, on a CPU: it fits each way, and launches nothing there."""

import json

from benchmarks.__main__ import main


def test_each_way_is_fitted_and_scored(tmp_path, capsys):
    file = tmp_path / "found.json"
    quick = ["gpu-fit", "--quick", "--device", "cpu", "--tasks", "million rows", "--json", str(file)]
    assert main(quick) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["way"] for row in rows] == ["replayed", "launched"]
    # On a CPU nothing is replayed, so both ways are the same fit.
    first, second = ({name: row[name] for name in ("epochs", "true_size", "own_size", "steps")} for row in rows)
    assert first == second and first["steps"] == 3 and first["epochs"] == 3
    assert all(row["seconds"] > 0 and row["launches"] is None for row in rows)
    assert "| task" in capsys.readouterr().out

"""The benchmark of explanations measures every part of them."""

import json

from benchmarks.__main__ import main


def test_each_part_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.speed.explain_time.FEATURES", 3)
    monkeypatch.setattr("benchmarks.lib.timing.WARM_UP", 0)
    file = tmp_path / "found.json"
    assert main(["explain-time", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert set(found["rows"]) == {"10", "100"}
    assert all(len(row) == 6 and min(row.values()) > 0 for row in found["rows"].values())
    assert all(row["difference"] < 1e-12 for row in found["shapley"].values())
    # Sampled Shapley values are within five standard errors of the exact ones.
    assert all(row["worst"] < 5 for row in found["shapley"].values())

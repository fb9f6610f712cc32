"""The benchmark of members: all ways do the same work."""

import json

from benchmarks.__main__ import main


def test_all_ways_are_measured_and_learn_the_same(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert main(["members-speed", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["members"] for row in rows] == [1, 2]
    assert all(set(row["seconds"]) == {"apart", "together"} for row in rows)
    assert all(set(row["predict"]) == {"apart", "together"} for row in rows)
    assert all(min([*row["seconds"].values(), *row["predict"].values()]) > 0 for row in rows)
    assert all(row["difference"] < 1e-2 for row in rows)
    assert "| members | apart (to one apart) | together" in capsys.readouterr().out

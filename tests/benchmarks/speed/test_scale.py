"""The benchmark of data larger than memory: its table, and a tiny run."""

import json
from itertools import pairwise

import numpy as np
from pyarrow import parquet

from benchmarks.__main__ import main
from benchmarks.speed import scale
from benchmarks.speed.scale_data import write_parts


def test_the_table_has_whole_sets_that_go_on_from_file_to_file(tmp_path):
    sets = write_parts(tmp_path, 5000, largest=900, seed=0, part_rows=1000)
    parts = [parquet.read_table(path) for path in sorted(tmp_path.iterdir())]
    assert [part.num_rows for part in parts[:-1]] == [1000] * (len(parts) - 1) and len(parts) >= 5
    table = parquet.read_table(tmp_path)
    ids, chosen = table["set"].to_numpy(), table["chosen"].to_numpy()
    assert (np.diff(ids) >= 0).all() and len(np.unique(ids)) == sets and len(ids) == 5000
    lengths, counts = np.bincount(ids), np.bincount(ids, weights=chosen)
    assert lengths[:-1].min() >= 10 and lengths.max() <= 900
    assert counts.min() >= 1 and counts.max() <= 20
    assert any(one["set"][-1] == other["set"][0] for one, other in pairwise(parts))


def test_a_fit_is_killed_and_resumed_to_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "_COLUMNS", (*scale._COLUMNS, "--no-trees", "--hidden", "8", "--members", "1"))
    file = tmp_path / "found.json"
    assert main(["scale", "--quick", "--kills", "1", "--folder", str(tmp_path / "run"), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["same"] and found["rows"] == 4000 and found["finished"]
    assert all(one["peak"] > 0 and one["cpu"] > 0 for one in found["runs"].values())

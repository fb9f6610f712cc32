"""The benchmark of reading: every way reads all rows of the table."""

import json

from benchmarks.__main__ import main


def test_every_way_reads_all_rows(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert main(["table-reading", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert set(found["ways"]) == {"arrow", "numbers", "encode", "fit", "fit with ids"}
    assert all(way["rows"] == found["rows"] == 4000 for way in found["ways"].values())
    # Four bytes for each number of a row: three, or all of the columns.
    assert found["ways"]["numbers"]["result"] == 4 * 3 * 4000
    assert found["ways"]["encode"]["result"] > found["ways"]["fit"]["result"] > 4 * 10 * 4000
    shown = capsys.readouterr().out
    assert all(f"\n| {way} " in shown for way in found["ways"])

"""The benchmark of reading: every way reads all rows of the table."""

import json
from dataclasses import asdict

from benchmarks.__main__ import main
from benchmarks.tables import table_reading
from tests.benchmarks.helpers import CPU


def test_every_way_reads_all_rows(tmp_path, monkeypatch, capsys):
    in_subprocess = table_reading.measure_in_subprocess

    def measure(module, case, variables):
        # One new process is enough.
        if case.way == "fit":
            return in_subprocess(module, case, variables)
        return asdict(table_reading.measure(case, CPU))

    monkeypatch.setattr(table_reading, "measure_in_subprocess", measure)
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

"""The doors: what is listed, what is refused, and the two score benchmarks end to end at a tiny size."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main, make_parser
from benchmarks._fits import expected_cost
from benchmarks._published import AMAZON_PAIRS
from benchmarks.table2 import plan_jobs


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["table2", *arguments])


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_names_the_claim(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "Claims checked:" in capsys.readouterr().out


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["table9"])
    assert stop.value.code == 2
    assert "speed-meanfield" in capsys.readouterr().err


def test_unknown_category_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table2", "--categories", "hats"]) == 1
    assert "unknown category 'hats'; choose one of: apparel" in capsys.readouterr().err


def test_jobs_of_the_whole_table_longest_first() -> None:
    jobs = plan_jobs(_options("--datasets", "amazon,moons,gaussian"))
    assert len(set(jobs)) == len(jobs) == (12 * 2 + 2) * 3 * 5
    assert (jobs[0].task, jobs[0].model) == ("amazon:feeding:farthest", "default")
    costs = [expected_cost(j, AMAZON_PAIRS[j.task.split(":")[1]]) for j in jobs if j.task.startswith("amazon")]
    assert costs == sorted(costs, reverse=True)


def test_methods_choose_models() -> None:
    assert {job.model for job in plan_jobs(_options("--methods", "direct"))} == {"direct"}
    assert {job.model for job in plan_jobs(_options("--methods", "unrolled"))} == {"paper", "default"}


def test_table2_runs_resumes_and_renders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, written = tmp_path / "t.jsonl", tmp_path / "t.json"
    run = ["table2", "--quick", "--datasets", "moons", "--device", "cpu", "--seeds", "2", "--results", str(results)]
    assert main([*run, "--methods", "direct"]) == 0
    assert "0 of 2 fits" in capsys.readouterr().out
    assert main([*run, "--json", str(written)]) == 0
    first = capsys.readouterr().out
    assert "2 of 6 fits" in first
    stored = json.loads(written.read_text())
    assert stored["tables"]["true_size"]["moons"]["direct"]["count"] == 2
    assert main(["table2", "--table", str(results)]) == 0
    again = capsys.readouterr().out
    # The stored results give the very tables that the run printed.
    assert again.strip() == first[first.index("\n## ") :].strip()


def test_missing_data_is_said_and_the_exit_code_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["table2", "--quick", "--seeds", "1", "--protocols", "random", "--methods", "direct"]
    assert main([*run, "--data-dir", str(tmp_path)]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_demo_scores_show_published_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo-scores", "--quick", "--device", "cpu"]) == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row for row in rows if len(row) == 6}
    assert found["moons, default"][3:5] == ["58.97", "100"]
    assert found["gaussian, paper"][3] == "91.03"
    assert 89 < float(found["gaussian, paper"][4]) < 92
    assert found["digits, paper"][3:5] == ["-", "-"]

"""The command line: its list, its errors, and the two score benchmarks end to end at a tiny size."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main, make_parser
from benchmarks.selection.fits import expected_cost
from benchmarks.selection.table2 import ALL, plan_jobs
from benchmarks.selection.tasks import load_split


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


def test_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["table9"])
    assert stop.value.code == 2
    assert "speed-meanfield" in capsys.readouterr().err


def test_unknown_category_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table2", "--categories", "hats"]) == 1
    assert "unknown category 'hats'; choose one of: apparel" in capsys.readouterr().err


def test_unknown_task_and_model_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table2", "--tasks", "suns"]) == 1
    assert "unknown task 'suns'" in capsys.readouterr().err
    assert main(["table2", "--models", "oracle"]) == 1
    assert "unknown model 'oracle'; choose one of: conditional, unrolled, direct" in capsys.readouterr().err


def test_more_seeds_than_folds_fit_folds_again() -> None:
    jobs = plan_jobs(_options("--seeds", "7", "--tasks", "moons", "--models", "direct"))
    assert sorted(job.seed for job in jobs) == list(range(7))
    first, again = (load_split("moons", splits="folds", number=n, data_dir=None, quick=True) for n in (1, 6))
    assert first is again


def test_jobs_of_the_whole_table_longest_first() -> None:
    jobs = plan_jobs(_options("--tasks", "amazon,moons,gaussian"))
    # Popularity makes sense for Amazon alone, distances from the mean for anomalies alone, likeness for bundles alone.
    assert len(set(jobs)) == len(jobs) == (12 * 2 * (len(ALL) - 2) + 2 * (len(ALL) - 3)) * 5
    assert (jobs[0].task, jobs[0].model) == ("amazon:feeding:farthest", "diffmf-5")
    costs = [expected_cost(job) for job in jobs]
    assert costs == sorted(costs, reverse=True)
    assert {job.model for job in jobs[-100:]} <= {"popularity", "chance"}


def test_every_task_has_a_cost_and_a_sound_split() -> None:
    names = "gaussian,moons,digits,clusters,amazon,anomaly,bundles,compounds,celeba,bindingdb"
    jobs = plan_jobs(_options("--tasks", names, "--models", "conditional", "--seeds", "1"))
    assert all(expected_cost(job) > 0 for job in jobs)
    splits = {job.task.partition(":")[0]: job.splits for job in jobs}
    assert {name for name, how in splits.items() if how == "folds"} == {"gaussian", "moons", "amazon", "compounds"}
    assert {name for name, how in splits.items() if how == "drawn"} == {"digits", "clusters", "anomaly", "bundles"}
    assert {"compounds:davis:diverse", "anomaly:mnist", "bundles:food"} <= {job.task for job in jobs}
    assert "compounds:davis:active" not in {job.task for job in jobs}


def test_models_categories_and_protocols_narrow_the_table() -> None:
    jobs = plan_jobs(_options("--models", "direct", "--categories", "toys,gear", "--protocols", "random"))
    assert {(job.task, job.model) for job in jobs} == {(f"amazon:{c}:random", "direct") for c in ("toys", "gear")}
    assert {job.task for job in plan_jobs(_options("--tasks", "amazon:toys:farthest", "--protocols", "random"))} == {
        "amazon:toys:farthest"
    }


def test_table2_runs_resumes_and_renders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, written = tmp_path / "t.jsonl", tmp_path / "t.json"
    run = ["table2", "--quick", "--tasks", "moons", "--device", "cpu", "--seeds", "2", "--results", str(results)]
    assert main([*run, "--models", "direct"]) == 0
    assert "0 of 2 trials" in capsys.readouterr().out
    assert main([*run, "--models", "direct,diffmf,chance", "--json", str(written)]) == 0
    first = capsys.readouterr().out
    assert "2 of 6 trials" in first
    stored = json.loads(written.read_text())
    assert stored["tables"]["true_size"]["moons"]["direct"]["count"] == 2
    # Records have no folder of this machine.
    assert {record["command"].count(str(tmp_path)) for record in stored["records"]} == {0}
    page = results.with_suffix(".md").read_text()
    assert page.startswith("# All methods on all tasks")
    assert page.strip() == first[first.index("# All methods") :].strip()
    assert main(["table2", "--table", str(results)]) == 0
    # The stored records give the page that the run printed.
    assert capsys.readouterr().out.strip() == page.strip()


def test_table_of_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table2", "--table", str(tmp_path / "none.jsonl")]) == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("table2 --tasks amazon:safety --seeds 1 --protocols random --models direct", "there is no folder"),
        ("dvae", "the folder that contains mnist"),
        ("explain --parts sentences", "there is no folder"),
        ("ranking --images mnist", "the folder that contains mnist"),
        ("completion", "there is no folder"),
        ("documents", "there is no folder"),
        ("mil --parts folds", "the folder that contains mil"),
    ],
)
def test_missing_data_is_reported_and_sets_the_exit_code(
    command: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--quick", "--data-dir", str(tmp_path)]) == 1
    assert cause in capsys.readouterr().err


def test_demo_scores_show_published_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo-scores", "--quick", "--models", "unrolled,diffmf,lightgbm", "--device", "cpu"]) == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row for row in rows if len(row) == 6}
    assert found["moons, unrolled"][3:5] == ["58.97", "100"]
    assert found["gaussian, diffmf"][3] == "91.03"
    assert 89 < float(found["gaussian, diffmf"][4]) < 92
    assert found["digits, diffmf"][3:5] == ["-", "-"]

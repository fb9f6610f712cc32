"""Tables of the registries, and the command."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.lib.records import read_records
from benchmarks.tables.amazon_tables import as_table, read_names, show
from setgrad.datasets import load_task


def test_rows_have_the_name_and_the_vector_of_their_product(data_dir: Path) -> None:
    task = load_task("amazon:safety:farthest", data_dir=data_dir, n_train=3, n_validation=1, n_test=1)
    names = read_names(data_dir / "amazon_baby_registry", "safety")
    assert len(names) == 36 and names[1] == "Snuza Baby Monitor, Hero : Baby"
    rows = as_table(task.train, names).to_pylist()
    assert len(rows) == 90
    vectors = task.train.sets.values.tolist()
    # The lines of the file: a registry, and the products that it lists.
    listed = (data_dir / "amazon_baby_registry" / "1_100_100_100_safety_regs.csv").read_text().splitlines()
    for row, vector in zip(rows, vectors, strict=True):
        assert row["name"] == names[row["product"] - 1] and row["vector"] == vector
        products = {int(number) for number in listed[row["registry"] - 1].split(",")}
        assert row["listed"] == (row["product"] in products)


def test_command_runs_and_resumes(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "a.jsonl"
    run = ["amazon-tables", "--quick", "--device", "cpu", "--seeds", "1", "--categories", "safety"]
    run += ["--protocols", "random", "--data-dir", str(data_dir), "--results", str(results)]
    assert main([*run, "--models", "popularity,id"]) == 0
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert "2 of 6 trials" in shown and "## amazon:safety:random" in shown
    assert [record["model"] for record in read_records(results)][:2] == ["popularity", "id"]
    scores = {record["model"]: record["true_size"] for record in read_records(results)}
    assert scores["popularity"] > 15 and all(0 <= score <= 100 for score in scores.values())


def test_differences_are_paired_by_seed() -> None:
    def record(model: str, seed: int, score: float) -> dict[str, object]:
        return {"task": "a", "model": model, "seed": seed, "true_size": score, "own_size": score - 1, "seconds": 2.0}

    vectors = [record("vectors", seed, score) for seed, score in enumerate((40.0, 54.0))]
    texts = [record("text", seed, score) for seed, score in enumerate((50.0, 60.0, 10.0))]
    first, second = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in show([*texts, *vectors]).splitlines()[4:]
    )
    assert first == ["vectors", "2", "47.0 ± 7.0", "-", "46.0 ± 7.0", "-", "2"]
    assert second[3] == second[5] == "+8.0 = +4.0 se"

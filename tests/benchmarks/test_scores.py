"""Numbers of the tables, against hand-made records and the printed paper."""

import math

import pytest

from benchmarks._published import AMAZON_PAIRS, TABLE_2, best_published
from benchmarks._scores import collect, compare, score_table, summarise, verdicts
from benchmarks._tables import seconds, size, table
from setgrad.datasets import AMAZON_CATEGORIES


def _records(task: str, scores: dict[str, list[float]]) -> list[dict[str, object]]:
    return [
        {"task": task, "model": model, "seed": seed, "true_size": value, "own_size": value - 5, "options": model}
        for model, values in scores.items()
        for seed, value in enumerate(values)
    ]


RECORDS = [
    *_records("amazon:toys:farthest", {"paper": [60.0, 62.0], "default": [79.0, 81.0], "direct": [78.0, 80.0]}),
    *_records("amazon:toys:random", {"paper": [25.0, 27.0], "default": [20.0, 22.0], "direct": [27.0, 29.0]}),
]


def test_summary_by_hand() -> None:
    summary = summarise([1.0, 2.0, 3.0, 6.0])
    assert summary.mean == 3
    assert summary.deviation == pytest.approx(math.sqrt(14 / 3))
    assert summary.error == pytest.approx(math.sqrt(14 / 3) / 2)
    assert summarise([4.0]).to_json() == {"mean": 4.0, "deviation": None, "error": None, "count": 1}


def test_difference_in_standard_errors() -> None:
    # Each mean has an error of 1, so the difference has sqrt(2).
    assert compare(summarise([79.0, 81.0]), summarise([78.0, 80.0])) == pytest.approx(1 / math.sqrt(2))
    assert compare(summarise([5.0, 5.0]), summarise([5.0, 5.0])) == 0
    assert compare(summarise([4.0, 4.0]), summarise([5.0, 5.0])) == -math.inf
    assert math.isnan(compare(summarise([4.0]), summarise([5.0, 5.0])))


def test_rows_show_published_models_and_verdict() -> None:
    lines = score_table(RECORDS, "true_size", ["paper", "default", "direct"]).splitlines()
    assert len(lines) == 4
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        "amazon:toys:farthest",
        "2",
        "69.1 ± 1.0",
        "61.0 ± 1.4 (1.0)",
        "80.0 ± 1.4 (1.0)",
        "79.0 ± 1.4 (1.0)",
        "+1.0 = +0.7 se",
    ]
    assert lines[3].endswith(" -7.0 = -4.9 se |")


def test_models_that_were_not_run_are_dashes() -> None:
    only = [record for record in RECORDS if record["model"] == "paper"]
    assert score_table(only, "own_size", ["paper", "default"]).splitlines()[2].count(" - ") == 3


def test_verdicts_name_what_falls_short() -> None:
    lines = verdicts(RECORDS)
    assert lines[0].endswith("1 of 2 tasks (amazon:toys:random)")
    assert "farthest: +19.0 on average over 1" in lines[1]
    assert "random: -5.0" in lines[2]
    assert len(lines) == 3
    changed = [*RECORDS, {**RECORDS[0], "seed": 7, "options": "older"}]
    assert "mixed for paper" in verdicts(changed)[-1]


def test_a_repeated_fit_counts_once() -> None:
    again = [*RECORDS, {**RECORDS[0], "true_size": 70.0}]
    assert collect(again, "true_size")["amazon:toys:farthest"]["paper"].mean == 66


def test_published_numbers_are_complete() -> None:
    assert set(TABLE_2) == {"gaussian", "moons", *AMAZON_CATEGORIES}
    assert set(AMAZON_PAIRS) == set(AMAZON_CATEGORIES)
    # Set in bold in the paper.
    assert best_published("moons") == (58.97, 0.04, "iDiffMF nuclear")
    assert best_published("gaussian") == (91.03, 0.09, "iDiffMF nuclear")
    assert best_published("amazon:feeding:farthest") == (82.47, 0.19, "EquiVSet copula")
    assert best_published("amazon:safety:farthest") == (26.02, 1.68, "iDiffMF l2")
    assert best_published("amazon:media:farthest") == (56.60, 0.56, "EquiVSet ind")
    assert best_published("amazon:media:random") is None
    assert best_published("digits") is None


def test_units_and_columns() -> None:
    assert [seconds(0.0123), seconds(1.5)] == ["12.3 ms", "1.5 s"]
    assert [size(5.26e6), size(3.4e9)] == ["5.26 MB", "3.4 GB"]
    assert table(["a", "b"], [["long cell", "1"]]).splitlines()[0] == "| a         |   b |"

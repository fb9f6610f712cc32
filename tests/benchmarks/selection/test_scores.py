"""Numbers of the tables, against records written by hand and the published numbers."""

import math
from pathlib import Path

import pytest

from benchmarks.lib.summary import compare, summarise
from benchmarks.lib.tables import format_bytes, format_seconds, table
from benchmarks.selection.figures import draw_figures
from benchmarks.selection.models import MODELS
from benchmarks.selection.pages import cost_table, inference_table, published_table, score_table, show
from benchmarks.selection.published import AMAZON_PAIRS, TABLE_2, TABLE_6, TABLE_7, best_published, published
from benchmarks.selection.scores import averages, collect, values_of, verdicts
from setgrad.datasets import AMAZON_CATEGORIES


def _records(task: str, scores: dict[str, list[float]], splits: str = "folds") -> list[dict[str, object]]:
    return [
        {
            "task": task,
            "model": model,
            "seed": seed,
            "quick": False,
            "splits": splits,
            "true_size": value,
            "own_size": value - 5,
            "one_step": None if model == "direct" else value,
            "converged": None if model == "direct" else value - 1,
            "share_converged_test": None if model == "direct" else 0.5,
            "options": model,
            "seconds": 12.0,
            "epochs": 30,
            "peak_memory": 3e8,
            "commit": "abc",
        }
        for model, values in scores.items()
        for seed, value in enumerate(values)
    ]


RECORDS = [
    *_records("amazon:toys:farthest", {"diffmf": [60.0, 62.0], "unrolled": [79.0, 81.0], "direct": [78.0, 79.0]}),
    *_records("amazon:gear:farthest", {"diffmf": [70.0, 72.0], "unrolled": [89.0, 91.0], "direct": [88.0, 89.0]}),
    *_records("amazon:safety:farthest", {"diffmf": [20.0, 22.0], "unrolled": [21.0, 25.0], "direct": [19.0, 22.0]}),
    *_records("amazon:toys:random", {"diffmf": [25.0, 27.0], "unrolled": [20.0, 22.0], "direct": [27.0, 30.0]}),
]


def _rows(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_fits_of_one_fold_count_as_one() -> None:
    twice = _records("amazon:toys:farthest", {"unrolled": [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 10.0]})
    assert values_of(twice, "true_size") == {
        "amazon:toys:farthest": {"unrolled": {0: 5.0, 1: 6.0, 2: 3.0, 3: 4.0, 4: 5.0}}
    }
    assert len(values_of(_records("moons", {"direct": [1.0] * 7}, "published"), "true_size")["moons"]["direct"]) == 7


def test_summary_by_hand() -> None:
    summary = summarise([1.0, 2.0, 3.0, 6.0])
    assert summary.mean == 3
    assert summary.deviation == pytest.approx(math.sqrt(14 / 3))
    assert summary.error == pytest.approx(math.sqrt(14 / 3) / 2)
    assert summarise([4.0]).to_json() == {"mean": 4.0, "deviation": None, "error": None, "count": 1}


def test_difference_of_seeds_in_standard_errors() -> None:
    # Each mean has an error of 1, so the difference has sqrt(2).
    found = compare({0: 79.0, 1: 81.0}, {0: 78.0, 1: 80.0}, paired=False)
    assert found.points == 1 and found.errors == pytest.approx(1 / math.sqrt(2))
    assert compare({0: 5.0, 1: 5.0}, {0: 5.0, 1: 5.0}, paired=False).errors == 0
    assert compare({0: 4.0, 1: 4.0}, {0: 5.0, 1: 5.0}, paired=False).errors == -math.inf
    assert math.isnan(compare({0: 4.0}, {0: 5.0, 1: 5.0}, paired=False).errors)


def test_difference_of_folds_is_paired() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, error 1 / sqrt(3). What only one of them has does not count.
    found = compare({0: 11.0, 1: 52.0, 2: 93.0}, {0: 10.0, 1: 50.0, 2: 90.0, 3: 0.0}, paired=True)
    assert found.points == 2 and found.errors == pytest.approx(2 * math.sqrt(3))


def test_rows_show_models_differences_and_the_best_in_bold() -> None:
    rows = _rows(score_table(RECORDS, "true_size", paired=True))
    assert rows["task"] == [
        "n",
        "unrolled",
        "direct",
        "diffmf",
        "conditional - unrolled",
        "unrolled - direct",
        "unrolled - best published method",
    ]
    # Differences to direct are 1 and 2: mean 1.5, error 0.5.
    assert rows["amazon:toys:farthest"] == [
        "2",
        "**80.0 ± 1.4**",
        "78.5 ± 0.7",
        "61.0 ± 1.4",
        "-",
        "+1.5 = +3.0 se",
        "+19.0 = +inf se (diffmf)",
    ]
    assert rows["amazon:toys:random"][2].startswith("**28.5")
    assert rows["mean of 2 large, farthest"][1:4] == ["**85.0 ± 1.4**", "83.5 ± 0.7", "66.0 ± 1.4"]


def test_models_that_were_not_run_are_dashes() -> None:
    only = [record for record in RECORDS if record["model"] == "diffmf" or record["task"] == "amazon:gear:farthest"]
    row = _rows(score_table(only, "own_size", paired=True))["amazon:toys:farthest"]
    assert row == ["2", "-", "-", "**56.0 ± 1.4**", "-", "-", "-"]


def test_the_default_is_compared_with_ours() -> None:
    with_default = [*RECORDS, *_records("amazon:toys:farthest", {"conditional": [80.0, 83.0]})]
    row = _rows(score_table(with_default, "true_size", paired=True))["amazon:toys:farthest"]
    assert row[1] == "**81.5 ± 2.1**" and row[-3] == "+1.5 = +3.0 se"


def test_averages_compare_the_same_folds() -> None:
    lacking = [r for r in RECORDS if (r["task"], r["model"], r["seed"]) != ("amazon:gear:farthest", "direct", 1)]
    row = averages(values_of(lacking, "true_size"))["mean of 2 large, farthest"]
    assert row["direct"] == {0: 83.0}
    assert row["unrolled"] == {0: 84.0, 1: 86.0}


def test_verdicts_name_what_falls_short() -> None:
    lines = verdicts(RECORDS, paired=True)
    assert lines[0].endswith("1 of 4 tasks (amazon:toys:random)")
    assert "published method, large categories, farthest: +19.0 on average over 2, least +19.0" in lines[1]
    assert "2412.11239 (diffmf, idiffmf, equivset), large categories, farthest: +19.0" in lines[2]
    assert "over the folds that it shares with ours" in lines[3]
    assert "small categories, farthest: 1 of 1 (amazon:safety:farthest)" in lines[4]
    assert "random: -5.0" in lines[5]
    assert len(lines) == 8
    one_member = [
        {**r, "model": "unrolled-single", "true_size": 99.0} for r in RECORDS if r["task"] == "amazon:safety:farthest"
    ]
    assert verdicts([*RECORDS, *one_member], paired=True)[4] == lines[4]
    changed = [*RECORDS, {**RECORDS[0], "seed": 7, "options": "older"}]
    assert "mixed for diffmf" in verdicts(changed, paired=True)[-1]


def test_methods_of_one_publication_have_a_separate_verdict() -> None:
    rivals = {"horse": [78.0, 79.0], "diffmf": [60.0, 61.0], "idiffmf-2": [70.0], "equivset-ind": [65.0, 66.0]}
    toys = _records("amazon:toys:farthest", {"unrolled": [79.0, 85.0], **rivals})
    # A method without a fold that the default has is not compared.
    apart = [{**record, "seed": 4} for record in _records("amazon:toys:farthest", {"idiffmf-c": [99.0]})]
    gear = _records("amazon:gear:farthest", {"unrolled": [90.0, 92.0], "diffmf": [87.0, 88.0], "inset": [89.0, 89.0]})
    everyone, paper = verdicts([*toys, *apart, *gear], paired=True)[:2]
    # HorseFunction: 82 - 78.5; inset: 91 - 89.
    assert "method, large categories, farthest: +2.8 on average over 2, least +2.0 (amazon:gear:farthest)" in everyone
    # On the only fold of idiffmf-2: 79 - 70; diffmf: 91 - 87.5.
    assert "large categories, farthest: +6.2 on average over 2, least +3.5 (amazon:gear:farthest)" in paper
    # Numbers of seeds have nothing in common, so all count: 82 - 99 and 91 - 87.5.
    lines = verdicts([{**record, "splits": "published"} for record in [*toys, *apart, *gear]], paired=False)
    assert "farthest: -6.8 on average over 2, least -17.0 (amazon:toys:farthest)" in lines[1]
    assert "over its seeds" in lines[2]


def test_a_repeated_fit_counts_once() -> None:
    again = [*RECORDS, {**RECORDS[0], "true_size": 70.0}]
    assert collect(again, "true_size")["amazon:toys:farthest"]["diffmf"].mean == 66


def test_published_numbers_stand_beside_ours() -> None:
    assert _rows(published_table(RECORDS))["amazon:toys:farthest"] == ["61.0 / 64.4 ± 1.6"]
    assert "random" not in published_table(RECORDS)
    toys = _records("amazon:toys:farthest", {"idiffmf-2": [60.0], "direct": [1.0]})
    assert _rows(inference_table(toys))["amazon:toys:farthest"] == ["60.0 / 59.0 (50 %) [68.5]"]
    assert _rows(cost_table(toys))["amazon:toys:farthest"] == ["12 s, 30 ep, 300 MB", "12 s [68], 30 ep, 300 MB"]


def test_tables_are_ordered_by_splits_without_quick_runs() -> None:
    quick = {**RECORDS[0], "task": "moons", "quick": True, "true_size": 1.0}
    text = show([*RECORDS, quick, *_records("digits", {"unrolled": [50.0]}, "published")])
    assert "moons" not in text
    assert text.index("Five-fold") < text.index("amazon:toys") < text.index("several seeds") < text.index("digits")


def test_figures_are_written_for_each_family(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = draw_figures([*RECORDS, *_records("moons", {model: [50.0] for model in MODELS})], tmp_path / "t.md")
    assert [path.name for path in paths] == ["t-amazon-farthest.png", "t-amazon-random.png", "t-others.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_published_numbers_are_complete() -> None:
    everything = {"celeba", "bindingdb", "gaussian", "moons", *AMAZON_CATEGORIES}
    assert set(TABLE_2) == set(TABLE_6) == set(TABLE_7) == everything
    assert set(AMAZON_PAIRS) == set(AMAZON_CATEGORIES)
    # Bold in the publication.
    assert best_published("moons") == (58.97, 0.04, "idiffmf-nuclear")
    assert best_published("gaussian") == (91.03, 0.09, "idiffmf-nuclear")
    assert best_published("amazon:feeding:farthest") == (82.47, 0.19, "equivset-copula")
    assert best_published("amazon:safety:farthest") == (26.02, 1.68, "idiffmf-2")
    assert best_published("amazon:media:farthest") == (56.60, 0.56, "equivset-ind")
    assert best_published("bindingdb") == (77.48, 1.04, "idiffmf-nuclear")
    assert published("amazon:diaper:farthest")["idiffmf-c"] == (57.13, 5.37)
    assert best_published("amazon:media:random") is None
    assert best_published("digits") is None


def test_units_and_columns() -> None:
    assert [format_seconds(0.0123), format_seconds(1.5)] == ["12.3 ms", "1.5 s"]
    assert [format_bytes(5.26e6), format_bytes(3.4e9)] == ["5.26 MB", "3.4 GB"]
    assert table(["a", "b"], [["long cell", "1"]]).splitlines()[0] == "| a         |   b |"

"""The benchmarks of whole fits and predictions: all rivals are measured on the same sets."""

import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.speed.plain import PlainSetTransformer, predict_plain
from benchmarks.speed.speed_fit import share_to_score
from benchmarks.speed.speed_tasks import make_table
from setgrad.sets import Sets


def test_fits_are_measured(tmp_path, capsys):
    pytest.importorskip("lightgbm")
    file = tmp_path / "found.json"
    assert main(["speed-fit", "--quick", "--tasks", "table", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert all(row[name] > 0 for name in ("default", "plain", "lightgbm", "plain_to_best"))
    assert 0 < row["default_to_score"] <= row["default"]
    assert all(0 < row[name] <= 1 for name in ("default_score", "plain_score", "lightgbm_score"))
    assert "ratio to plain" in capsys.readouterr().out


def test_predictions_are_measured(tmp_path):
    pytest.importorskip("lightgbm")
    file = tmp_path / "found.json"
    assert main(["speed-predict", "--quick", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 5 and all(set(row) == {"1", "60"} for row in rows.values())


def test_the_plain_model_ignores_padding(seeded):
    """A set alone gets the same picks as beside a larger one."""
    with seeded(0):
        sets = Sets.from_list([torch.randn(4, 3), torch.randn(9, 3)])
        model = PlainSetTransformer(sets.values)
    sizes = torch.tensor([2, 3])
    together = predict_plain(model, sets, sizes)
    for number in range(2):
        (alone,) = predict_plain(model, sets[number : number + 1], sizes[number : number + 1])
        assert torch.equal(alone, together[number])


def test_the_table_has_the_sizes_that_it_says():
    table = make_table(50, 1, 20)
    assert set(table.sets.layout.host_lengths) == {30} and table.sets.item_shape == (20,)
    assert {int(subset.sum()) for subset in table.subsets} == {3, 4, 5, 6, 7, 8}
    assert torch.equal(table.sets.values, make_table(50, 1, 20).sets.values)


def test_the_time_to_a_score_is_that_of_the_first_epoch_with_it():
    scores = [0.5, 0.796, 0.9, 0.8]
    history = [{"validation_jaccard": score} for score in scores]
    assert share_to_score(history, 4) == 0.5
    assert share_to_score(history, 3) == 0.75

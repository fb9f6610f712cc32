"""`--stream`: Parquet files that are read block by block."""

import pytest
from pyarrow import parquet

from tests.selector.streams import make_rows, shrink, write_parts


@pytest.fixture
def folder(tmp_path):
    return write_parts(tmp_path / "data", make_rows(40), (100,))


COLUMNS = ["--set-id", "set", "--chosen", "chosen"]


def test_fit_and_predict_stream_to_the_same_model_and_picks(run, tiny, folder, tmp_path, monkeypatch):
    results = []
    for way in ("--stream", "--no-stream"):
        model, picks = tmp_path / way, tmp_path / f"{way}.parquet"
        fitted = run("fit", folder, way, *COLUMNS, *tiny, "-o", model, "--json").data
        with monkeypatch.context() as patched:
            shrink(patched)
            predicted = run("predict", model, folder, way, "-o", picks, "--json").data["chosen"]
        weights, rows = (model / "weights.safetensors").read_bytes(), parquet.read_table(picks)
        results.append((fitted["sets"], fitted["items"], fitted["size_scores"], predicted, weights, rows))
    assert results[0] == results[1]


def test_a_dry_run_describes_a_streamed_table(run, tiny, folder):
    ways = [run("fit", folder, way, *COLUMNS, *tiny, "--dry-run", "--json").data for way in ("--stream", "--no-stream")]
    assert ways[0] == ways[1]


def test_the_picks_of_the_first_sets_are_shown(run, tiny, folder, tmp_path):
    model = tmp_path / "model"
    run("fit", folder, *COLUMNS, *tiny, "-o", model)
    shown = run("predict", model, folder, "--stream", "-o", tmp_path / "picks.parquet", "--show", 1)
    assert shown.code == 0 and "picks written to" in shown.out and "chosen" in shown.out


def test_limits_cannot_be_streamed(run, tiny, folder, tmp_path):
    model = tmp_path / "model"
    limits = ["--at-most", 2, "--group", "brand"]
    assert "limits need all sets in memory" in run("fit", folder, "--stream", *COLUMNS, *limits, "-o", model).err
    run("fit", folder, *COLUMNS, *tiny, "-o", model)
    answer = run("predict", model, folder, "--stream", "-o", tmp_path / "picks.parquet", *limits)
    assert answer.code != 0 and "limits need all sets in memory; leave out --stream" in answer.err
    answer = run("predict", model, folder, "--stream", "--show", 1)
    assert answer.code != 0 and "name the file for the picks" in answer.err

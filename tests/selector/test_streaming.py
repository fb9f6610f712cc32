"""Fits on Parquet files that are read block by block: the model of the fit in memory, resumed, with clear errors."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import compute, dataset, parquet

from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.selector import Budget, SubsetSelector, _examples, _stream_fit
from setgrad.selector._examples import Examples
from setgrad.selector._options import declared_options
from setgrad.selector._trainer import Trainer
from setgrad.sets import Choices, Sets, _blocks
from tests.selector.streams import OPTIONS, ROLES, make_rows, shrink, shrink_sample, write_parts


@pytest.fixture
def rows():
    return make_rows()


@pytest.fixture
def folder(tmp_path, rows):
    return write_parts(tmp_path / "data", rows, (333, 334, 1001))


def fit(table, **more):
    names = {option.name for option in declared_options()}
    options = {name: more.pop(name) for name in list(more) if name in names}
    return SubsetSelector(**{**OPTIONS, **options}).fit(table, **ROLES, **more)


def assert_same(first, second):
    ours, theirs = first.model_.state_dict(), second.model_.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    for name in ("size_rule_", "completion_rule_", "size_scores_", "min_size_", "stop_logit_", "table_", "best_epoch_"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("more", [{}, {"weight": "weight"}, {"members": 2}, {"method": "unrolled"}])
def test_a_streamed_table_of_one_block_gives_the_model_of_the_fit_in_memory(folder, more):
    streamed, whole = (fit(folder, **more, stream=stream) for stream in (True, False))
    assert_same(streamed, whole)
    assert [{**record, "seconds": 0} for record in streamed.history_] == [
        {**record, "seconds": 0} for record in whole.history_
    ]


def test_files_and_row_groups_make_no_difference(tmp_path, rows, monkeypatch):
    shrink(monkeypatch, block=10**6)
    ways = [write_parts(tmp_path / "one", rows, group=10**6), write_parts(tmp_path / "many", rows, (7, 8, 500), 13)]
    first, second = (fit(way, stream=True) for way in ways)
    assert_same(first, second)


def test_a_list_of_files_a_data_set_and_an_address_are_read_like_the_folder(folder):
    paths = sorted(folder.iterdir())
    first = fit(folder, stream=True, max_epochs=1)
    for table in (paths, dataset.dataset(folder, format="parquet"), folder.as_uri()):
        assert_same(first, fit(table, stream=True, max_epochs=1))


def test_every_set_is_trained_on_once_in_an_epoch_and_blocks_come_in_another_order_in_the_next(folder, monkeypatch):
    shrink(monkeypatch)
    seen = []
    step = Trainer._step

    def noted(self, indices, *rest):
        seen.append(indices)
        return step(self, indices, *rest)

    monkeypatch.setattr(Trainer, "_step", noted)
    # The first sets of the epochs are read in order to compare them.
    fit(folder, stream=True, max_epochs=2, batch_size=4)
    order = np.concatenate(seen)
    half = len(order) // 2
    assert (np.sort(order[:half]) == np.arange(half)).all() and (np.sort(order[half:]) == np.arange(half)).all()
    assert (order[:half] != order[half:]).any() and (order[:half] != np.arange(half)).any()


def test_statistics_of_blocks_are_those_of_the_whole_table(folder, monkeypatch):
    whole = fit(folder, max_epochs=1)
    shrink(monkeypatch)
    streamed = fit(folder, max_epochs=1, stream=True)
    for name in ("mean", "deviation", "relative.rates"):
        expected = whole.model_.state_dict()[name]
        torch.testing.assert_close(streamed.model_.state_dict()[name], expected, rtol=1e-6, atol=1e-9)
    assert streamed.table_ == whole.table_


@pytest.mark.parametrize("stream", [True, False])
def test_a_fit_that_is_interrupted_anywhere_is_resumed_to_the_same_model(folder, tmp_path, monkeypatch, stream):
    shrink(monkeypatch, part=2)
    more = {"stream": stream, "batch_size": 8}
    whole = fit(folder, **more)
    rng, step, left = np.random.default_rng(0), Trainer._step, [0]

    def dying(self, *arguments):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", dying)
    saved = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_minutes": 1e-9}
    for steps in rng.integers(3, 11, 3).tolist():
        left[0] = steps
        with pytest.raises(KeyboardInterrupt):
            fit(folder, **more, **saved)
    left[0] = -1
    assert_same(fit(folder, **more, **saved), whole)


def test_checkpoints_inside_an_epoch_wait_for_their_time(folder, tmp_path, monkeypatch):
    shrink(monkeypatch, part=1)
    saves = []
    monkeypatch.setattr("setgrad.selector._checkpoint.replace_file", lambda *_, **__: saves.append(1))
    fit(folder, stream=True, max_epochs=2, checkpoint=tmp_path / "run.ckpt")
    assert len(saves) == 2, "after each epoch"
    fit(folder, stream=True, max_epochs=2, checkpoint=tmp_path / "run.ckpt", checkpoint_minutes=1e-9, batch_size=8)
    assert len(saves) > 4


def test_a_checkpoint_of_other_rows_is_refused(folder, tmp_path, rows):
    fit(folder, stream=True, max_epochs=1, checkpoint=tmp_path / "run.ckpt")
    changed = rows.set_column(1, "price", compute.add(rows["price"], 0.25))
    with pytest.raises(FileFormatError, match="belongs to other data or other options"):
        other = write_parts(tmp_path / "other", changed)
        fit(other, stream=True, max_epochs=1, checkpoint=tmp_path / "run.ckpt")


def test_one_huge_set_beside_small_ones(tmp_path, monkeypatch):
    shrink(monkeypatch, block=64, window=128)
    small = make_rows(30, largest=6)
    huge = make_rows(1, seed=1, largest=2).take(pa.array([0] * 700)).set_column(0, "set", pa.array(["huge"] * 700))
    huge = huge.set_column(1, "price", pa.array(np.random.default_rng(0).normal(size=700)))
    folder = write_parts(tmp_path / "data", pa.concat_tables([small.slice(0, 40), huge, small.slice(40)]), (100, 600))
    # The first rows end in the middle of a set.
    with pytest.raises(DataError, match="appears again after other sets"):
        fit(folder, stream=True)
    end = small.num_rows
    folder = write_parts(tmp_path / "data2", pa.concat_tables([small, huge]), (end + 100, end + 600))
    selector = fit(folder, stream=True)
    got = tmp_path / "picks.parquet"
    selector.write_picks(folder, got)
    assert parquet.read_table(got).equals(selector.predict(folder))


def test_large_batches_are_taken_in_several_steps(monkeypatch):
    monkeypatch.setattr(_examples, "BATCH_ITEMS", 100)
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    lengths[7] = 500
    sets = Sets.from_lengths(torch.zeros(int(lengths.sum()), 1), lengths)
    examples = Examples(Choices(sets, sets.with_values(sets.values[:, 0] > 0)), None)
    _, parts = examples.plan(0, 200)
    pieces = [piece for part in parts for piece in part.batches]
    assert (np.sort(np.concatenate(pieces)) == np.arange(200)).all()
    assert all(len(piece) == 1 or len(piece) * lengths[piece].max() <= 100 for piece in pieces)
    monkeypatch.setattr(_examples, "BATCH_ITEMS", 10**6)
    (one,) = examples.plan(0, 200)[1]
    assert [sorted(batch.tolist()) for batch in one.batches] == [list(range(200))], "one batch"


def test_rows_of_a_set_that_are_apart_are_an_error_with_the_set_and_the_row(tmp_path, rows):
    end = rows["set"].to_pylist().index(rows["set"][-1].as_py())
    apart = pa.concat_tables([rows.slice(end), rows.slice(0, end), rows.slice(end)])
    folder = write_parts(tmp_path / "data", apart, (100,))
    name = rows["set"][-1].as_py()
    text = rf"row {rows.num_rows + 1} .*set {name!r} appears again after other sets \(it began at row 1\).* together"
    with pytest.raises(DataError, match=text):
        fit(folder, stream=True)


def test_sets_with_equal_hashes_are_told_apart(folder, monkeypatch):
    monkeypatch.setattr("setgrad.sets._set_index._hashes", lambda ids: np.zeros(len(ids), np.uint64))
    assert len(fit(folder, stream=True, max_epochs=1).history_) == 1


def test_files_without_rows_are_skipped_and_tables_without_rows_refused(tmp_path, rows):
    folder = write_parts(tmp_path / "data", rows, (0, 500, 500))
    assert_same(
        fit(folder, stream=True, max_epochs=1), fit(write_parts(tmp_path / "one", rows), stream=True, max_epochs=1)
    )
    empty = write_parts(tmp_path / "empty", rows.slice(0, 0))
    with pytest.raises(DataError, match="columns but no rows"):
        fit(empty, stream=True)
    (empty / "0.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"0\.parquet: the file is empty"):
        fit(empty, stream=True)


def test_files_with_other_columns_are_an_error_that_names_the_file(tmp_path, rows):
    folder = write_parts(tmp_path / "data", rows, (500,))
    parquet.write_table(rows.drop_columns(["brand"]), folder / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: there is no column 'brand', which other files have"):
        fit(folder, stream=True)
    parquet.write_table(rows.set_column(2, "stars", rows["stars"].cast(pa.float64())), folder / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: column 'stars' is double, and int64 in other files"):
        fit(folder, stream=True)


def test_a_damaged_file_is_an_error(folder):
    path = folder / "2.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        fit(folder, stream=True)


def test_values_that_cannot_be_read_name_their_row_in_the_whole_table(tmp_path, rows, monkeypatch):
    shrink(monkeypatch)
    chosen = pa.array([1] * 900 + [2] + [0] * (rows.num_rows - 901))
    folder = write_parts(tmp_path / "data", rows.set_column(6, "chosen", chosen))
    with pytest.raises(DataError, match=r"column 'chosen', row 901 .*neither true nor false"):
        fit(folder, stream=True)


def test_gaps_and_facts_that_the_sample_does_not_show(tmp_path, monkeypatch, capsys):
    rows = make_rows(200)
    stars = pa.array([None if number == rows.num_rows - 3 else 1.5 + number % 7 for number in range(rows.num_rows)])
    season = rows["season"].to_pylist()
    season[-1] = "autumn"
    rows = rows.set_column(2, "stars", stars).set_column(4, "season", pa.array(season))
    folder = write_parts(tmp_path / "data", rows)
    shrink(monkeypatch)
    shrink_sample(monkeypatch)
    streamed = fit(folder, stream=True, max_epochs=1, verbose=1)
    assert "columns are understood from a sample of" in capsys.readouterr().err
    found = {column.name: column for column in streamed.table_.columns.columns}
    expected = {column.name: column for column in fit(folder, max_epochs=1).table_.columns.columns}
    assert found["stars"].flag and expected["stars"].flag
    assert not found["season"].context and not expected["season"].context


def test_numbers_that_need_double_precision_get_it(tmp_path, rows, monkeypatch):
    shrink(monkeypatch)
    times = pa.array(1.7e9 + np.random.default_rng(0).random(rows.num_rows))
    folder = write_parts(tmp_path / "data", rows.set_column(2, "stars", times))
    streamed, whole = fit(folder, stream=True, max_epochs=1), fit(folder, max_epochs=1)
    assert streamed.table_.dtype == whole.table_.dtype == "float64"


def test_validation_sets_are_held_in_memory_up_to_a_limit_and_the_others_are_trained_on(folder, monkeypatch):
    monkeypatch.setattr(_stream_fit, "VALIDATION_ITEMS", 100)
    read = SubsetSelector(**OPTIONS).read_to_stream(folder, _arguments(), has_validation=False)
    assert 0 < read.validation.sets.layout.total <= 100
    assert len(read.train) + len(read.validation) == read.sets


def _arguments():
    from setgrad.columns._arguments import TableArguments

    return TableArguments("set", "chosen", None, None, None, None, ())


def test_separate_validation_sets_and_a_start(tmp_path, folder):
    validation = write_parts(tmp_path / "validation", make_rows(20, seed=5))
    streamed, whole = (fit(folder, validation=validation, stream=stream) for stream in (True, False))
    assert_same(streamed, whole)
    assert_same(*(fit(folder, start=whole, stream=stream, max_epochs=1) for stream in (True, False)))
    with pytest.raises(OptionError, match="must be a table too"):
        fit(folder, validation=([[[0.0]]], [[0]]), stream=True)


def test_a_table_that_would_not_fit_is_streamed_and_one_line_says_so(folder, monkeypatch, capsys):
    monkeypatch.setenv("SETGRAD_MAX_TABLE_BYTES", "80000")
    shrink(monkeypatch)
    fit(folder, max_epochs=1, verbose=1)
    text = capsys.readouterr().err
    assert "GiB may be used: it is streamed from its files" in text and "rows, read block by block" in text
    monkeypatch.delenv("SETGRAD_MAX_TABLE_BYTES")
    fit(folder, max_epochs=1, verbose=1)
    assert "stream" not in capsys.readouterr().err


def test_large_row_groups_are_warned_of(folder, monkeypatch):
    monkeypatch.setattr(_blocks, "LARGE_ROWS", 40)
    monkeypatch.setattr(_blocks, "BLOCK_ROWS", 20)
    with pytest.warns(UserWarning, match=r"a row group has 50 rows, .*row groups of 100,000"):
        fit(folder, stream=True, max_epochs=1)


def test_what_cannot_be_streamed_says_so(folder, tmp_path, rows):
    with pytest.raises(OptionError, match="what was passed is in memory already"):
        fit(rows, stream=True)
    with pytest.raises(OptionError, match="constraints and limits need all sets in memory"):
        fit(folder, stream=True, constraint=Budget([[1.0]], 2.0))
    with pytest.raises(OptionError, match="groups cannot be passed beside a table that is streamed"):
        fit(folder, stream=True, groups=np.zeros(rows.num_rows))
    with pytest.raises(OptionError, match="stream must be True, False or None, not 1"):
        fit(folder, stream=1)
    (tmp_path / "rows.csv").write_text("set,chosen,x\n1,0,1\n")
    with pytest.raises(DataError, match="only Parquet can be streamed"):
        fit(tmp_path / "rows.csv", stream=True)
    with pytest.raises(DataError, match="there is no such file"):
        fit(tmp_path / "none.parquet", stream=True)
    with pytest.raises(DataError, match=r"there is no column 'sett' \(did you mean 'set'\?\)"):
        SubsetSelector(**OPTIONS).fit(folder, set_id="sett", chosen="chosen", stream=True)


def test_names_of_folders_are_columns(tmp_path, rows):
    folder = tmp_path / "data"
    half = rows["set"].to_pylist().index(rows["set"][rows.num_rows // 2].as_py())
    for country, part in (("NL", rows.slice(0, half)), ("SE", rows.slice(half))):
        (folder / f"country={country}").mkdir(parents=True)
        parquet.write_table(part, folder / f"country={country}" / "0.parquet")
    streamed, whole = (fit(folder, stream=stream, max_epochs=1) for stream in (True, False))
    assert_same(streamed, whole)
    assert "country" in streamed.table_.features


def test_progress_counts_rows(folder, monkeypatch, capsys):
    monkeypatch.setattr("setgrad._progress._SOONEST", 0.0)
    shrink(monkeypatch)
    fit(folder, stream=True, max_epochs=1, verbose=2)
    assert "rows/s" in capsys.readouterr().err


def test_views_of_texts_are_read_as_texts(tmp_path, rows):
    views = rows.set_column(0, "set", rows["set"].cast(pa.string_view()))
    views = views.set_column(3, "brand", rows["brand"].cast(pa.string_view()))
    one, other = (
        fit(write_parts(tmp_path / name, part), stream=True, max_epochs=1) for name, part in (("a", rows), ("b", views))
    )
    assert_same(one, other)

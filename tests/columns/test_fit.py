"""Columns fitted to a table: what counts as training rows, context, faults, and what looks wrong."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import setgrad as sg
import setgrad.columns._fit
from setgrad.columns._surprises import Surprises
from setgrad.errors import DataError, OptionError
from setgrad.sets._read import Roles, read_rows
from setgrad.sets._sources import open_table
from tests.columns.tables import fit_table, read_items
from tests.columns.test_formats import KINDS, mixed_frame

SETS, ITEMS = 30, 4


def test_columns_are_fitted_to_training_rows_only():
    frame = mixed_frame()
    training = np.arange(SETS) % 3 > 0
    rows = np.repeat(training, ITEMS)
    columns, _ = fit_table(frame, training=training, columns=KINDS)
    # Everything about the other rows changes.
    other = frame.copy()
    other.loc[~rows, "price"] *= 1000
    other.loc[~rows, "stock"] = np.nan
    other.loc[~rows, "exact"] = np.nan
    other.loc[~rows, "sale"] = True
    other.loc[~rows, "brand"] = [f"new {number % 2}" for number in range((~rows).sum())]
    other.loc[~rows, "seen"] = pd.Timestamp("1999-09-09 09:09")
    other.loc[~rows, "title"] = "many other words of which nobody heard before"
    other.loc[~rows, "device"] = np.random.default_rng(0).choice(["phone", "watch"], (~rows).sum())
    changed, _ = fit_table(other, training=training, columns=KINDS)
    assert changed.to_json() == columns.to_json()
    for one, two in zip(columns.parts, changed.parts, strict=True):
        assert (one.scales is None and two.scales is None) or np.array_equal(one.scales, two.scales)
    # The training rows have the numbers that a table of them alone gives.
    alone, _ = fit_table(frame[rows], columns=KINDS)
    assert alone.to_json() == columns.to_json()
    assert read_items(other, columns)[rows].equal(read_items(frame, columns)[rows])


def test_columns_with_one_value_in_each_set_are_context():
    sets = np.repeat(np.arange(20), 3)
    table = {
        "s": sets,
        "device": np.where(sets % 2 == 0, "phone", "desk"),
        "hour": sets * 1.5,
        "late": np.where(sets == 4, None, sets * 2.5),
        "price": np.arange(60) ** 2 * 0.5,
        "rare": [f"v{number}" for number in range(60)],
    }
    columns, description = fit_table(pd.DataFrame(table))
    assert {column.name: column.context for column in columns.columns} == {
        "device": True,
        "hour": True,
        "late": True,
        "price": False,
        # All values are unknown, so all items have the same code, which tells nothing about a set.
        "rare": False,
    }
    uses = {summary.name: summary.use for summary in description.columns}
    assert uses["hour"] == "the same in a set: context" and uses["price"] == ""
    assert [part.context for part in columns.parts] == [True, True, True, False, False]


def test_sets_of_one_item_show_no_context():
    frame = pd.DataFrame({"s": range(20), "x": np.arange(20) * 0.5, "c": ["a", "b"] * 10})
    columns, _ = fit_table(frame)
    assert not any(column.context for column in columns.columns)
    # Among others they do not count.
    more = pd.DataFrame({"s": [50, 50, 51, 51], "x": [1.25, 1.25, 2.25, 2.25], "c": ["a", "b", "b", "a"]})
    columns, _ = fit_table(pd.concat([frame, more]))
    assert [column.context for column in columns.columns] == [True, False]


def test_all_faults_are_named_at_once():
    frame = mixed_frame().assign(price=["x"] * 120, stock=[1.0, np.inf] * 60, lists=[[1.0, 2.0]] * 119 + [[1.0]])
    with pytest.raises(DataError) as caught:
        fit_table(frame, columns={"price": "number"})
    text = str(caught.value)
    assert "3 faults" in text
    for name in ("price", "stock", "lists"):
        assert re.search(rf"column '{name}', row \d+ ", text)


def test_faults_of_ids_choices_and_columns_are_told_together():
    frame = mixed_frame().assign(bought="maybe", load=-1.0, price="cheap", lists=[[1.0, 2.0]] * 119 + [[1.0]])
    frame.loc[3, "s"] = np.nan
    frame["item"] = [None, *range(119)]
    arguments: dict[str, Any] = {
        "set_id": "s",
        "chosen": "bought",
        "item_id": "item",
        "weight": "load",
        "columns": {"price": "number"},
    }
    for read in (lambda **a: sg.describe(frame, **a), lambda **a: sg.SubsetSelector().fit(frame, **a)):
        with pytest.raises(DataError, match="6 faults: ") as caught:
            read(**arguments)
        found = [re.search(r"column '(\w+)', row (\d+) ", str(fault)).groups() for fault in caught.value.faults]
        rows = [("s", "4"), ("bought", "1"), ("item", "1"), ("load", "1"), ("price", "1"), ("lists", "120")]
        assert found == rows
        assert all(str(fault) in str(caught.value) for fault in caught.value.faults)


def test_items_that_are_in_a_set_twice_are_told_and_kept():
    frame = mixed_frame().assign(item=np.tile(np.arange(4), 30), bought=lambda f: f.groupby("s")["price"].rank() < 2)
    frame.loc[[1, 6, 7], "item"] = [0, 3, 3]
    roles: dict[str, Any] = {"set_id": "s", "item_id": "item"}
    text = (
        "column 'item', row 2: item 0 is in set 0 already (row 1); 2 sets have an item more than once, also 1; each "
        "row is an item of its own, and only the rows tell their picks apart"
    )
    assert text in sg.describe(frame, **roles).warnings
    selector = sg.SubsetSelector(max_epochs=1, verbose=0, device="cpu")
    with pytest.warns(UserWarning, match=re.escape(f"the data frame: {text}")):
        selector.fit(frame, chosen="bought", **roles)
    with pytest.warns(UserWarning, match=re.escape(f"the data frame: {text}")):
        picks = selector.predict(frame)
    assert picks["item"].tolist() == frame["item"].tolist()
    # The ids change nothing else.
    named = frame.assign(item=range(120))
    assert selector.predict(named)["probability"].tolist() == picks["probability"].tolist()
    # Tables of numbers have one row for each id.
    with pytest.raises(
        DataError, match=r"column 'item', row 2 .*; 2 sets have an item more than once, also 1; an item"
    ):
        sg.read_table(frame, features=["exact"], **roles)


def test_a_table_without_a_usable_column_says_why():
    frame = pd.DataFrame({"s": [1, 1, 2, 2], "same": "x", "product_id": range(4), "gone": None})
    with pytest.raises(DataError, match=r"no column can be used as features \(same: has one value only; product_id: "):
        fit_table(frame)
    with pytest.raises(DataError, match="all have a role"):
        fit_table(frame[["s"]])


def test_options_that_are_not_understood_raise():
    frame = mixed_frame()
    with pytest.raises(OptionError, match="columns must map columns to kinds, as"):
        fit_table(frame, columns=["brand"])
    with pytest.raises(
        OptionError, match="unknown kind of column 'categroy'; choose one of: number, boolean, category"
    ):
        fit_table(frame, columns={"brand": "categroy"})
    with pytest.raises(OptionError, match=r"embed must be a list of columns; write \['brand'\]"):
        fit_table(frame, embed="brand")


def warnings_of(frame, **arguments):
    _, description = fit_table(frame, **arguments)
    return description.warnings


def test_what_looks_wrong_is_named():
    rng = np.random.default_rng(0)
    sets = np.repeat(np.arange(40), 5)
    bought = rng.random(200) < 0.4
    frame = pd.DataFrame({"s": sets, "x": rng.normal(size=200), "y": bought})
    assert warnings_of(frame, chosen="y") == ()
    label = frame.assign(copy=np.where(bought, "yes", "no"), turned=~bought, group=np.where(bought, "a", "b"))
    (text,) = warnings_of(label, chosen="y")
    assert text.startswith("copy, turned, group: tells nearly by itself what was chosen; leave it out")
    # A number that separates nearly all by one border, or hides a label behind rounding.
    leaks = frame.assign(leak=np.where(bought, 3.0, 1.0) + rng.random(200), turned=-1.0 * bought - rng.random(200) / 9)
    (text,) = warnings_of(leaks, chosen="y")
    assert text.startswith("leak, turned: tells nearly by itself what was chosen")
    mixed = leaks.assign(leak=lambda f: f["leak"].where(f.index % 20 > 0, 4 - f["leak"])).drop(columns="turned")
    assert warnings_of(mixed, chosen="y") == ()
    # What is best in each set is no label.
    best = frame.assign(y=frame.groupby("s")["x"].rank() <= 2)
    assert warnings_of(best, chosen="y") == ()
    (text,) = warnings_of(frame[:50], chosen="y")
    assert text == "there are only 10 sets with items; expect little"
    (text,) = warnings_of(frame.assign(y=False), chosen="y")
    assert text.startswith("nothing was chosen from any set")
    (text,) = warnings_of(frame.assign(y=True), chosen="y")
    assert text.startswith("everything was chosen from every set")
    (text,) = warnings_of(frame.assign(y=bought & (sets < 15)), chosen="y")
    assert re.match(r"from \d+ of 40 sets nothing or everything was chosen", text)
    (text,) = warnings_of(frame.assign(x=rng.integers(2, 4, 200) + sets), chosen="y")
    pairs = sum(group["x"].duplicated().sum() for _, group in frame.assign(x=0).groupby("s"))
    assert re.match(r"\d+ items are equal to another item of their set", text) and int(text.split()[0]) < pairs


def test_a_category_is_no_label_because_few_items_are_chosen():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"s": np.repeat(np.arange(30), 200), "x": rng.normal(size=6000)})
    frame = frame.assign(y=frame.index % 200 == 7, brand=rng.choice(["a", "b", "c"], 6000))
    assert warnings_of(frame, chosen="y") == ()
    label = frame.assign(brand=np.where(frame["y"], "d", frame["brand"]))
    assert "brand: tells nearly by itself" in warnings_of(label, chosen="y")[0]


def test_equal_items_are_counted():
    frame = pd.DataFrame({"s": np.repeat(range(20), 4), "x": [1.0, 2.0, 1.0, 1.0] * 20, "c": ["a", "b", "a", "b"] * 20})
    (text,) = warnings_of(frame)
    assert text.startswith("20 items are equal to another item of their set in all features")


def test_work_grows_with_the_number_of_columns_and_no_faster(monkeypatch):
    """Each column is taken from the table a few times, however many there are."""
    taken = []
    whole = setgrad.columns._fit._whole

    def counted(source, table, name):
        taken.append(name)
        return whole(source, table, name)

    monkeypatch.setattr(setgrad.columns._fit, "_whole", counted)
    counts = []
    for width in (10, 40):
        taken.clear()
        names = [f"c{number}_" for number in range(width)]
        fit_table(pa.table({"s": [0, 0, 1, 1], **{name: [0.5, 1.5, 2.5, 3.5] for name in names}}))
        counts.append(len(taken))
    assert counts[1] <= 4 * counts[0]


def surprises_of(frame, columns):
    surprises = Surprises()
    read_rows(open_table(frame), Roles("s"), columns.reader(surprises), torch.float32)
    return surprises.warnings()


def test_new_gaps_and_unknown_values_are_counted_through_all_chunks(monkeypatch):
    frame = mixed_frame()
    columns, _ = fit_table(frame, columns=KINDS)
    assert surprises_of(frame, columns) == []
    monkeypatch.setattr("setgrad.sets._sources.chunk_rows", lambda columns: 7)
    new = frame.assign(brand=["New"] * 70 + ["Acme"] * 50)
    new.loc[:10, "price"] = np.nan
    new.loc[:3, "exact"] = np.nan
    # Training had gaps in these.
    new["stock"], new["seen"] = np.nan, pd.NaT
    gaps, unknown = surprises_of(new, columns)
    assert gaps.startswith("values are missing where none was in training: price (11), exact (4); the median")
    assert unknown.startswith("most values are unknown from training: brand (70 of 120); check")
    assert surprises_of(frame.assign(brand=["New"] * 50 + ["Acme"] * 70), columns) == []
    # Too few to tell, and no values at all.
    assert surprises_of(frame.assign(brand=["New"] * 19 + [None] * 101), columns) == []
    assert surprises_of(frame.assign(brand=None), columns) == []


def test_columns_in_which_most_values_were_rare_may_stay_so():
    frame = pd.DataFrame({"s": np.repeat(range(30), 4), "p": [f"p{number}" for number in range(120)]})
    frame.loc[::6, "p"] = "often"
    columns, _ = fit_table(frame, embed=["p"])
    assert columns.columns[0].unknown_share == pytest.approx(100 / 120)
    assert surprises_of(frame.assign(p="new").assign(p=lambda f: f["p"].where(f.index % 6 > 0, "often")), columns) == []
    assert len(surprises_of(frame.assign(p="new"), columns)) == 1


def test_numbers_beyond_single_precision_are_named():
    frame = pd.DataFrame({"s": [0, 0, 1, 1], "x": [1.0, 2.0, 3.0, 5.0]})
    columns, _ = fit_table(frame)
    big = frame.assign(x=[1.0, 2.0, 1e300, 5.0])
    with pytest.raises(DataError, match=r"column 'x', row 3 .*1e\+300 is too large for torch.float32"):
        read_items(big, columns, torch.float32)
    assert read_items(big, columns, None).dtype == torch.float64


def test_spellings_of_gaps_are_told_of_categories():
    degree = ["none", "master", " None", "", "doctorate", None, "master", "doctorate"] * 10
    table = pa.table({"s": [row // 4 for row in range(80)], "degree": degree, "stars": [*"12-4"] * 20})
    _, description = fit_table(table)
    used = {column.name: column for column in description.columns}
    assert used["degree"].missing == 40
    assert used["degree"].use == "2 values, and rare ones together; 'None' or 'none' is a gap"
    # A dash is no number.
    assert used["stars"].missing == 20 and "gap" not in used["stars"].use

"""A selector on a table with columns of every kind: round trips, other types, and what cannot be read."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setgrad as sg
from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.selector import SubsetSelector
from setgrad.selector._tables import SOLVERS
from tests.columns.tables import column_of
from tests.columns.test_formats import mixed_frame, write

SMALL: dict[str, Any] = {
    "dim": 8,
    "hidden": (8,),
    "layers": 1,
    "max_epochs": 2,
    "random_state": 0,
    "verbose": 0,
    "device": "cpu",
}
KINDS = {"title": "text", "seen": "date", "shop_id": "category"}
ROLES: dict[str, Any] = {"set_id": "s", "chosen": "bought", "item_id": "item"}


def make_frame(seed: int = 0) -> pd.DataFrame:
    frame = mixed_frame(seed)
    frame["exact"] = frame["exact"].round(6)
    return frame.assign(
        item=[f"i{number}" for number in range(len(frame))],
        bought=frame["price"] <= frame.groupby("s")["price"].transform("median"),
    )


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def fitted(frame):
    return SubsetSelector(**SMALL).fit(frame, **ROLES, columns=KINDS)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    fitted.save(folder)
    return folder


def rows_of(picks: Any) -> dict[str, list[Any]]:
    return pa.table(picks).select(["chosen", "probability", "rank"]).to_pydict()


ENDINGS = [".parquet", ".arrow", ".csv", ".csv.gz", ".tsv", "semicolons.csv", "polars.csv", ".jsonl"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_saved_model_picks_the_same_from_every_file(fitted, saved, tmp_path, ending):
    new, path = make_frame(1), tmp_path / f"new{ending}"
    write(new, ending, path)
    assert rows_of(sg.load(saved, device="cpu").predict(str(path))) == rows_of(fitted.predict(new))


def test_a_saved_model_picks_the_same_from_every_frame(fitted, saved):
    new, loaded = make_frame(1), sg.load(saved, device="cpu")
    expected = rows_of(fitted.predict(new))
    categorical = new.assign(brand=new["brand"].astype("category"), device=pd.Categorical(new["device"]))
    for table in (
        new,
        categorical,
        pl.from_pandas(new),
        pl.from_pandas(new).with_columns(pl.col("device").cast(pl.Enum(["desk", "phone", "watch"]))),
        pa.Table.from_pandas(new),
        new.convert_dtypes(dtype_backend="pyarrow"),
    ):
        assert rows_of(loaded.predict(table)) == expected
    assert loaded.score(new) == fitted.score(new)
    assert loaded.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()


# What changes in a table between fit and predict, if the picks stay the same.
SAME: dict[str, Any] = {
    "other order": lambda f: f[f.columns[::-1]],
    "new columns": lambda f: f.assign(extra=1, more="x"),
    "no column of the choices": lambda f: f.drop(columns="bought"),
    "float for int": lambda f: f.assign(shop_id=f["shop_id"].astype(float)),
    "text for int": lambda f: f.assign(shop_id=f["shop_id"].astype(str)),
    "text for float": lambda f: f.assign(price=f["price"].map(repr)),
    "single bytes for int": lambda f: f.assign(shop_id=f["shop_id"].astype("int8")),
    "dictionary for text": lambda f: f.assign(brand=f["brand"].astype("category")),
    "dictionary with other levels": lambda f: f.assign(
        brand=pd.Categorical(f["brand"], categories=["z", *sorted(set(f["brand"].dropna()), reverse=True)])
    ),
    "text for date": lambda f: f.assign(seen=f["seen"].astype(str)),
    "date with nanoseconds": lambda f: f.assign(seen=f["seen"].astype("datetime64[ns]")),
    "whole numbers with a point": lambda f: f.assign(stock=f["stock"].astype("Int64").astype(object)),
    "single precision": lambda f: f.assign(stock=f["stock"].astype("float32")),
    "a decimal for a float": lambda f: f.assign(price=[Decimal(repr(value)) for value in f["price"]]),
    "a category for text": lambda f: f.assign(title=f["title"].astype("category")),
    "a category for a date": lambda f: f.assign(seen=f["seen"].astype(str).astype("category")),
    "ids as text": lambda f: f.assign(s=f["s"].map("session {}".format)),
    "ids as a category": lambda f: f.assign(item=f["item"].astype("category")),
    "another index": lambda f: f.set_index(pd.Index(range(len(f), 0, -1))),
    "the set as the index": lambda f: f.set_index("s"),
    "no item ids": lambda f: f.drop(columns="item"),
    "text for truth": lambda f: f.assign(sale=np.where(f["sale"], "yes", "no")),
    "number for truth": lambda f: f.assign(sale=f["sale"].astype(float)),
    "gaps in other spellings": lambda f: f.assign(brand=f["brand"].fillna("n/a")),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_values_in_another_form_give_the_same_picks(fitted, case):
    new = make_frame(1)
    assert rows_of(fitted.predict(SAME[case](new))) == rows_of(fitted.predict(new))


# What changes in a table between fit and predict, and the warning.
WARNED: dict[str, tuple[Any, str]] = {
    "gaps where there were none": (
        lambda f: f.assign(price=f["price"].where(f.index > 6), sale=f["sale"].where(f.index > 2)),
        r"the data frame: values are missing where none was in training: price \(7\), sale \(3\)",
    ),
    "no values where there were gaps or none": (
        lambda f: f.assign(price=None, seen=None, stock=None, title=None, brand=None),
        r"missing where none was in training: price \(120\); the median",
    ),
    "unknown categories": (
        lambda f: f.assign(brand="New", device=f["device"].str.upper()),
        r"most values are unknown from training: brand \(120 of 120\), device \(120 of 120\); check that",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_what_training_did_not_show_is_told_once(fitted, case):
    change, message = WARNED[case]
    with pytest.warns(UserWarning, match=message) as caught:
        picks = fitted.predict(change(make_frame(1)))
    assert len(caught) == 1 and np.isfinite(picks["probability"]).all()


def test_a_few_unknown_categories_are_no_surprise(fitted):
    new = make_frame(1)
    new.loc[:20, "brand"] = "New"
    other = new.assign(brand=new["brand"].replace("New", "Other"))
    # All unknown values are alike.
    assert rows_of(fitted.predict(new)) == rows_of(fitted.predict(other))


# What cannot be read, and the error.
WRONG: dict[str, tuple[Any, str]] = {
    "missing columns": (
        lambda f: f.drop(columns=["price", "brand", "seen"]),
        r"there is no column 'price' or 'brand' or 'seen'; the columns are: s, stock",
    ),
    "a misspelt column": (
        lambda f: f.rename(columns={"price": "prices"}),
        r"no column 'price' \(did you mean 'prices'",
    ),
    "text for numbers": (lambda f: f.assign(price="cheap"), r"column 'price', row 1 .*'cheap' is not a number"),
    "decimal commas": (
        lambda f: f.assign(price=f["price"].map(lambda price: f"{price:.2f}".replace(".", ","))),
        r"column 'price', row 1 .*' is not a number; write it without a comma \(pandas: decimal=\",\"",
    ),
    "several types in a column": (
        lambda f: f.assign(price=f["price"].astype(object).where(f.index != 4, "cheap")),
        r"column 'price', row 5 .*: 'cheap' is str, unlike the values before; give the column one type",
    ),
    "several faults": (
        lambda f: f.assign(price="cheap", sale="maybe", seen="soon"),
        r"3 faults: .*'price', row 1 .*; .*'sale', row 1 .*neither true nor false.*; .*'seen', row 1 .*not a date",
    ),
    "a number for a date": (lambda f: f.assign(seen=17), r"column 'seen', row 1 .*: 17 is not a date but int64"),
    "a date for a number": (lambda f: f.assign(price=dt.date(2024, 1, 1)), r"column 'price', row 1 .*is not a number"),
    "lists for categories": (
        lambda f: f.assign(brand=[["a"]] * len(f)),
        r"column 'brand', row 1 .*leave the column out",
    ),
    "long numbers": (lambda f: f.assign(price=2**60), r"column 'price', row 1 .*has more digits than a number keeps"),
    "vectors for numbers": (
        lambda f: f.assign(price=[[1.0, 2.0]] * len(f)),
        r"column 'price', row 1 .*is not a number",
    ),
    "structures for text": (lambda f: f.assign(title=[{"en": "lamp"}] * len(f)), r"column 'title', row 1 .*as text"),
    "dates in another form": (
        lambda f: f.assign(seen=f["seen"].dt.strftime("%d.%m.%Y")),
        r"column 'seen', row \d+ .*is not a date as 2024-12-31; write it so",
    ),
    "truth with a third value": (
        lambda f: f.assign(sale=np.where(f.index == 4, 2, f["sale"])),
        r"column 'sale', row 5 .*2 is neither true nor false",
    ),
    "a set without an id": (
        lambda f: f.assign(s=f["s"].where(f.index != 2), price="cheap"),
        r"2 faults: .*column 's', row 3 .*; .*column 'price', row 1 ",
    ),
    "numbers that are spelled": (
        lambda f: f.assign(stock=f["stock"].map(str) + " pieces"),
        r"column 'stock', row 1 .*pieces' is not a number",
    ),
    "infinite numbers": (lambda f: f.assign(price=np.inf), r"column 'price', row 1 .*inf is not finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_named(fitted, case):
    change, message = WRONG[case]
    with pytest.raises(DataError, match=message):
        fitted.predict(change(make_frame(1)))


def test_a_model_is_fitted_on_every_kind_of_frame(fitted, frame):
    enums = pl.from_pandas(frame).with_columns(
        pl.col("device").cast(pl.Enum(["desk", "phone"])), pl.col("brand").cast(pl.Categorical)
    )
    for table in (pa.Table.from_pandas(frame), pl.from_pandas(frame), enums):
        other = SubsetSelector(**SMALL).fit(table, **ROLES, columns=KINDS)
        assert other.table_ == fitted.table_
        assert rows_of(other.predict(enums)) == rows_of(fitted.predict(frame))


def test_columns_that_are_called_the_same_are_refused(fitted, frame):
    twice = pa.table([*(frame[name] for name in frame), frame["price"]], names=[*frame.columns, "price"])
    with pytest.raises(DataError, match="2 columns are called 'price'; rename them"):
        fitted.predict(twice)
    with pytest.raises(DataError, match="2 columns are called 'price'; rename them"):
        SubsetSelector(**SMALL).fit(twice, **ROLES)


def test_picks_of_a_set_do_not_depend_on_the_other_rows(fitted):
    new = make_frame(1)
    whole = fitted.predict(new)
    for number in (0, 7, 29):
        alone = fitted.predict(new[new["s"] == number])
        rows = whole[whole["s"] == number]
        assert alone["chosen"].tolist() == rows["chosen"].tolist()
        assert alone["probability"].tolist() == pytest.approx(rows["probability"].tolist(), abs=1e-6)


@pytest.mark.parametrize("method", SOLVERS)
def test_every_method_learns_from_a_table(frame, method):
    selector = SubsetSelector(**{**SMALL, "method": method}).fit(frame, **ROLES, columns=KINDS)
    tables = [member.columns for member in selector.model_.each()]
    assert all(table is not None for table in tables)
    assert np.isfinite(selector.predict(frame)["probability"]).all()


@pytest.mark.parametrize("standardize", [True, False])
def test_rates_of_categories_are_counted_in_training_sets(frame, standardize):
    selector = SubsetSelector(**{**SMALL, "standardize": standardize}).fit(
        frame, **ROLES, features=["brand", "exact"], validation=make_frame(5)
    )
    columns = selector.table_.columns if selector.table_ is not None else None
    assert columns is not None and selector.model_.relative is not None
    codes = columns.columns[0].encode([column_of(frame["brand"])])[:, 0].astype(int)
    counts = np.bincount(codes, minlength=columns.parts[0].codes)
    assert selector.model_.relative.rates.tolist() == pytest.approx([0.0, *counts[1:] / len(frame)])


def test_ids_alone_are_learned():
    rng = np.random.default_rng(0)
    items = np.concatenate([rng.permutation(12)[:5] for _ in range(80)])
    baskets = pd.DataFrame({"s": np.repeat(range(80), 5), "product": items, "y": items % 3 == 0})
    options = {**SMALL, "max_epochs": 40, "learning_rate": 2e-2}
    names: dict[str, Any] = {"set_id": "s", "chosen": "y", "item_id": "product", "embed": ["product"]}
    with pytest.warns(UserWarning, match="product: tells nearly by itself what was chosen"):
        selector = SubsetSelector(**options).fit(baskets, **names)
    assert selector.feature_names_in_.tolist() == ["product"]
    assert selector.score(baskets) > 0.95
    # Unknown ids are alike.
    with pytest.warns(UserWarning, match=r"most values are unknown from training: product \(25 of 25\)"):
        unknown = selector.predict(baskets[:25].assign(product=range(1000, 1025)))
    assert unknown["probability"].nunique() == 1


def test_a_fit_resumes_from_its_checkpoint(frame, tmp_path):
    names = {**ROLES, "columns": KINDS}
    whole = SubsetSelector(**{**SMALL, "max_epochs": 3}).fit(frame, **names)
    path = tmp_path / "state"
    SubsetSelector(**{**SMALL, "max_epochs": 1, "checkpoint": path}).fit(frame, **names)
    resumed = SubsetSelector(**{**SMALL, "max_epochs": 3, "checkpoint": path}).fit(frame, **names)
    assert [record["epoch"] for record in resumed.history_] == [1, 2, 3]
    assert rows_of(resumed.predict(frame)) == rows_of(whole.predict(frame))
    assert resumed.table_ == whole.table_


def test_a_start_lends_its_columns(fitted, frame):
    new = make_frame(3)
    new["brand"] = new["brand"].replace("Acme", "Newcomer")
    again = SubsetSelector(**SMALL).fit(new, **ROLES, start=fitted)
    assert again.table_ is not None and again.table_.columns == fitted.table_.columns
    # The same, if the columns are named again.
    same = SubsetSelector(**SMALL).fit(new, **ROLES, start=fitted, columns=KINDS, features=fitted.feature_names_in_)
    assert rows_of(same.predict(new)) == rows_of(again.predict(new))
    others: dict[str, tuple[dict[str, Any], str]] = {
        "fewer": ({"features": ["price"]}, "brand is left out here"),
        "more": ({"features": [*fitted.feature_names_in_, "extra"]}, "extra is missing there"),
        "kind": ({"columns": {"brand": "text"}}, "brand is text here"),
        "ignored": ({"columns": {"brand": "ignore"}}, "brand is ignore here"),
        "ids": ({"embed": ["extra"]}, "extra is id here"),
    }
    for arguments, message in others.values():
        with pytest.raises(OptionError, match=f"the selector in start has other columns: .*{message}"):
            SubsetSelector(**SMALL).fit(new.assign(extra=1.5), **ROLES, start=fitted, **arguments)


DAMAGE: dict[str, Any] = {
    "kind": lambda table: table["columns"][0].update(kind="none"),
    "no columns": lambda table: table.update(columns=[]),
    "field": lambda table: table["columns"][0].pop("fill"),
    "size": lambda table: table["columns"][-1].update(values=["a"] * 3),
    "other names": lambda table: table.update(features=["price"]),
    "one column less": lambda table: table["columns"].pop(),
    "one column more": lambda table: table["columns"].append(table["columns"][0]),
    "another name": lambda table: table["columns"][0].update(name="cost"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_model_is_refused(saved, tmp_path, case):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes((saved / "weights.safetensors").read_bytes())
    config = json.loads((saved / "config.json").read_text())
    DAMAGE[case](config["table"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileFormatError):
        sg.load(folder, device="cpu")

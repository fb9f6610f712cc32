"""Ids that a spreadsheet would run: an apostrophe before them in CSV files, which can be undone."""

import csv
import gzip
import re

import pyarrow.parquet
import pytest

from setgrad.sets import Sets, write_table

# An id, and how it is written.
IDS = {
    "=cmd|' /C calc'!A0": "'=cmd|' /C calc'!A0",
    "+1+2": "'+1+2",
    "-2+3": "'-2+3",
    "@SUM(A1)": "'@SUM(A1)",
    "\t=1": "'\t=1",
    "\r=1": "'\r=1",
    "'=1": "''=1",
    "''@": "'''@",
    # Numbers, and texts that do not run.
    "-5": "-5",
    "+1.5e-3": "+1.5e-3",
    "a=b": "a=b",
    "'quoted'": "'quoted'",
    "é": "é",
}
PICKS = Sets.from_list([[True]] * len(IDS))


def read(path):
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.tsv"])
def test_formulas_are_guarded_and_can_be_undone(tmp_path, name):
    with pytest.warns(UserWarning, match="would run 17 ids or names as formulas"):
        write_table(tmp_path / name, PICKS, set_ids=[*IDS], item_ids=[*IDS], names=("=set", "item"))
    header, *rows = read(tmp_path / name)
    assert header == ["'=set", "item", "chosen"]
    assert [row[0] for row in rows] == [row[1] for row in rows] == [*IDS.values()]
    undone = [re.sub(r"^'(?='*[=+\-@\t\r])", "", row[0]) for row in rows]
    assert undone == [*IDS]


def test_formulas_are_written_as_they_are_if_that_is_asked_for(tmp_path):
    write_table(tmp_path / "p.csv", PICKS, set_ids=[*IDS], formulas=True)
    assert [row[0] for row in read(tmp_path / "p.csv")[1:]] == [*IDS]


def test_other_formats_hold_ids_as_they_are(tmp_path):
    write_table(tmp_path / "p.parquet", PICKS, set_ids=[*IDS])
    assert pyarrow.parquet.read_table(tmp_path / "p.parquet")["set_id"].to_pylist() == [*IDS]


def test_numbers_and_plain_texts_give_no_warning(tmp_path):
    write_table(tmp_path / "p.csv", Sets.from_list([[True, False]]), set_ids=[-3], item_ids=["a", "-4"])
    assert read(tmp_path / "p.csv")[1:] == [["-3", "a", "true"], ["-3", "-4", "false"]]

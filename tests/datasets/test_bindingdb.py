"""BindingDB's public table, on small generated files in the formats of several years."""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.datasets import bindingdb, load_task, pair_tokens
from setgrad.datasets._bindingdb import read_bindingdb
from setgrad.errors import DataError, FileFormatError, OptionError

CHAINS = "Number of Protein Chains in Target (>1 implies a multichain complex)"
NEW = "BindingDB Target Chain Sequence 1"
OLD = "BindingDB Target Chain  Sequence"
FEW: dict[str, Any] = {"n_train": 3, "n_validation": 1, "n_test": 1}


def table(rows: list[tuple[str, str, str, str]], sequence: str = NEW) -> str:
    """Return a table with the needed columns among others, and the chain columns repeated, as in the real file."""
    header = ["BindingDB Reactant_set_id", "Ligand SMILES", "Ki (nM)", "IC50 (nM)", "Kd (nM)", "EC50 (nM)"]
    header += [CHAINS, sequence, "PDB ID(s) of Target Chain", OLD if sequence == OLD else sequence[:-1] + "2"]
    lines = ["\t".join(header)]
    for number, (smiles, protein, kd, chains) in enumerate(rows):
        lines.append("\t".join([str(number), smiles, "", "7.0", kd, "", chains, protein, "1ABC", "SECONDCHAIN"]))
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("sequence", [NEW, OLD, "BindingDB Target Chain Sequence"])
def test_rows_are_read_in_every_version(tmp_path: Path, sequence: str) -> None:
    rows = [
        ("CCO", "MKV", "10", "1"),
        ("CCO", "mkv", " 1000 ", "1"),
        ("CCN", "MKV", ">10000", "1"),
        ("CCN", "GGG", "<0.1", ""),
        ("CCC", "MKV", "", "1"),
        ("CCC", "MKV", "0", "1"),
        ("CCC", "MKV", "many", "1"),
        ("CCC", "MKV", "5", "2"),
        ("", "MKV", "5", "1"),
        ("CCC", "", "5", "1"),
    ]
    pairs = read_bindingdb(write(tmp_path / "t.tsv", table(rows, sequence)), "Kd")
    names = [(pairs.smiles[d], pairs.proteins[t]) for d, t in zip(pairs.drug, pairs.target, strict=True)]
    assert names == [("CCO", "MKV"), ("CCN", "MKV"), ("CCN", "GGG")]
    # 10 and 1000 nM: the mean of the logarithms is 100 nM, a pKd of 7.
    np.testing.assert_allclose(pairs.activity, [7.0, 5.0, 10.0])
    assert pairs.ids.tolist() == [2, 4, 5]


def test_another_measure_reads_another_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", table([("CCO", "MKV", "10", "1")]))
    assert read_bindingdb(path, "IC50").activity.tolist() == pytest.approx([9.0 - math.log10(7.0)])
    assert len(read_bindingdb(path, "Ki")) == 0


@pytest.fixture
def rows() -> list[tuple[str, str, str, str]]:
    rng = np.random.default_rng(0)
    rings = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "c1ccsc1"]
    smiles = [ring + tail for ring in rings for tail in ["O", "CN", "CCl", "C(=O)O", "CCC#N", "S(=O)(=O)N"]]
    return [(s, "MKV" * (n + 1), f"{rng.integers(1, 10**6) / 100}", "1") for s in smiles for n in range(12)]


def test_the_task_is_built_from_readable_ligands(tmp_path: Path, rows: list[tuple[str, str, str, str]]) -> None:
    # The most active ligand is one that RDKit cannot read. Only "active", which needs no fingerprint, uses it.
    rows += [("C(C(C", "MKV" * n, "0.001", "1") for n in range(1, 5)]
    write(tmp_path / "bindingdb" / "BindingDB_All.tsv", table(rows))
    task = load_task("bindingdb", data_dir=tmp_path, **FEW)
    assert repr(task) == "Task('bindingdb': 3 training, 1 validation, 1 test sets)"
    lines = np.asarray(task.train.item_ids)
    assert lines.max() < 2 + 360
    tokens = pair_tokens([rows[n - 2][0] for n in lines], [rows[n - 2][1] for n in lines])
    assert torch.equal(task.train.sets.values, tokens)
    assert all(1 < int(mask.sum()) < 30 for mask in task.train.subsets)
    kd = np.array([float(rows[n - 2][2]) for n in lines]).reshape(3, 300)
    for values, mask in zip(kd, task.train.subsets, strict=True):
        assert values[mask.numpy()].max() <= np.sort(values)[99]
    active = bindingdb("active", data_dir=tmp_path, **FEW)
    assert np.asarray(active.train.item_ids).max() >= 2 + 360
    assert [int(mask.sum()) for mask in active.train.subsets] == [15] * 3


def test_a_zipped_table_gives_the_same_task(tmp_path: Path, rows: list[tuple[str, str, str, str]]) -> None:
    plain = write(tmp_path / "t.tsv", table(rows))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.write(plain, "BindingDB_All.tsv")
    one = bindingdb("active", path=plain, **FEW)
    two = bindingdb("active", path=tmp_path / "t.zip", **FEW)
    assert torch.equal(one.train.sets.values, two.train.sets.values)


def test_damaged_tables_raise_errors(tmp_path: Path) -> None:
    good = table([("CCO", "MKV", "10", "1")] * 2)
    for text, message in (
        (good.replace("Kd (nM)", "Kd"), r"no column 'Kd \(nM\)'"),
        (good.replace("Ligand SMILES", "Drug"), "no column 'Ligand SMILES'"),
        (good.replace(NEW, "Protein"), f"no column '{NEW}'"),
        ("", "no column 'Ligand SMILES'"),
        (good + "3\tCCO\t\t", "line 4: at least 8 columns were expected, not 4"),
    ):
        with pytest.raises(FileFormatError, match=message):
            read_bindingdb(write(tmp_path / "t.tsv", text), "Kd")
    write(tmp_path / "t.zip", "no archive")
    with pytest.raises(FileFormatError, match=r"t\.zip cannot be read"):
        read_bindingdb(tmp_path / "t.zip", "Kd")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(FileFormatError, match=r"must hold one \.tsv file, not 0"):
        read_bindingdb(tmp_path / "empty.zip", "Kd")


def test_missing_and_ambiguous_tables_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        bindingdb(data_dir=tmp_path)
    with pytest.raises(DataError, match=r"there is no file .*absent\.tsv"):
        bindingdb(path=tmp_path / "absent.tsv")
    for name in ("a.tsv", "b.tsv"):
        write(tmp_path / "bindingdb" / name, "")
    with pytest.raises(DataError, match=r"holds 2 files that end in \.tsv or \.zip"):
        bindingdb(data_dir=tmp_path)
    with pytest.raises(OptionError, match="unknown compound protocol"):
        bindingdb("cheap")

"""Compound selection on BindingDB, from the table that its web site publishes."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from setgrad.datasets._folder import data_folder, unreadable
from setgrad.datasets._pair_sets import PROTOCOL_TEXTS, PairTask, make_splits
from setgrad.datasets._pairs import Pairs
from setgrad.datasets._task import Task
from setgrad.errors import DataError, FileFormatError, unknown_name

BINDINGDB_MEASURES = ("Kd", "Ki", "IC50", "EC50")

_SMILES = "Ligand SMILES"
_CHAINS = "Number of Protein Chains in Target (>1 implies a multichain complex)"
# Since 2025 the chains are numbered; before, the name had two spaces and was repeated for each chain.
_SEQUENCES = (
    "BindingDB Target Chain Sequence 1",
    "BindingDB Target Chain  Sequence",
    "BindingDB Target Chain Sequence",
)
_SOURCE = (
    "BindingDB, www.bindingdb.org, T. Liu et al., Nucleic Acids Research 35, 2007; see the site for the licence. "
    "Construction: G. Özcan et al., arXiv:2412.11239, appendix I."
)


def bindingdb(
    protocol: str = "diverse",
    *,
    measure: str = "Kd",
    path: str | Path | None = None,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    cache: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of `compounds`, constructed from BindingDB's own table.

    Only targets of one chain are used. A value such as ">10000" counts as its number, and several values of one pair
    as the mean of their logarithms. The protocol "diverse" leaves out ligands that RDKit cannot read, since they have
    no fingerprint. `item_ids` are the numbers of the first line of the file with the pair; the header is line 1.

    Args:
        protocol: "diverse" or "active", see `compounds`.
        measure: One of `BINDINGDB_MEASURES`; Özcan et al. (2024, arXiv:2412.11239) use "Kd".
        path: The table, as `.tsv` or zipped; by default the only such file in the folder `bindingdb` of `data_dir`.
        random_state: Seed of the draws.
        data_dir: The folder that contains `bindingdb`; by default the environment variable `SETGRAD_DATA`.
        cache: A folder that stores built tasks, see `compounds`. It does not detect another version of the table.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 100 by default.
        n_test: Number of test sets; 100 by default.

    Raises:
        OptionError: If the protocol or the measure is unknown, or a number is not an integer of at least 0.
        DataError: If the table is missing or has too few pairs.
        FileFormatError: If the table or the stored task is damaged.
        MissingDependencyError: If RDKit or scikit-learn is needed and not installed.

    Examples:
        >>> bindingdb(measure="Km")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown BindingDB measure 'Km'; choose one of: Kd, Ki, IC50, EC50
    """
    if measure not in BINDINGDB_MEASURES:
        raise unknown_name("BindingDB measure", measure, BINDINGDB_MEASURES)
    spec = PairTask.of(f"bindingdb-{measure}", protocol, random_state, (n_train, n_validation, n_test))
    train, validation, test = make_splits(spec, lambda: read_bindingdb(_find_table(path, data_dir), measure), cache)
    description = f"Drug-target pairs of BindingDB by p{measure}: each set holds 300 pairs; {PROTOCOL_TEXTS[protocol]}."
    return Task("bindingdb", description, train, validation, test, _SOURCE)


def read_bindingdb(path: Path, measure: str) -> Pairs:
    """Return the pairs of a table that have a value of this measure, which is in nM."""
    drugs: dict[str, int] = {}
    proteins: dict[str, int] = {}
    # For each pair: the sum of the logarithms, their number, and the first line.
    entries: dict[tuple[int, int], list[float]] = {}
    with _open_lines(path) as lines:
        header = next(lines, "").rstrip("\r\n").split("\t")
        columns = _find_columns(path, header, measure)
        last = max(columns)
        for number, line in enumerate(lines, start=2):
            # The hundreds of columns after the last needed one are not split.
            cells = line.rstrip("\r\n").split("\t", last + 1)
            if len(cells) <= last:
                raise FileFormatError(
                    f"{path}, line {number}: at least {last + 1} columns were expected, not {len(cells)}; "
                    "download the file again"
                )
            smiles, protein, text, chains = (cells[column].strip() for column in columns)
            value = _parse_value(text)
            if value is None or not smiles or not protein or chains not in ("", "1"):
                continue
            drug = drugs.setdefault(smiles, len(drugs))
            target = proteins.setdefault(protein.upper(), len(proteins))
            entry = entries.setdefault((drug, target), [0.0, 0.0, number])
            entry[0] += 9.0 - math.log10(value)
            entry[1] += 1.0
    keys = np.array(list(entries), dtype=np.int64).reshape(-1, 2)
    sums = np.array(list(entries.values()), dtype=np.float64).reshape(-1, 3)
    activity = sums[:, 0] / sums[:, 1]
    return Pairs(list(drugs), list(proteins), keys[:, 0], keys[:, 1], activity, sums[:, 2].astype(np.int64))


def _parse_value(text: str) -> float | None:
    """Return the number in a cell such as "12.5", ">10000" or "<0.1"; None if it has no positive number."""
    try:
        value = float(text.lstrip("<>=~ "))
    except ValueError:
        return None
    return value if 0.0 < value < math.inf else None


def _find_columns(path: Path, header: list[str], measure: str) -> tuple[int, int, int, int]:
    # Spaces at the ends vary between versions. The first column of a name belongs to the first chain.
    positions: dict[str, int] = {}
    for position, name in enumerate(header):
        positions.setdefault(name.strip().lstrip("\ufeff"), position)
    sequence = next((name for name in _SEQUENCES if name in positions), _SEQUENCES[0])
    needed = (_SMILES, sequence, f"{measure} (nM)", _CHAINS)
    missing = [name for name in needed if name not in positions]
    if missing:
        raise FileFormatError(
            f"{path} has no column {missing[0]!r}; it must be BindingDB's table of tab-separated values"
        )
    smiles, protein, value, chains = (positions[name] for name in needed)
    return smiles, protein, value, chains


def _find_table(path: str | Path | None, data_dir: str | Path | None) -> Path:
    if path is not None:
        if not Path(path).is_file():
            raise DataError(f"there is no file {path}; download BindingDB's table of tab-separated values")
        return Path(path)
    folder = data_folder(data_dir, "bindingdb", "the BindingDB tables")
    tables = sorted(file for file in folder.iterdir() if file.suffix in (".tsv", ".zip"))
    if len(tables) != 1:
        raise DataError(f"{folder} holds {len(tables)} files that end in .tsv or .zip; choose one with path=")
    return tables[0]


@contextmanager
def _open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a table, zipped or not, and return an iterator over its lines."""
    try:
        if path.suffix != ".zip":
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                yield file
            return
        with zipfile.ZipFile(path) as archive:
            tables = [name for name in archive.namelist() if name.endswith(".tsv")]
            if len(tables) != 1:
                raise FileFormatError(f"{path} must hold one .tsv file, not {len(tables)}; unpack it and pass path=")
            with (
                archive.open(tables[0]) as raw,
                io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n") as file,
            ):
                yield file
    except (zipfile.BadZipFile, EOFError) as error:
        raise unreadable(path, error) from error

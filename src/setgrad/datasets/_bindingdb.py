"""Compound selection on BindingDB, from the table that its site offers for download."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from setgrad.datasets._folder import data_folder
from setgrad.datasets._pair_sets import RULES, Recipe, pair_splits
from setgrad.datasets._pairs import Pairs
from setgrad.datasets._task import Task
from setgrad.errors import DataError, FileFormatError, unknown_name

BINDINGDB_MEASURES = ("Kd", "Ki", "IC50", "EC50")

_SMILES = "Ligand SMILES"
_CHAINS = "Number of Protein Chains in Target (>1 implies a multichain complex)"
# Since 2025 the chains are numbered; before, the name had two spaces, and came once for each chain.
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
    """Compound selection as `compounds` builds it, on BindingDB's own table.

    Targets of one chain are kept; a value such as ">10000" counts as its number, and several values of one pair as
    the mean of their logarithms. Ligands that RDKit cannot read are left out under "diverse", since they have no
    fingerprint. `item_ids` are numbers of the first line in the file that measured the pair; the header is line 1.

    Args:
        protocol: "diverse" or "active", see `compounds`.
        measure: One of `BINDINGDB_MEASURES`; the paper takes "Kd".
        path: The table, as `.tsv` or zipped; the only such file in the folder `bindingdb` of `data_dir` if None.
        random_state: Seed of the draws.
        data_dir: The folder that contains `bindingdb`; the environment variable `SETGRAD_DATA` if None.
        cache: A folder that keeps what was built, see `compounds`. It does not notice another version of the table.
        n_train: Number of training sets; 1000 if None. The other two are 100.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> bindingdb(measure="Km")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown BindingDB measure 'Km'; choose one of: Kd, Ki, IC50, EC50
    """
    if measure not in BINDINGDB_MEASURES:
        raise unknown_name("BindingDB measure", measure, BINDINGDB_MEASURES)
    recipe = Recipe.of(f"bindingdb-{measure}", protocol, random_state, (n_train, n_validation, n_test))
    train, validation, test = pair_splits(recipe, lambda: read_bindingdb(_table(path, data_dir), measure), cache)
    description = f"Drug-target pairs of BindingDB by p{measure}: each set holds 300 pairs; {RULES[protocol]}."
    return Task("bindingdb", description, train, validation, test, _SOURCE)


def read_bindingdb(path: Path, measure: str) -> Pairs:
    """Read the pairs of a table that have a value of this measure, in nM."""
    drugs: dict[str, int] = {}
    proteins: dict[str, int] = {}
    # For each pair: the sum of the logarithms, how many there were, and the first line.
    found: dict[tuple[int, int], list[float]] = {}
    with _lines(path) as lines:
        header = next(lines, "").rstrip("\r\n").split("\t")
        columns = _columns(path, header, measure)
        last = max(columns)
        for number, line in enumerate(lines, start=2):
            # The hundreds of columns behind the last one that matters stay in one piece.
            cells = line.rstrip("\r\n").split("\t", last + 1)
            if len(cells) <= last:
                raise FileFormatError(
                    f"{path}, line {number}: {last + 1} columns or more were expected, not {len(cells)}; "
                    "take a fresh copy of the file"
                )
            smiles, protein, text, chains = (cells[column].strip() for column in columns)
            value = _value(text)
            if value is None or not smiles or not protein or chains not in ("", "1"):
                continue
            drug = drugs.setdefault(smiles, len(drugs))
            target = proteins.setdefault(protein.upper(), len(proteins))
            entry = found.setdefault((drug, target), [0.0, 0.0, number])
            entry[0] += 9.0 - math.log10(value)
            entry[1] += 1.0
    keys = np.array(list(found), dtype=np.int64).reshape(-1, 2)
    sums = np.array(list(found.values()), dtype=np.float64).reshape(-1, 3)
    activity = sums[:, 0] / sums[:, 1]
    return Pairs(list(drugs), list(proteins), keys[:, 0], keys[:, 1], activity, sums[:, 2].astype(np.int64))


def _value(text: str) -> float | None:
    """The number of a cell such as "12.5", ">10000" or "<0.1"; None if it holds no positive number."""
    try:
        value = float(text.lstrip("<>=~ "))
    except ValueError:
        return None
    return value if 0.0 < value < math.inf else None


def _columns(path: Path, header: list[str], measure: str) -> tuple[int, int, int, int]:
    # Spaces at the ends vary between versions. The first column of a name is that of the first chain.
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        places.setdefault(name.strip().lstrip("\ufeff"), place)
    sequence = next((name for name in _SEQUENCES if name in places), _SEQUENCES[0])
    wanted = (_SMILES, sequence, f"{measure} (nM)", _CHAINS)
    missing = [name for name in wanted if name not in places]
    if missing:
        raise FileFormatError(
            f"{path} has no column {missing[0]!r}; it must be BindingDB's table of tab-separated values"
        )
    smiles, protein, value, chains = (places[name] for name in wanted)
    return smiles, protein, value, chains


def _table(path: str | Path | None, data_dir: str | Path | None) -> Path:
    if path is not None:
        if not Path(path).is_file():
            raise DataError(f"there is no file {path}; download BindingDB's table of tab-separated values")
        return Path(path)
    folder = data_folder(data_dir, "bindingdb", "the BindingDB tables")
    tables = sorted(file for file in folder.iterdir() if file.suffix in (".tsv", ".zip"))
    if len(tables) != 1:
        raise DataError(f"{folder} holds {len(tables)} files that end in .tsv or .zip; name the right one by path=")
    return tables[0]


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a table, zipped or not, and go through its lines."""
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
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error

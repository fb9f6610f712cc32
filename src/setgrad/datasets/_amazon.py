"""Amazon baby registries: which of these 30 products did a customer put on the list?"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from setgrad.datasets._folder import data_folder
from setgrad.datasets._task import Task, fill_counts, generators
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices, Sets

AMAZON_CATEGORIES = (
    "apparel",
    "bath",
    "bedding",
    "carseats",
    "diaper",
    "feeding",
    "furniture",
    "gear",
    "health",
    "media",
    "safety",
    "toys",
)
AMAZON_PROTOCOLS = ("farthest", "random")

_SET_SIZE = 30
_FEWEST = 3
_FOLDER = "amazon_baby_registry"
_VECTORS = "minilm_l6_v2_item_embeddings.npz"
_SOURCE = (
    "Registries: J. Gillenwater, A. Kulesza, E. Fox, B. Taskar, 'Expectation-Maximization for Learning Determinantal "
    "Point Processes', NIPS 2014, published without a licence: do not redistribute. Protocols: Z. Ou et al., NeurIPS "
    "2022 (code), and G. Özcan et al., arXiv:2412.11239, appendix I.1 (text). Features: MiniLM-L6-v2 vectors of "
    "the product titles (384-d), where the papers use BERT (768-d)."
)
_OTHERS = {
    "farthest": "the products least like the chosen ones, as in the published code",
    "random": "products drawn at random, as in the text of Özcan et al.",
}


def amazon(
    category: str,
    protocol: str = "farthest",
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Find the products on a customer's registry among 30 products of one category.

    Registries of 3 to 29 products are kept, in the order of the file. The other products of a set depend on the
    protocol. "farthest": those with the lowest cosine similarity to the mean vector of the chosen ones, which is
    what the published code does. "random": drawn at random, which is what the text of Özcan et al. says. Scores of the
    two are far apart and must not be compared. Items are shuffled inside each set; `random_state` decides that, and the draw.

    The first third of the kept registries is for training, the second for validation; the last third and the
    remainder of the division are for testing. Different customers may have made the same list, so equal subsets
    do occur in two splits. `set_ids` are line numbers of the file, `item_ids` the product numbers, both from 1.

    Args:
        category: One of `AMAZON_CATEGORIES`.
        protocol: One of `AMAZON_PROTOCOLS`.
        random_state: Seed of the shuffling and of the random products.
        data_dir: The folder that contains `amazon_baby_registry`; the environment variable `SETGRAD_DATA` if None.
        n_train: Keep only so many sets of the split, from its start; all if None. The same for the other two.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> amazon("toys", "nearest")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown Amazon protocol 'nearest'; choose one of: farthest, random
    """
    if category not in AMAZON_CATEGORIES:
        raise unknown_name("Amazon category", category, AMAZON_CATEGORIES)
    if protocol not in AMAZON_PROTOCOLS:
        raise unknown_name("Amazon protocol", protocol, AMAZON_PROTOCOLS)
    folder = data_folder(data_dir, _FOLDER, "the Amazon registries")
    vectors = _read_vectors(folder / _VECTORS, category)
    lines, chosen = _read_registries(folder / f"1_100_100_100_{category}_regs.csv", len(vectors))
    rng, shuffle = generators(random_state, 2)
    # The lower its rank, the sooner a product joins the set; the chosen ones always do.
    rank = _similarity(vectors, chosen) if protocol == "farthest" else rng.random(chosen.shape)
    members = np.argsort(np.where(chosen, -np.inf, rank), axis=1, kind="stable")[:, :_SET_SIZE]
    members = shuffle.permuted(members, axis=1)
    third = len(members) // 3
    starts = (0, third, 2 * third)
    there = (third, third, len(members) - 2 * third)
    counts = fill_counts((n_train, n_validation, n_test), there)
    rows = [slice(start, start + min(n, most)) for start, n, most in zip(starts, counts, there, strict=True)]
    train, validation, test = (_split(vectors, lines[part], chosen[part], members[part]) for part in rows)
    description = (
        f"Baby registries, category {category}: each set holds {_SET_SIZE} products, the 3 to 29 that one customer "
        f"listed and, beside them, {_OTHERS[protocol]}; the listed ones are to be found."
    )
    return Task(f"amazon:{category}:{protocol}", description, train, validation, test, _SOURCE)


def _read_vectors(path: Path, category: str) -> np.ndarray:
    try:
        # Opened here, because np.load leaves the file open when it fails.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            vectors = archive[category]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds the vectors of the products, one array per category") from None
    except KeyError:
        raise FileFormatError(f"{path} holds no array named {category!r}; take a fresh copy of the file") from None
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error
    if vectors.ndim != 2 or len(vectors) < _SET_SIZE or not np.isfinite(vectors).all():
        raise FileFormatError(
            f"{path}, array {category!r}: finite vectors of at least {_SET_SIZE} products were expected, "
            f"not shape {vectors.shape}; take a fresh copy of the file"
        )
    return np.asarray(vectors, dtype=np.float32)


def _read_registries(path: Path, products: int) -> tuple[np.ndarray, np.ndarray]:
    """Line numbers (from 1) and masks `(registries, products)` of the registries of usable size."""
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds one registry a line, product numbers separated by commas")
    lines, rows = [], []
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        try:
            # A product that is listed twice is still one product of the set.
            listed = sorted({int(entry) for entry in line.split(",")}) if line.strip() else []
        except ValueError:
            raise FileFormatError(f"{path}, line {number}: whole numbers were expected, not {line[:60]!r}") from None
        if listed and not 1 <= listed[0] <= listed[-1] <= products:
            raise FileFormatError(f"{path}, line {number}: product numbers run from 1 to {products}, not {line[:60]!r}")
        if _FEWEST <= len(listed) < _SET_SIZE:
            lines.append(number)
            rows.append(listed)
    chosen = np.zeros((len(rows), products), dtype=bool)
    chosen[np.repeat(np.arange(len(rows)), [len(row) for row in rows]), [i - 1 for row in rows for i in row]] = True
    return np.asarray(lines, dtype=np.int64), chosen


def _similarity(vectors: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Cosine of every product with the mean of the chosen ones, up to a positive factor for each registry."""
    exact = vectors.astype(np.float64)
    unit = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return (chosen @ exact) @ unit.T


def _split(vectors: np.ndarray, lines: np.ndarray, chosen: np.ndarray, members: np.ndarray) -> Choices:
    flat = members.reshape(-1)
    sets = Sets.from_lengths(torch.from_numpy(vectors[flat]), np.full(len(members), _SET_SIZE))
    mask = np.take_along_axis(chosen, members, axis=1).reshape(-1)
    return Choices(sets, sets.with_values(torch.from_numpy(mask)), set_ids=lines.tolist(), item_ids=flat + 1)

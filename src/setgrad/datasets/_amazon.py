"""Amazon baby registries: which of 30 products did a customer put on the list?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from setgrad.datasets._folder import data_folder, read_arrays
from setgrad.datasets._task import Task, equal_size_choices, resolve_counts, spawn_generators
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices

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
_MIN_CHOSEN = 3
_FOLDER = "amazon_baby_registry"
_EMBEDDINGS = "minilm_l6_v2_item_embeddings.npz"
_SOURCE = (
    "Registries: J. Gillenwater, A. Kulesza, E. Fox, B. Taskar, 'Expectation-Maximization for Learning Determinantal "
    "Point Processes', NIPS 2014, published without a licence: do not redistribute. Protocols: Z. Ou et al., NeurIPS "
    "2022 (code), and G. Özcan et al., arXiv:2412.11239, appendix I.1 (text). Features: MiniLM-L6-v2 vectors of "
    "the product titles (384-d), where the papers use BERT (768-d)."
)
_OTHER_PRODUCTS = {
    "farthest": "the products least similar to the chosen ones, as in the published code",
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
    """Return the task of finding the products on a customer's registry among 30 products of one category.

    Registries of 3 to 29 products are used, in the order of the file. The protocol selects the other products of a
    set. "farthest" takes those with the lowest cosine similarity to the mean embedding of the chosen ones, as in the
    published code of Ou et al. (2022). "random" draws them, as in the text of Özcan et al. (2024, arXiv:2412.11239).
    Scores of the two protocols are far apart and must not be compared. Items are shuffled inside each set.

    The first third of the registries is the training split, the second the validation split; the rest is the test
    split. Customers may have made the same list, so equal subsets occur in two splits. `set_ids` are line numbers of
    the file, `item_ids` are product numbers; both count from 1.

    Args:
        category: One of `AMAZON_CATEGORIES`.
        protocol: One of `AMAZON_PROTOCOLS`.
        random_state: Seed of the shuffling and of the random products.
        data_dir: The folder that contains `amazon_baby_registry`; by default the environment variable `SETGRAD_DATA`.
        n_train: Use only the first sets of the training split; all by default.
        n_validation: Use only the first sets of the validation split; all by default.
        n_test: Use only the first sets of the test split; all by default.

    Raises:
        OptionError: If the category or the protocol is unknown, or a number is not an integer of at least 0.
        DataError: If a file is missing.
        FileFormatError: If a file is damaged.

    Examples:
        >>> amazon("toys", "nearest")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown Amazon protocol 'nearest'; choose one of: farthest, random
    """
    if category not in AMAZON_CATEGORIES:
        raise unknown_name("Amazon category", category, AMAZON_CATEGORIES)
    if protocol not in AMAZON_PROTOCOLS:
        raise unknown_name("Amazon protocol", protocol, AMAZON_PROTOCOLS)
    folder = data_folder(data_dir, _FOLDER, "the Amazon registries")
    embeddings = _read_embeddings(folder / _EMBEDDINGS, category)
    lines, chosen = _read_registries(folder / f"1_100_100_100_{category}_regs.csv", len(embeddings))
    rng, shuffle_rng = spawn_generators(random_state, 2)
    # A set takes the chosen products and those with the lowest keys.
    keys = _similarity(embeddings, chosen) if protocol == "farthest" else rng.random(chosen.shape)
    members = np.argsort(np.where(chosen, -np.inf, keys), axis=1, kind="stable")[:, :_SET_SIZE]
    members = shuffle_rng.permuted(members, axis=1)
    third = len(members) // 3
    starts = (0, third, 2 * third)
    available = (third, third, len(members) - 2 * third)
    counts = resolve_counts((n_train, n_validation, n_test), available)
    slices = [slice(start, start + min(n, size)) for start, n, size in zip(starts, counts, available, strict=True)]
    train, validation, test = (_make_split(embeddings, lines[s], chosen[s], members[s]) for s in slices)
    description = (
        f"Baby registries, category {category}: each set holds {_SET_SIZE} products, the 3 to 29 that one customer "
        f"listed and {_OTHER_PRODUCTS[protocol]}; the listed ones are to be found."
    )
    return Task(f"amazon:{category}:{protocol}", description, train, validation, test, _SOURCE)


def _read_embeddings(path: Path, category: str) -> np.ndarray:
    (embeddings,) = read_arrays(path, [category])
    if embeddings.ndim != 2 or len(embeddings) < _SET_SIZE or not np.isfinite(embeddings).all():
        raise FileFormatError(
            f"{path}, array {category!r}: finite vectors of at least {_SET_SIZE} products were expected, "
            f"not shape {embeddings.shape}; download the file again"
        )
    return np.asarray(embeddings, dtype=np.float32)


def _read_registries(path: Path, products: int) -> tuple[np.ndarray, np.ndarray]:
    """Return line numbers (from 1) and masks `(registries, products)` of the registries of 3 to 29 products."""
    if not path.is_file():
        raise DataError(f"{path} is missing; each line is a registry: product numbers separated by commas")
    lines, rows = [], []
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        try:
            # A set, because a product that is listed twice counts once.
            listed = sorted({int(entry) for entry in line.split(",")}) if line.strip() else []
        except ValueError:
            raise FileFormatError(f"{path}, line {number}: integers were expected, not {line[:60]!r}") from None
        if listed and not 1 <= listed[0] <= listed[-1] <= products:
            raise FileFormatError(f"{path}, line {number}: product numbers run from 1 to {products}, not {line[:60]!r}")
        if _MIN_CHOSEN <= len(listed) < _SET_SIZE:
            lines.append(number)
            rows.append(listed)
    chosen = np.zeros((len(rows), products), dtype=bool)
    chosen[np.repeat(np.arange(len(rows)), [len(row) for row in rows]), [i - 1 for row in rows for i in row]] = True
    return np.asarray(lines, dtype=np.int64), chosen


def _similarity(embeddings: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the cosine of every product with the mean of the chosen ones, up to a positive factor per registry."""
    exact = embeddings.astype(np.float64)
    unit = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return (chosen @ exact) @ unit.T


def _make_split(embeddings: np.ndarray, lines: np.ndarray, chosen: np.ndarray, members: np.ndarray) -> Choices:
    products = members.reshape(-1)
    mask = np.take_along_axis(chosen, members, axis=1)
    return equal_size_choices(
        torch.from_numpy(embeddings[products]), mask, set_ids=lines.tolist(), item_ids=products + 1
    )

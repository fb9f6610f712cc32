"""Bundles that people made: which of the products of a shopping session belong together?"""

from __future__ import annotations

import csv
import html
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from setgrad.datasets._folder import data_folder
from setgrad.datasets._task import Task, fill_counts, generators
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices, Sets

BUNDLE_CATEGORIES = ("clothing", "electronic", "food")

_FOLDER = "bundle_sun2022"
# Shares of the customers for training and validation; the others are for testing.
_SHARES = (0.6, 0.2)
# Numbers that stand for a title and for the categories of a product.
_TITLE, _CATEGORY = 256, 128
_SOURCE = (
    "Z. Sun, J. Yang, K. Feng, H. Fang, X. Qu, Y.-S. Ong, 'Revisiting Bundle Recommendation: Datasets, Tasks, "
    "Challenges and Opportunities for Intent-Aware Product Bundling', SIGIR 2022, made by crowd workers from Amazon "
    "sessions; published without a licence: do not redistribute."
)


def bundles(
    category: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Find the products that a person put into a bundle among the products of a shopping session.

    There is one set for each bundle, and a session with several bundles comes several times, always in the same split.
    The published files describe a product only if it is in some bundle; products without a description are left out,
    since their blank features would give the answer away. Bundles that then hold all products of their session are
    left out too: nothing was chosen there. Sets hold 3 to 10 products.

    Items are 384 numbers made without any model: 256 for the words of the title and the groups of three letters
    in them, 128 for the path of each category, hashed (CRC-32) with a sign, each part of length 1 or 0. Customers are
    split 60 : 20 : 20, so neither a session nor a customer is in two splits. `set_ids` are numbers of bundles and
    `item_ids` numbers of products, as in the files.

    Args:
        category: One of `BUNDLE_CATEGORIES`.
        random_state: Seed of the split and of the order of sets and items.
        data_dir: The folder that contains `bundle_sun2022`; the environment variable `SETGRAD_DATA` if None.
        n_train: Keep only so many sets of the split, from its start; all if None. The same for the other two.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> bundles("books")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown bundle category 'books'; choose one of: clothing, electronic, food
    """
    if category not in BUNDLE_CATEGORIES:
        raise unknown_name("bundle category", category, BUNDLE_CATEGORIES)
    folder = data_folder(data_dir, f"{_FOLDER}/{category}", "the bundles")
    titles, categories = _texts(folder / "item_titles.csv"), _texts(folder / "item_categories.csv")
    offered = {
        session: items & titles.keys() & categories.keys()
        for session, items in _groups(folder / "session_item.csv").items()
    }
    chosen = _groups(folder / "bundle_item.csv")
    customers = _groups(folder / "user_session.csv")
    made = _groups(folder / "session_bundle.csv")
    divide, *rngs = generators(random_state, 4)
    sessions = _divide(divide, customers)
    pairs = [
        [(offered.get(s, set()), b, chosen.get(b, set())) for s in part for b in sorted(made.get(s, ()))]
        for part in sessions
    ]
    for offer, bundle, choice in (pair for part in pairs for pair in part):
        if not choice <= offer:
            raise FileFormatError(
                f"{folder}: bundle {bundle} holds products that were not offered or are not described; "
                "take fresh copies of the files"
            )
    kept = [[pair for pair in part if pair[2] and pair[2] < pair[0]] for part in pairs]
    counts = fill_counts((n_train, n_validation, n_test), (len(kept[0]), len(kept[1]), len(kept[2])))
    vectors = {item: _vector(titles[item], categories[item]) for item in sorted(titles.keys() & categories.keys())}
    train, validation, test = (
        _split(rng, vectors, part[:count]) for rng, part, count in zip(rngs, kept, counts, strict=True)
    )
    return Task(f"bundles:{category}", _description(category), train, validation, test, _SOURCE)


def _description(category: str) -> str:
    return (
        f"Bundles of products, category {category}: each set holds the 3 to 10 products of a shopping session, and "
        "those that a person put into one bundle, at least two and not all, are to be found. Many sessions have more "
        "than one bundle, so the best possible mean Jaccard is about 0.6; taking everything gives 0.47."
    )


def _rows(path: Path) -> list[tuple[int, str]]:
    """First and second column of a file of comma-separated values, the first a whole number."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it is one of the files of the bundles") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error
    try:
        return [(int(row[0]), row[1]) for row in rows]
    except (ValueError, IndexError):
        raise FileFormatError(f"{path}: a whole number and a second column were expected in every row") from None


def _texts(path: Path) -> dict[int, str]:
    return dict(_rows(path))


def _groups(path: Path) -> dict[int, set[int]]:
    """For each number of the first column, the numbers of the second that stand beside it."""
    groups: dict[int, set[int]] = defaultdict(set)
    for first, second in _rows(path):
        try:
            groups[first].add(int(second))
        except ValueError:
            raise FileFormatError(f"{path}: whole numbers were expected, not {second[:40]!r}") from None
    return dict(groups)


def _divide(rng: np.random.Generator, customers: dict[int, set[int]]) -> list[list[int]]:
    """Sessions of training, validation and test, the customers in random order."""
    order = rng.permutation(sorted(customers)).tolist()
    ends = (np.cumsum(_SHARES) * len(order)).astype(int)
    parts = np.split(np.asarray(order, dtype=np.int64), ends)
    return [[session for customer in part.tolist() for session in sorted(customers[customer])] for part in parts]


def _vector(title: str, categories: str) -> np.ndarray:
    words = re.findall(r"\w+", html.unescape(title).lower())
    letters = [f" {word} "[place : place + 3] for word in words for place in range(len(word))]
    paths = [re.split(r",(?! )", path) for path in re.findall(r"\[([^\[\]]+)\]", html.unescape(categories))]
    # A comma without a space behind it separates steps; names such as "Coffee, Tea & Cocoa" hold commas of their own.
    steps = {"/".join(path[: depth + 1]) for path in paths for depth in range(len(path))}
    return np.concatenate([_hashed(words + letters, _TITLE), _hashed(sorted(steps), _CATEGORY)])


def _hashed(words: Iterable[str], width: int) -> np.ndarray:
    """Count words into `width` places, each with a sign of its own so that collisions cancel, and scale to length 1."""
    vector = np.zeros(width, dtype=np.float32)
    for word in words:
        code = zlib.crc32(word.encode())
        vector[(code >> 1) % width] += 1.0 if code & 1 else -1.0
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _split(
    rng: np.random.Generator, vectors: dict[int, np.ndarray], pairs: list[tuple[set[int], int, set[int]]]
) -> Choices:
    orders = [rng.permutation(sorted(offer)).tolist() for offer, _, _ in pairs]
    items = [item for order in orders for item in order]
    values = np.stack([vectors[item] for item in items]) if items else np.zeros((0, _TITLE + _CATEGORY), np.float32)
    sets = Sets.from_lengths(torch.from_numpy(values), np.asarray([len(order) for order in orders], dtype=np.int64))
    mask = [item in choice for order, (_, _, choice) in zip(orders, pairs, strict=True) for item in order]
    ids = [bundle for _, bundle, _ in pairs]
    subsets = sets.with_values(torch.tensor(mask, dtype=torch.bool))
    return Choices(sets, subsets, set_ids=ids, item_ids=np.asarray(items, dtype=np.int64))

"""Product bundles: which products of a shopping session did a person put into one bundle?"""

from __future__ import annotations

import csv
import html
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch

from setgrad.datasets._folder import data_folder, unreadable
from setgrad.datasets._task import Task, resolve_counts, spawn_generators
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices, Sets

BUNDLE_CATEGORIES = ("clothing", "electronic", "food")

_FOLDER = "bundle_sun2022"
# Shares of the customers in the training and validation splits; the others are in the test split.
_SHARES = (0.6, 0.2)
# Dimensions of the features of the title and of the categories of a product.
_TITLE_DIM, _CATEGORY_DIM = 256, 128
_SOURCE = (
    "Z. Sun, J. Yang, K. Feng, H. Fang, X. Qu, Y.-S. Ong, 'Revisiting Bundle Recommendation: Datasets, Tasks, "
    "Challenges and Opportunities for Intent-Aware Product Bundling', SIGIR 2022, made by crowd workers from Amazon "
    "sessions; published without a licence: do not redistribute."
)


@final
class _Example(NamedTuple):
    """The products of a session, and one bundle with the products in it."""

    products: set[int]
    bundle: int
    subset: set[int]


def bundles(
    category: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of finding the products of a shopping session that a person put into one bundle.

    There is one set for each bundle, so a session with several bundles occurs several times, always in the same split.
    The published files describe a product only if it is in a bundle. Products without a description are left out,
    since their empty features would give the answer away. Bundles that then hold all products of their session are
    left out too. Sets hold 3 to 10 products.

    Items are 384 numbers: 256 for the words of the title and their groups of three letters, 128 for the path of each
    category. Both are signed feature hashes (CRC-32), scaled to length 1 or 0. Customers are split 60 : 20 : 20, so
    neither a session nor a customer is in two splits. `set_ids` are numbers of bundles and `item_ids` numbers of
    products, as in the files.

    Args:
        category: One of `BUNDLE_CATEGORIES`.
        random_state: Seed of the split and of the order of sets and items.
        data_dir: The folder that contains `bundle_sun2022`; by default the environment variable `SETGRAD_DATA`.
        n_train: Use only the first sets of the training split; all by default.
        n_validation: Use only the first sets of the validation split; all by default.
        n_test: Use only the first sets of the test split; all by default.

    Raises:
        OptionError: If the category is unknown, or a number is not an integer of at least 0.
        DataError: If a file is missing.
        FileFormatError: If a file is damaged.

    Examples:
        >>> bundles("books")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown bundle category 'books'; choose one of: clothing, electronic, food
    """
    if category not in BUNDLE_CATEGORIES:
        raise unknown_name("bundle category", category, BUNDLE_CATEGORIES)
    folder = data_folder(data_dir, f"{_FOLDER}/{category}", "the bundles")
    titles, categories = dict(_read_rows(folder / "item_titles.csv")), dict(_read_rows(folder / "item_categories.csv"))
    offered = {
        session: items & titles.keys() & categories.keys()
        for session, items in _read_groups(folder / "session_item.csv").items()
    }
    chosen = _read_groups(folder / "bundle_item.csv")
    customers = _read_groups(folder / "user_session.csv")
    bundles_of = _read_groups(folder / "session_bundle.csv")
    split_rng, *rngs = spawn_generators(random_state, 4)
    examples = [
        [_Example(offered.get(s, set()), b, chosen.get(b, set())) for s in part for b in sorted(bundles_of.get(s, ()))]
        for part in _split_sessions(split_rng, customers)
    ]
    for products, bundle, subset in (example for part in examples for example in part):
        if not subset <= products:
            raise FileFormatError(
                f"{folder}: bundle {bundle} holds products that are not in its session or not described; "
                "download the files again"
            )
    usable = [[e for e in part if e.subset and e.subset < e.products] for part in examples]
    counts = resolve_counts((n_train, n_validation, n_test), (len(usable[0]), len(usable[1]), len(usable[2])))
    vectors = {item: _vector(titles[item], categories[item]) for item in sorted(titles.keys() & categories.keys())}
    train, validation, test = (
        _make_split(rng, vectors, part[:count]) for rng, part, count in zip(rngs, usable, counts, strict=True)
    )
    return Task(f"bundles:{category}", _description(category), train, validation, test, _SOURCE)


def _description(category: str) -> str:
    return (
        f"Bundles of products, category {category}: each set holds the 3 to 10 products of a shopping session, and "
        "those that a person put into one bundle, at least two and not all, are to be found. Many sessions have more "
        "than one bundle, so the best possible mean Jaccard is about 0.6; choosing all products gives 0.47."
    )


def _read_rows(path: Path) -> list[tuple[int, str]]:
    """Return the first and the second column of a CSV file; the first is an integer."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it is one of the files of the bundles") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    try:
        return [(int(row[0]), row[1]) for row in rows]
    except (ValueError, IndexError):
        raise FileFormatError(f"{path}: an integer and a second column were expected in every row") from None


def _read_groups(path: Path) -> dict[int, set[int]]:
    """Return, for each integer of the first column, the integers of the second column in the same rows."""
    groups: dict[int, set[int]] = defaultdict(set)
    for first, second in _read_rows(path):
        try:
            groups[first].add(int(second))
        except ValueError:
            raise FileFormatError(f"{path}: integers were expected, not {second[:40]!r}") from None
    return dict(groups)


def _split_sessions(rng: np.random.Generator, customers: dict[int, set[int]]) -> list[list[int]]:
    """Return the sessions of training, validation and test; the customers are in random order."""
    order = rng.permutation(sorted(customers)).tolist()
    ends = (np.cumsum(_SHARES) * len(order)).astype(int)
    parts = np.split(np.asarray(order, dtype=np.int64), ends)
    return [[session for customer in part.tolist() for session in sorted(customers[customer])] for part in parts]


def _vector(title: str, categories: str) -> np.ndarray:
    words = re.findall(r"\w+", html.unescape(title).lower())
    trigrams = [f" {word} "[start : start + 3] for word in words for start in range(len(word))]
    paths = [re.split(r",(?! )", path) for path in re.findall(r"\[([^\[\]]+)\]", html.unescape(categories))]
    # A comma without a space separates the steps of a path; a name such as "Coffee, Tea & Cocoa" contains commas too.
    steps = {"/".join(path[: depth + 1]) for path in paths for depth in range(len(path))}
    return np.concatenate([_hash_features(words + trigrams, _TITLE_DIM), _hash_features(sorted(steps), _CATEGORY_DIM)])


def _hash_features(texts: Iterable[str], dim: int) -> np.ndarray:
    """Return hashed counts of texts, with signs so that collisions cancel on average, scaled to length 1."""
    vector = np.zeros(dim, dtype=np.float32)
    for text in texts:
        code = zlib.crc32(text.encode())
        vector[(code >> 1) % dim] += 1.0 if code & 1 else -1.0
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _make_split(rng: np.random.Generator, vectors: dict[int, np.ndarray], examples: list[_Example]) -> Choices:
    orders = [rng.permutation(sorted(example.products)).tolist() for example in examples]
    items = [item for order in orders for item in order]
    dim = _TITLE_DIM + _CATEGORY_DIM
    values = np.stack([vectors[item] for item in items]) if items else np.zeros((0, dim), np.float32)
    sets = Sets.from_lengths(torch.from_numpy(values), np.asarray([len(order) for order in orders], dtype=np.int64))
    mask = [item in example.subset for order, example in zip(orders, examples, strict=True) for item in order]
    subsets = sets.with_values(torch.tensor(mask, dtype=torch.bool))
    set_ids = [example.bundle for example in examples]
    return Choices(sets, subsets, set_ids=set_ids, item_ids=np.asarray(items, dtype=np.int64))

"""Reuters-21578: news with topics, several for some of them, as sets of words; cut so that near-copies stay together.

The files say nothing about a split, and news agencies send the same story twice. Two stories are near-copies if the
shorter shares half of its runs of four words with the other; near-copies of near-copies belong to the same group, and
a group is never cut.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

import numpy as np

from benchmarks.lib.data import data_folder
from setgrad.errors import DataError, FileFormatError

_WORD = re.compile(r"[a-z]+|\d+(?:[.,/]\d+)*")
_RUN, _SHARED = 4, 0.5
_PARTS = (0.7, 0.1, 0.2)


@final
@dataclass(frozen=True)
class News:
    """Words of each story (title first), a table of topics, and the indices of the stories of each split."""

    words: Sequence[Sequence[str]]
    labels: np.ndarray
    topics: Sequence[str]
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


@lru_cache(maxsize=1)
def read_news(data_dir: str | None, most: int | None = None) -> News:
    """Return the stories, at most `most`, cut into parts. The cut is the same in every run."""
    path = data_folder(data_dir, "reuters21578", "the news of Reuters-21578") / "reuters_topics.jsonl.gz"
    stories = _read(path)[:most]
    words = [split_words(f"{title} {body}") for title, body, _ in stories]
    topics = sorted({topic for _, _, named in stories for topic in named})
    place = {topic: i for i, topic in enumerate(topics)}
    labels = np.zeros((len(stories), len(topics)), bool)
    for row, (_, _, named) in enumerate(stories):
        labels[row, [place[topic] for topic in named]] = True
    parts = cut(near_copies(words), np.random.default_rng(0))
    # All numbers are one word for a model.
    return News([["#" if word[0].isdigit() else word for word in story] for story in words], labels, topics, parts)


def split_words(text: str) -> list[str]:
    """Return words in lower case, and numbers.

    Examples:
        >>> split_words("Shr 1.50 dlrs, Net 3,200")
        ['shr', '1.50', 'dlrs', 'net', '3,200']
    """
    return _WORD.findall(text.lower())


def near_copies(stories: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the group of each story.

    Examples:
        >>> near_copies([list("abcdefg"), list("xyzxyzx"), list("abcdefh")]).tolist()
        [0, 1, 0]
    """
    from scipy.sparse import coo_matrix, csr_matrix
    from scipy.sparse.csgraph import connected_components

    known: dict[str, int] = {}
    runs, counts = [], []
    for story in stories:
        numbers = np.array([known.setdefault(word, len(known) + 1) for word in story], np.uint64)
        numbers = np.concatenate([numbers, np.zeros(max(0, _RUN - len(numbers)), np.uint64)])
        hashes = np.zeros(len(numbers) - _RUN + 1, np.uint64)
        for shift in range(_RUN):
            # Integers overflow, which makes this a hash.
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + numbers[shift : shift + len(hashes)]
        hashes = np.unique(hashes)
        runs.append(hashes)
        counts.append(len(hashes))
    _, columns = np.unique(np.concatenate(runs), return_inverse=True)
    size = np.array(counts)
    table = csr_matrix((np.ones(len(columns), np.float32), columns, np.concatenate([[0], np.cumsum(size)])))
    shared = (table @ table.T).tocoo()
    close = shared.data >= _SHARED * np.minimum(size[shared.row], size[shared.col])
    links = coo_matrix((shared.data[close], (shared.row[close], shared.col[close])), shape=shared.shape)
    groups: np.ndarray = connected_components(links, directed=False)[1]
    return groups


def cut(groups: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of training, validation and test stories; no group is in two parts."""
    order = rng.permutation(groups.max() + 1)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    ends = np.round(np.cumsum(_PARTS) * len(order))
    part = np.searchsorted(ends, rank[groups], side="right")
    train, validation, test = (np.flatnonzero(part == number) for number in range(3))
    return train, validation, test


def vocabulary(stories: Iterable[Sequence[str]], fewest: int = 3) -> dict[str, int]:
    """Return indices from 1 for words that are in at least `fewest` stories; 0 is for all others."""
    counts = Counter(word for story in stories for word in set(story))
    return {word: i for i, word in enumerate(sorted(w for w, n in counts.items() if n >= fewest), 1)}


def _read(path: Path) -> list[tuple[str, str, list[str]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [(row["title"], row["body"], row["topics"]) for row in rows]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds stories with title, body and topics, one to a line") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error

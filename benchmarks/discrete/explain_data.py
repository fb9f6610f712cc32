"""Texts with items to choose from: film reviews with human rationales, and texts with planted words."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.data import data_folder
from setgrad.errors import DataError

FOLDER = "eraser_movies"
PARTS = ("planted", "sentences", "words")
# The most words of a review; part "words" has the last ones, where reviewers conclude.
LONGEST = 2048
LAST = 350
# The planted task: words of a text, words of the vocabulary, words that matter.
LENGTH, VOCABULARY, LEXICON = 50, 500, 50
_FEWEST = 3


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of several words, each of which belongs to an item (a sentence, or the word itself).

    Attributes:
        words: (texts, words) indices of words; 0 is an unknown word, or padding.
        owner: (texts, words) the item of each word; for padding, the number of items.
        count: (texts,) the number of items of a text.
        target: (texts,) the number to predict: 0 or 1 in a classification.
        relevant: (texts, items) of bool: the items that a human marked, or that were planted.
    """

    words: Tensor
    owner: Tensor
    count: Tensor
    target: Tensor
    relevant: Tensor

    def to(self, device: torch.device) -> Texts:
        """Return the texts on a device."""
        return Texts(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def __getitem__(self, rows: Tensor) -> Texts:
        return Texts(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.target)

    @property
    def items(self) -> int:
        """The largest number of items of a text."""
        return self.relevant.shape[1]

    @property
    def there(self) -> Tensor:
        """A mask (texts, items) of the items that exist."""
        return torch.arange(self.items, device=self.count.device) < self.count[:, None]


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """Three parts, the size of the vocabulary, and whether targets are numbers."""

    train: Texts
    validation: Texts
    test: Texts
    vocabulary: int
    regression: bool


def plant(k: int, seed: int, sizes: Sequence[int] = (8000, 1000, 2000)) -> Corpus:
    """Return texts of random words, k of which come from a lexicon with hidden values; their sum is the target.

    It is scaled to variance 1 on average over lexicons, so that the mean square error is about the share of the
    variance that is not explained.
    """
    rng = np.random.default_rng(seed)
    values = np.concatenate([np.zeros(VOCABULARY - LEXICON), rng.uniform(-1, 1, LEXICON)])
    # Indices of words do not tell which words matter, and 0 is free.
    numbers = 1 + rng.permutation(VOCABULARY)
    parts = []
    for size in sizes:
        words = rng.integers(0, VOCABULARY - LEXICON, (size, LENGTH))
        places = rng.random((size, LENGTH)).argsort(1)[:, :k]
        np.put_along_axis(words, places, rng.integers(VOCABULARY - LEXICON, VOCABULARY, (size, k)), 1)
        relevant = words >= VOCABULARY - LEXICON
        target = values[words].sum(1) * (3 / k) ** 0.5
        owner = np.broadcast_to(np.arange(LENGTH), words.shape)
        parts.append(_texts(numbers[words], owner, np.full(size, LENGTH), target, relevant))
    train, validation, test = parts
    return Corpus(train, validation, test, vocabulary=1 + VOCABULARY, regression=True)


@lru_cache(maxsize=2)
def read_reviews(data_dir: str | None, part: str, most: int | None = None) -> Corpus:
    """Return ERASER movies, with sentences or words as items; `most` limits the reviews of each part."""
    reviews = _read(data_dir)
    splits = [[r for r in reviews if r["split"] == split] for split in ("train", "val", "test")]
    if most is not None:
        kinds = [[[r for r in split if r["label"] == label] for label in ("NEG", "POS")] for split in splits]
        splits = [[*first[: most // 2], *second[: most // 2]] for first, second in kinds]
    frequency = Counter(word for review in splits[0] for word in {w for s in review["sentences"] for w in s.split()})
    known = {word: i + 1 for i, word in enumerate(sorted(w for w, times in frequency.items() if times >= _FEWEST))}
    read = [[(_by_word if part == "words" else _by_sentence)(review, known) for review in split] for split in splits]
    max_items = max(len(relevant) for split in read for _, _, relevant in split)
    longest = max(len(words) for split in read for words, _, _ in split)
    parts = []
    for split, items in zip(splits, read, strict=True):
        words, owner = np.zeros((len(items), longest), int), np.full((len(items), longest), max_items)
        relevant = np.zeros((len(items), max_items), bool)
        for row, (numbers, owners, marked) in enumerate(items):
            words[row, : len(numbers)], owner[row, : len(numbers)] = numbers, owners
            relevant[row, : len(marked)] = marked
        count = np.array([len(marked) for _, _, marked in items])
        target = np.array([review["label"] == "POS" for review in split])
        parts.append(_texts(words, owner, count, target, relevant))
    train, validation, test = parts
    return Corpus(train, validation, test, vocabulary=1 + len(known), regression=False)


def _by_sentence(review: dict[str, Any], known: dict[str, int]) -> tuple[list[int], list[int], np.ndarray]:
    sentences = [sentence.split() for sentence in review["sentences"]]
    words = [known.get(word, 0) for sentence in sentences for word in sentence][:LONGEST]
    owner = [number for number, sentence in enumerate(sentences) for _ in sentence][:LONGEST]
    # Sentences after the cut stay as items without words, so marks of humans there count as missed.
    return words, owner, np.isin(np.arange(len(sentences)), review["rationale_sentences"])


def _by_word(review: dict[str, Any], known: dict[str, int]) -> tuple[list[int], list[int], np.ndarray]:
    words = [known.get(word, 0) for sentence in review["sentences"] for word in sentence.split()]
    marked = np.zeros(len(words), bool)
    for start, end in review["rationale_token_spans"]:
        marked[start:end] = True
    return words[-LAST:], list(range(len(words[-LAST:]))), marked[-LAST:]


def _read(data_dir: str | None) -> list[dict[str, Any]]:
    path = data_folder(data_dir, FOLDER, "the reviews of ERASER movies") / "movies_sentences.jsonl.gz"
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds one review a line, with its sentences and rationales")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        reviews = [json.loads(line) for line in file]
    # One training review is a single sentence: there is nothing to choose.
    return [review for review in reviews if len(review["sentences"]) > 1]


def _texts(words: Any, owner: Any, count: Any, target: Any, relevant: Any) -> Texts:
    words, owner, count = (torch.from_numpy(np.array(x)).long() for x in (words, owner, count))
    return Texts(words, owner, count, torch.from_numpy(np.asarray(target, np.float32)), torch.from_numpy(relevant))

"""Texts: words and groups of letters, hashed to codes, for which the model learns vectors; an item has their mean."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, final

import numpy as np
import pyarrow.compute as pc

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._part import Part
from setgrad.columns._values import as_texts
from setgrad.sets._columns import Column

# Letters of a group. Groups make words alike that share a stem.
_LETTERS = 3
# Codes of a table, and at most so many of a text.
_CODES, _MOST_WORDS, _MOST_GROUPS = 2**14, 32, 64
# Length of the vectors.
_DIM = 64
# Nearly all texts fit into as many codes as this share of them has.
_SHARE = 0.98


@final
@dataclass(frozen=True, kw_only=True)
class TextColumn(FittedColumn):
    """A column of texts.

    Attributes:
        words: Codes of the words of one text; what is beyond is cut off.
        groups: Codes of its groups of letters.
        codes: Size of the table of vectors.
        scales: Length of each vector before training: words that few training texts have count more.
    """

    words: int
    groups: int
    codes: int
    scales: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def is_sound(self) -> bool:
        """Whether the sizes are possible."""
        return 1 <= self.words <= _MOST_WORDS and 1 <= self.groups <= _MOST_GROUPS and 2 <= self.codes <= _CODES

    @property
    def parts(self) -> tuple[Part, ...]:
        """The codes of words, and those of groups of letters; 0 fills up."""
        width = self.words + self.groups
        return (Part(width, self.codes, _DIM, self.context, words=self.words, scales=self.scales),)

    @property
    def note(self) -> str:
        """How much of a text is read."""
        return f"up to {self.words} words of a text, and {self.groups} groups of {_LETTERS} letters"

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        words = _Words.of(training.first)
        rows, tokens, is_word, _ = words.tokens(_CODES)
        widths = []
        for kept, most in ((is_word, _MOST_WORDS), (~is_word, _MOST_GROUPS)):
            counts = np.bincount(rows[kept], minlength=max(1, words.rows))
            widths.append(int(np.clip(np.quantile(counts, _SHARE, method="higher"), 1, most)))
        # Texts that are equal, as the title of a product in many sets, count once for each set.
        pairs = np.unique(training.sets[rows] * _CODES + tokens)
        frequency = np.bincount(pairs % _CODES, minlength=_CODES)
        scales = np.log((1 + len(np.unique(training.sets))) / (1 + frequency)) + 0.1
        return cls(
            name=name,
            context=training.context,
            words=widths[0],
            groups=widths[1],
            codes=_CODES,
            scales=scales / scales.mean(),
        )

    def encode(self, columns: Sequence[Column]) -> np.ndarray:
        """Return the codes of a chunk, `(rows, words + groups)`."""
        words = _Words.of(columns[0])
        rows, tokens, is_word, places = words.tokens(self.codes)
        block = np.zeros((words.rows, self.words + self.groups))
        kept = places < np.where(is_word, self.words, self.groups)
        block[rows[kept], (places + np.where(is_word, 0, self.words))[kept]] = tokens[kept]
        return block


@final
@dataclass(frozen=True, eq=False)
class _Words:
    """The words of texts.

    Attributes:
        rows: Number of texts.
        row: The text of each word.
        word: The index of each word in `different`.
        different: The different words.
    """

    rows: int
    row: np.ndarray
    word: np.ndarray
    different: list[str]

    @staticmethod
    def of(column: Column) -> _Words:
        texts = pc.utf8_lower(as_texts(column)).fill_null("")
        parts = pc.split_pattern_regex(texts, r"[^\p{L}\p{N}]+")
        row = pc.list_parent_indices(parts).to_numpy(zero_copy_only=False)
        encoded = parts.flatten().dictionary_encode()
        different, word = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
        empty = different.index("") if "" in different else -1
        return _Words(len(texts), row[word != empty], word[word != empty], different)

    def tokens(self, codes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return of each token the row, the code, whether it is a word, and its place among those of its kind."""
        table = [list(_hashes(word, codes)) for word in self.different]
        lengths = np.array([len(entry) for entry in table], dtype=np.int64)
        flat = np.array([code for entry in table for code in entry], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        # The tokens of each word of each text, one after the other.
        sizes = lengths[self.word]
        total = int(sizes.sum())
        inside = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        tokens = flat[np.repeat(starts[self.word], sizes) + inside]
        rows = np.repeat(self.row, sizes)
        # Each token of a text once.
        _, kept = np.unique(rows * codes + tokens, return_index=True)
        rows, tokens, inside = rows[kept], tokens[kept], inside[kept]
        order = np.lexsort((kept, inside > 0, rows))
        rows, tokens, is_word = rows[order], tokens[order], inside[order] == 0
        kinds = 2 * rows + ~is_word
        return rows, tokens, is_word, np.arange(len(rows)) - np.searchsorted(kinds, kinds)


def _hashes(word: str, codes: int) -> Iterator[int]:
    """Yield the code of a word, and those of its groups of letters with its borders."""
    yield 1 + zlib.crc32(word.encode()) % (codes - 1)
    bordered = f"<{word}>"
    for start in range(len(bordered) - _LETTERS + 1):
        if len(word) > 1:
            yield 1 + zlib.crc32(f"#{bordered[start : start + _LETTERS]}".encode()) % (codes - 1)

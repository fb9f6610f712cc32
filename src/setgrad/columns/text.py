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
# Codes of a table, at most, and of one text.
_CODES, _MOST_TOKENS = 2**14, 96
# Length of the vectors.
_DIM = 64
# Nearly all texts fit into as many codes as this share of them has.
_SHARE = 0.98


@final
@dataclass(frozen=True, kw_only=True)
class TextColumn(FittedColumn):
    """A column of texts.

    Attributes:
        length: Codes of one text; what is beyond is cut off, groups of letters first.
        codes: Size of the table of vectors.
        scales: Length of each vector before training: words that few training texts have count more.
    """

    length: int
    codes: int
    scales: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The codes; 0 fills up."""
        return (Part(self.length, self.codes, _DIM, self.context, scales=self.scales),)

    @property
    def note(self) -> str:
        """How much of a text is read."""
        return f"words and groups of {_LETTERS} letters, up to {self.length} of a text"

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        words = _Words.of(training.first)
        rows, tokens, _ = words.tokens(_CODES)
        counts = np.bincount(rows, minlength=words.rows)
        length = int(np.clip(np.quantile(counts, _SHARE, method="higher") if len(counts) else 1, 1, _MOST_TOKENS))
        # Texts that are equal, as the title of a product in many sets, count once for each set.
        pairs = np.unique(training.sets[rows] * _CODES + tokens)
        frequency = np.bincount(pairs % _CODES, minlength=_CODES)
        groups = len(np.unique(training.sets))
        scales = np.log((1 + groups) / (1 + frequency)) + 0.1
        return cls(name=name, context=training.context, length=length, codes=_CODES, scales=scales / scales.mean())

    def encode(self, columns: Sequence[Column]) -> np.ndarray:
        """Return the codes of a chunk, `(rows, length)`."""
        words = _Words.of(columns[0])
        rows, tokens, places = words.tokens(self.codes)
        block = np.zeros((words.rows, self.length))
        kept = places < self.length
        block[rows[kept], places[kept]] = tokens[kept]
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

    def tokens(self, codes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row, the code and the place of each token; words come before groups of letters."""
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
        rows, tokens = rows[order], tokens[order]
        return rows, tokens, np.arange(len(rows)) - np.searchsorted(rows, rows)


def _hashes(word: str, codes: int) -> Iterator[int]:
    """Yield the code of a word, and those of its groups of letters with its borders."""
    yield 1 + zlib.crc32(word.encode()) % (codes - 1)
    bordered = f"<{word}>"
    for start in range(len(bordered) - _LETTERS + 1):
        if len(word) > 1:
            yield 1 + zlib.crc32(f"#{bordered[start : start + _LETTERS]}".encode()) % (codes - 1)

"""Texts: words and groups of letters, hashed to codes, for which the model learns vectors; an item has their mean."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._encoded import Encoded
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
# Rows whose tokens are counted at once.
_ROWS = 2**16


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
        texts = _Texts.of(training.first, _CODES)
        widths = []
        for is_kind, most in ((texts.is_word, _MOST_WORDS), (~texts.is_word, _MOST_GROUPS)):
            counts = np.bincount(texts.owner[is_kind], minlength=texts.count)[texts.row]
            widths.append(int(np.clip(np.quantile(counts, _SHARE, method="higher"), 1, most)) if len(counts) else 1)
        frequency, sets = texts.count_sets(training.sets, _CODES)
        scales = np.log((1 + sets) / (1 + frequency)) + 0.1
        return cls(
            name=name,
            context=training.context,
            words=widths[0],
            groups=widths[1],
            codes=_CODES,
            scales=scales / scales.mean(),
        )

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the codes of a chunk, `words + groups` for each row."""
        texts = _Texts.of(columns[0], self.codes)
        # Codes are exact in single precision, which takes half the memory.
        block = np.zeros((texts.count, self.words + self.groups), dtype=np.float32)
        kept = texts.place < np.where(texts.is_word, self.words, self.groups)
        places = texts.place + np.where(texts.is_word, 0, self.words)
        block[texts.owner[kept], places[kept]] = texts.token[kept]
        return Encoded(block, texts.row)


@final
@dataclass(frozen=True, eq=False)
class _Texts:
    """The different texts of a column, which often has the same text in many rows, and their tokens.

    Attributes:
        row: The text of each row.
        count: Number of different texts.
        owner: The text of each token, ascending; a text has each token once, words first.
        token: The code of each token.
        is_word: Whether a token is a word; else it is a group of letters.
        place: The place of each token among those of its text and kind.
    """

    row: np.ndarray
    count: int
    owner: np.ndarray
    token: np.ndarray
    is_word: np.ndarray
    place: np.ndarray

    @staticmethod
    def of(column: Column, codes: int) -> _Texts:
        try:
            encoded = column.array.dictionary_encode()
        except pa.ArrowNotImplementedError:
            raise column.error(0, f"{column.array.type} cannot be read as text; leave the column out") from None
        texts = pc.utf8_lower(as_texts(replace(column, array=encoded.dictionary))).fill_null("")
        # One text more, without words, for gaps.
        row = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        parts = pc.split_pattern_regex(texts, r"[^\p{L}\p{N}]+")
        owner = pc.list_parent_indices(parts).to_numpy(zero_copy_only=False)
        words = parts.flatten().dictionary_encode()
        tokens_of = [_hashes(word, codes) for word in words.dictionary.to_pylist()]
        lengths = np.array([len(tokens) for tokens in tokens_of], dtype=np.int64)
        flat = np.array([code for tokens in tokens_of for code in tokens], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        word = words.indices.to_numpy(zero_copy_only=False)
        # The tokens of each word of each text, one after the other.
        sizes = lengths[word]
        inside = _positions(sizes)
        token = flat[np.repeat(starts[word], sizes) + inside]
        owner = np.repeat(owner, sizes)
        # Each token of a text once.
        _, kept = np.unique(owner * codes + token, return_index=True)
        is_group = inside[kept] > 0
        order = np.lexsort((kept, is_group, owner[kept]))
        kept, is_group = kept[order], is_group[order]
        owner = owner[kept]
        kinds = np.bincount(2 * owner + is_group, minlength=2 * len(texts))
        return _Texts(row, len(texts) + 1, owner, token[kept], ~is_group, _positions(kinds))

    def count_sets(self, sets: np.ndarray, codes: int) -> tuple[np.ndarray, int]:
        """Return in how many sets each code occurs, and the number of sets; `sets` of the rows are ascending."""
        sizes = np.bincount(self.owner, minlength=self.count)
        starts = np.cumsum(sizes) - sizes
        frequency = np.zeros(codes, dtype=np.int64)
        first = np.flatnonzero(np.diff(sets, prepend=-1))
        # Some sets at a time, because all tokens of all rows may not fit into memory.
        cuts = first[np.unique(first // _ROWS, return_index=True)[1]]
        for start, end in zip(cuts, [*cuts[1:], len(sets)], strict=True):
            rows = self.row[start:end]
            counts = sizes[rows]
            tokens = self.token[np.repeat(starts[rows], counts) + _positions(counts)]
            # Texts that are equal, as the title of a product in many sets, count once for each set.
            pairs = np.sort(np.repeat(sets[start:end], counts) * codes + tokens)
            frequency += np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] % codes, minlength=codes)
        return frequency, len(first)


def _positions(sizes: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2, ... for each of several runs of these sizes, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)


@lru_cache(maxsize=2**17)
def _hashes(word: str, codes: int) -> tuple[int, ...]:
    """Return the code of a word, and those of its groups of letters with its borders."""
    if not word:
        return ()
    bordered = f"<{word}>"
    groups = [f"#{bordered[start : start + _LETTERS]}" for start in range(len(bordered) - _LETTERS + 1)]
    # A word of one letter is its only group.
    return tuple(1 + zlib.crc32(text.encode()) % (codes - 1) for text in (word, *(groups if len(word) > 1 else ())))

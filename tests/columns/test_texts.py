"""Texts against a loop over words and their groups of letters."""

import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setgrad.columns._memory import TextMemory
from tests.columns.tables import column_of, fit_kind

CODES = 2**14
TEXTS = st.one_of(
    st.none(),
    st.text(alphabet="abÄß1 .-!?'\n", max_size=25),
    st.sampled_from(["Blue lamp", "lamp", "NULL", "?!", "", "a-b a_b", "x" * 70, "日本 語"]),
)
GAPS = {"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>", "nat", "-", "?"}


def code(token: str) -> int:
    return 1 + zlib.crc32(token.encode()) % (CODES - 1)


def tokens_by_hand(text: str | None) -> tuple[list[int], list[int]]:
    """Codes of the words and of the groups of letters, each once, in the order of the text."""
    text = "" if text is None or text.strip().lower() in GAPS else text.lower()
    words, groups = [], []
    for word in re.findall(r"[^\W_]+", text):
        bordered = f"<{word}>"
        words.append(code(word))
        if len(word) > 1:
            groups += [code("#" + bordered[start : start + 3]) for start in range(len(bordered) - 2)]
    # A group of letters with the code of a word that came before it counts as that word.
    return list(dict.fromkeys(words)), [group for group in dict.fromkeys(groups) if group not in words]


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_codes_are_those_of_words_and_groups(texts):
    column = column_of(texts, pa.string())
    fitted: Any = fit_kind("text", column)
    tokens = [tokens_by_hand(text) for text in texts]
    assert fitted.words <= 32 and fitted.groups <= 64
    for row, (words, groups) in zip(fitted.encode([column]).astype(int), tokens, strict=True):
        assert row[: fitted.words].tolist() == _filled(words, fitted.words)
        assert row[fitted.words :].tolist() == _filled(groups, fitted.groups)


def _filled(codes: list[int], width: int) -> list[int]:
    return (codes + [0] * width)[:width]


@pytest.mark.parametrize("texts", [["!!", "... ?", "-"], ["", " "], [None, None]], ids=["punctuation", "empty", "gaps"])
def test_texts_without_words_have_no_codes(texts):
    column = column_of(texts, pa.string())
    fitted = fit_kind("text", column)
    assert not fitted.encode([column]).any()
    assert np.isfinite(fitted.parts[0].scales).all()
    assert fitted.encode([column_of(["word"])])[0, 0] == code("word")


def test_widths_fit_nearly_all_training_texts():
    texts = ["one"] * 198 + [" ".join(f"w{number}" for number in range(50))] * 2
    fitted: Any = fit_kind("text", column_of(texts))
    assert fitted.words == 1
    assert fitted.encode([column_of(["one two three"])])[0, 0] == code("one")


@pytest.mark.parametrize("rows", [1, 2, 2**16])
def test_words_that_few_sets_have_start_longer(monkeypatch, rows):
    monkeypatch.setattr("setgrad.columns.text._ROWS", rows)
    texts, sets = ["the lamp", "the lamp", "the chair", "the table"], [0, 0, 1, 3]
    fitted = fit_kind("text", column_of(texts), sets=sets)
    scales = fitted.parts[0].scales
    assert scales is not None
    counts = {"the": 3, "lamp": 1, "chair": 1, "never": 0}
    expected = {word: np.log(4 / (1 + count)) + 0.1 for word, count in counts.items()}
    for word, value in expected.items():
        assert scales[code(word)] / scales[code("never")] == pytest.approx(value / expected["never"])


def test_a_chunk_has_the_same_codes_as_its_rows_alone():
    texts = ["Blue lamp", "lamp, blue!", None, "a lamp a lamp", "Straße 7"]
    fitted = fit_kind("text", column_of(texts))
    block = fitted.encode([column_of(texts)])
    for row, text in enumerate(texts):
        assert fitted.encode([column_of([text], pa.string())])[0].tolist() == block[row].tolist()


def test_texts_of_earlier_chunks_are_remembered(monkeypatch):
    rng = np.random.default_rng(0)
    texts = np.append(rng.choice([f"{a} {b}" for a in ("oak", "blue", "old") for b in "abcdefg"], 200), ["", "NA"] * 4)
    column = column_of([None if number % 9 == 0 else text for number, text in enumerate(texts)], pa.string())
    fitted = fit_kind("text", column)
    expected = fitted.encode([column]).tolist()
    for most in (2**24, 100):
        # With little memory, texts are forgotten.
        monkeypatch.setattr("setgrad.columns._memory._MOST_NUMBERS", most)
        memory, found = TextMemory(fitted), []
        for start in range(0, 208, 13):
            found += memory.encode(replace(column, array=column.array[start : start + 13])).block.tolist()
        assert found == expected
    numbers = column_of([7, None, 7])
    assert TextMemory(fitted).encode(numbers).block.tolist() == fitted.encode([numbers]).tolist()

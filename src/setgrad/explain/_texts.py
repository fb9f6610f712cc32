"""Ids, names and numbers as short texts for a terminal."""

from __future__ import annotations

from typing import Any

# How many letters of an id or a name are shown.
_LETTERS = 40


def clean(value: Any) -> str:
    r"""Return an id or a name on one line, without signs that a terminal would obey.

    Examples:
        >>> clean("a\tb\x1b[31m")
        'a b�[31m'
    """
    text = " ".join(str(value).split())
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def signed(number: float) -> str:
    """Return a number with its sign and three digits; "-" for NaN."""
    return "-" if number != number else f"{number:+.3g}"

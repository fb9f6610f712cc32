"""Errors of the library in the words of the command line: where it names an argument, here is an option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from setgrad.errors import SetgradError


@contextmanager
def in_words(words: Mapping[str, str]) -> Iterator[None]:
    """Exchange words in the message of an error that comes out of the block.

    Example:
        >>> with in_words({"max_size": "--max-size"}):
        ...     raise SetgradError("raise max_size")
        Traceback (most recent call last):
        setgrad.errors.SetgradError: raise --max-size
    """
    try:
        yield
    except SetgradError as error:
        text = str(error)
        for argument, option in words.items():
            text = text.replace(argument, option)
        raise type(error)(text) from None

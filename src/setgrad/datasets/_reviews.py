"""Generated reviews of hotels, sentence by sentence, and which sentences explain the rating of one thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from setgrad.datasets._table_task import TableTask, resolve_two, stack_sets
from setgrad.datasets._task import spawn_generators

# What is rated: sentences, things, what is good of them, what is bad.
_RATED = {
    "staff": (
        ("The {thing} at the desk was {word}", "Everybody who works here was {word}", "We found the {thing} {word}"),
        ("receptionist", "porter", "team", "manager"),
        ("friendly", "patient", "very helpful", "polite"),
        ("rude", "slow to answer", "never there", "unfriendly"),
    ),
    "room": (
        ("The {thing} was {word}", "Our {thing} felt {word}", "The {thing} turned out to be {word}"),
        ("bed", "bathroom", "bedroom", "shower"),
        ("spotless", "large and bright", "comfortable", "quiet"),
        ("dirty", "tiny and dark", "worn out", "noisy at night"),
    ),
    "breakfast": (
        ("The {thing} was {word}", "Every morning the {thing} was {word}", "We thought the {thing} was {word}"),
        ("coffee", "bread", "fruit", "buffet"),
        ("fresh", "delicious", "plentiful", "excellent"),
        ("stale", "cold", "always sold out", "tasteless"),
    ),
    "place": (
        ("The {thing} is {word}", "From here the {thing} is {word}", "Getting to the {thing} was {word}"),
        ("station", "old town", "beach", "museum"),
        ("only minutes away", "close by", "easy to reach", "around the corner"),
        ("far away", "an hour away", "hard to reach", "a long walk uphill"),
    ),
}
_OTHERS = (
    "We stayed for {number} nights in {month}.",
    "I came here with my {who}.",
    "We had booked the hotel {number} weeks ahead.",
    "The weather was {weather} all week.",
    "We came by {way}.",
)
_WORDS = {
    "number": ("two", "three", "four", "six"),
    "month": ("May", "June", "August", "October"),
    "who": ("family", "sister", "friends", "parents"),
    "weather": ("fine", "awful", "mixed"),
    "way": ("train", "car", "plane", "bus"),
}
_OVERLOOKED, _NEGATED = 0.1, 0.3
_DEFAULT_COUNTS = (400, 100)
_DESCRIPTION = (
    "One row for each sentence of a review of a hotel, 6 to 13 in a review, and whether it explains the rating of the "
    "thing in the column about: it is about that thing, and it speaks for the rating. Other sentences are about other "
    "things, about nothing that is rated, or speak against the rating. Of the sentences that explain it after the "
    "first, one in ten was overlooked."
)


def make_reviews(*, random_state: int = 0, n_train: int | None = None, n_test: int | None = None) -> TableTask:
    """Return the tables of the reviews: 400 to learn from and 100 to test on by default."""
    import pyarrow as pa

    counts = resolve_two(n_train, n_test, _DEFAULT_COUNTS)
    types = {
        "review": pa.string(),
        "about": pa.string(),
        "rating": pa.string(),
        "number": pa.int64(),
        "sentence": pa.string(),
        "explains": pa.bool_(),
    }
    train, test = (
        stack_sets(_draw_reviews(rng, count, first), types)
        for rng, count, first in zip(spawn_generators(random_state, 2), counts, (1, counts[0] + 1), strict=True)
    )
    return TableTask("reviews", _DESCRIPTION, train, test, "review", "number", "explains")


def _draw_reviews(rng: np.random.Generator, count: int, first: int) -> Iterator[dict[str, Any]]:
    """Yield the columns of each review."""
    for number in range(first, first + count):
        about, *others = rng.permutation(list(_RATED))[:3]
        is_good = bool(rng.random() < 0.5)
        sentences = [
            (_draw_rated(rng, about, is_good), place == 0 or bool(rng.random() > _OVERLOOKED))
            for place in range(rng.integers(1, 4))
        ]
        if rng.random() < 0.5:
            sentences.append((_draw_rated(rng, about, not is_good), False))
        for other in others:
            sentences += [(_draw_rated(rng, other, bool(rng.random() < 0.5)), False) for _ in range(rng.integers(1, 3))]
        sentences += [(_draw_other(rng), False) for _ in range(rng.integers(3, 6))]
        texts, explains = zip(*(sentences[place] for place in rng.permutation(len(sentences))), strict=True)
        facts = {"review": f"r{number:04d}", "about": str(about), "rating": "high" if is_good else "low"}
        yield {
            **facts,
            "number": np.arange(1, len(texts) + 1),
            "sentence": np.array(texts),
            "explains": np.array(explains),
        }


def _draw_rated(rng: np.random.Generator, about: str, is_good: bool) -> str:
    forms, things, good, bad = _RATED[about]
    word = rng.choice(good if is_good else bad)
    if rng.random() < _NEGATED:
        word = f"not {rng.choice(bad if is_good else good)}"
    return f"{rng.choice(forms).format(thing=rng.choice(things), word=word)}."


def _draw_other(rng: np.random.Generator) -> str:
    return str(rng.choice(_OTHERS)).format(**{name: rng.choice(words) for name, words in _WORDS.items()})

"""Where a fitted model comes from: when it was fitted, with which versions, and on which data."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, final

import numpy as np
import torch

from setgrad.selector._data import TrainingData
from setgrad.selector._examples import Examples, hash_parts
from setgrad.sets import Layout

_DATE, _DIGEST = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"), re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+_-]{1,60}")


@final
@dataclass(frozen=True)
class DataFacts:
    """What is told of training or validation sets.

    Attributes:
        sets: Number of sets.
        items: Number of items in all sets.
        chosen: Number of chosen items.
        smallest: Size of the smallest set.
        largest: Size of the largest set.
        largest_subset: Size of the largest chosen subset.
    """

    sets: int
    items: int
    chosen: int
    smallest: int
    largest: int
    largest_subset: int

    @staticmethod
    def of(layout: Layout, sizes: np.ndarray) -> DataFacts:
        """Return the facts of sets, from their layout and the sizes of the subsets."""
        lengths = layout.host_lengths
        largest = (int(array.max(initial=0)) for array in (lengths, sizes))
        smallest = int(lengths.min()) if len(lengths) else 0
        return DataFacts(len(lengths), layout.total, int(sizes.sum()), smallest, *largest)


@final
@dataclass(frozen=True)
class Origin:
    """Where a fitted model comes from.

    Attributes:
        date: When the fit ended, in UTC, as in "2026-11-19T04:52:14+00:00".
        versions: Versions of setgrad, torch and Python.
        sha256: Hash of the data: of the sizes of the sets, the numbers of the items as the model reads them, the
            subsets and the weights. The same data in the same order have the same hash.
        training: The sets that were trained on.
        validation: The held-out sets.
    """

    date: str
    versions: dict[str, str]
    sha256: str
    training: DataFacts
    validation: DataFacts

    @staticmethod
    def of(data: TrainingData) -> Origin:
        """Return the origin of a fit that ends now."""
        from setgrad import __version__

        versions = {"setgrad": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
        held_out = Examples(data.validation, None)
        facts = (DataFacts.of(sets.layout, sets.sizes) for sets in (data.train, held_out))
        digest = hash_parts([*data.train.signature(), *held_out.signature()])
        return Origin(datetime.now(UTC).isoformat(timespec="seconds"), versions, digest, *facts)

    @staticmethod
    def from_json(value: Any) -> Origin:
        """Return the origin that a file tells.

        Raises:
            ValueError: If it is damaged.
        """
        facts = []
        for name in ("training", "validation"):
            counts = value[name]
            if not all(type(count) is int and 0 <= count < 2**63 for count in counts.values()):
                raise ValueError(f"{name} in origin is {counts!r:.80}")
            facts.append(DataFacts(**counts))
        date, versions, digest = value["date"], value["versions"], value["sha256"]
        texts = [text for pair in versions.items() for text in pair]
        if not (_DATE.fullmatch(date) and _DIGEST.fullmatch(digest) and all(map(_VERSION.fullmatch, texts))):
            raise ValueError(f"origin is {value!r:.200}")
        return Origin(date, dict(versions), digest, *facts)

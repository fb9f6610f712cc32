"""What a table holds that the training rows did not: gaps where there were none, and values that are not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from setgrad.columns._column import FittedColumn
from setgrad.columns._encoded import Encoded

if TYPE_CHECKING:
    from setgrad.sets._columns import Column

# With fewer values than this, that most are unknown may be chance.
_FEW_VALUES = 20


@final
class Surprises:
    """Counts through the chunks of a table what is new in its columns."""

    def __init__(self) -> None:
        self._gaps: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._present: Counter[str] = Counter()
        self._rare: dict[str, float] = {}

    def see(self, column: FittedColumn, sources: Sequence[Column], encoded: Encoded) -> None:
        """Look at a column of a chunk and its numbers."""
        self._gaps[column.name] += column.count_new_gaps(sources)
        unknown, present = column.count_unknown(encoded)
        self._unknown[column.name] += unknown
        self._present[column.name] += present
        self._rare[column.name] = column.unknown_share

    @property
    def gaps(self) -> dict[str, int]:
        """The number of missing values of each column that had none in training."""
        return {name: count for name, count in self._gaps.items() if count}

    def warnings(self) -> list[str]:
        """Return what people should know, one sentence for each kind of surprise."""
        found = []
        gaps = [f"{name} ({count})" for name, count in self.gaps.items()]
        if gaps:
            found.append(
                f"values are missing where none was in training: {', '.join(gaps)}; the median of training stands for "
                "them, so fill them in, or fit on rows with gaps"
            )
        unknown = [
            f"{name} ({self._unknown[name]} of {present})"
            for name, present in self._present.items()
            # More than half, and far more than in training.
            if present >= _FEW_VALUES and self._unknown[name] / present > (1 + self._rare[name]) / 2
        ]
        if unknown:
            found.append(
                f"most values are unknown from training: {', '.join(unknown)}; check that they are spelled as there"
            )
        return found

"""A fit of a benchmark of tables, and the options of ours in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

_QUICK = {"dim": 16, "max_epochs": 2}


@final
@dataclass(frozen=True)
class Trial:
    """One fit; what is drawn at random for it follows from the seed too."""

    task: str
    model: str
    seed: int
    options: str
    quick: bool = False

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task}, {self.model}, seed {self.seed}"


def options_of(quick: bool) -> dict[str, Any]:
    """Return the options of ours: none, or few and small ones for a quick run."""
    return dict(_QUICK) if quick else {}

"""Parts of a table that are chosen from independently, each by a process or at a time of its own."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from setgrad.errors import DataError, OptionError, parameter

if TYPE_CHECKING:
    from setgrad.sets._blocks import SetBlocks

_FILE = re.compile(r"part-(\d+)-of-(\d+)\.parquet")


@final
@dataclass(frozen=True)
class Share:
    """One of several parts of a table: sets that follow each other, with about the same number of rows in each part.

    Attributes:
        number: Its number, from 1 on.
        count: The number of all parts.
    """

    number: int
    count: int

    @staticmethod
    def of(part: Any) -> Share | None:
        """Return the share that a user names by two numbers; None for the whole table.

        Raises:
            OptionError: If there is no such part.
        """
        if part is None:
            return None
        numbers = part if isinstance(part, tuple | list) else ()
        if len(numbers) != 2 or not all(isinstance(x, Integral) and not isinstance(x, bool) for x in numbers):
            raise OptionError(f"{parameter('part')} must be two whole numbers, such as (3, 16), not {part!r}")
        number, count = int(numbers[0]), int(numbers[1])
        if not 1 <= number <= count:
            raise OptionError(
                f"there is no part {number} of {count}; parts are numbered from 1 on: {parameter('part')}"
            )
        return Share(number, count)

    def file_in(self, folder: Path) -> Path:
        """Return the file of its picks; their order in the folder is that of the table.

        Raises:
            DataError: If the folder holds picks in another number of parts.
            OptionError: If the path names a file.
        """
        if folder.suffix in (".parquet", ".pq") or folder.is_file():
            raise OptionError(f"picks in parts are written to a folder, and {folder} is a file; name a folder")
        found = (_FILE.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ()))
        others = {int(match[2]) for match in found if match} - {self.count}
        if others:
            raise DataError(
                f"{folder} holds picks in {min(others)} parts, and would then hold some twice; name another folder, or "
                "delete it"
            )
        digits = max(5, len(str(self.count)))
        return folder / f"part-{self.number:0{digits}}-of-{self.count:0{digits}}.parquet"

    def ranges(self, blocks: SetBlocks) -> list[tuple[int, int]]:
        """Return the rows that are read together: the sets of this share, block by block.

        Raises:
            OptionError: If there are fewer sets than parts.
        """
        starts = blocks.index.starts
        sets = len(blocks.index)
        if sets < self.count:
            raise OptionError(
                f"the table has {sets} sets, fewer than {self.count} parts; use fewer: {parameter('part')}"
            )
        # Every part has a set, however large the sets are.
        cuts = np.searchsorted(starts, starts[-1] * np.arange(self.count + 1) / self.count)
        order = np.arange(self.count + 1)
        cuts = np.minimum(np.maximum.accumulate(cuts - order) + order, sets - self.count + order)
        first, end = cuts[self.number - 1 : self.number + 1].tolist()
        inner = blocks.bounds[(blocks.bounds > first) & (blocks.bounds < end)]
        rows = starts[np.concatenate([[first], inner, [end]])].tolist()
        return list(itertools.pairwise(rows))

"""The numbers that an exported program reads, from a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector
from setgrad.selector._input import Input


def encode_table(selector: SubsetSelector, table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs `items` and `mask` of an exported program for the sets of a table.

    Args:
        selector: A selector that was fitted on a table; its columns say how values become numbers.
        table: Another table, as `predict` takes it.

    Returns:
        The numbers `(b, n, d)` in double precision with 0 for padding, and the mask `(b, n)`. Sets and items are in the
        order of the table.

    Raises:
        OptionError: If the selector was not fitted on a table; other errors are those of `predict`.

    Examples:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> shop = pd.DataFrame({"visit": np.arange(200) // 2, "price": rng.random(200)})
        >>> shop["bought"] = rng.random(200) < 0.5
        >>> selector = SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0, device="cpu")
        >>> _ = selector.fit(shop, set_id="visit", chosen="bought")
        >>> items, mask = encode_table(selector, shop[:3])
        >>> items.shape, mask.tolist()
        ((2, 2, 1), [[True, True], [True, False]])
    """
    if selector.table_ is None:
        raise OptionError("the selector was not fitted on a table; pad its sets: items, mask = sets.padded()")
    items, mask = Input.of(table, selector.table_).sets.padded()
    return items.double().cpu().numpy(), mask.cpu().numpy()

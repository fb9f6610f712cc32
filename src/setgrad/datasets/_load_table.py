"""`load_table`: the tables that come with the package, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from setgrad.datasets._energy import make_energy
from setgrad.datasets._reviews import make_reviews
from setgrad.datasets._shop import make_shop
from setgrad.datasets._solubility import make_solubility
from setgrad.datasets._table_task import TableTask
from setgrad.errors import unknown_name


@final
@dataclass(frozen=True)
class TableLoader:
    """A table that `load_table` returns by name.

    Attributes:
        summary: One line about the subsets to find.
        make: The function that returns the tables. It takes the keywords `random_state`, `n_train` and `n_test`.
        needs: Optional packages that the table needs.
    """

    summary: str
    make: Callable[..., TableTask]
    needs: str = ""


TABLES: dict[str, TableLoader] = {
    "shop": TableLoader("the products that visitors of a shop bought, of 10 to 16 that they were shown", make_shop),
    "solubility": TableLoader("the soluble and different compounds of a plate of 12 to 30", make_solubility, "RDKit"),
    "reviews": TableLoader("the sentences of a review that explain a rating, of 6 to 13", make_reviews),
    "energy": TableLoader("the hours of a day in which a machine ran, within a budget of energy", make_energy),
}


def table_names() -> list[str]:
    """Return the name of every table that `load_table` returns.

    Examples:
        >>> table_names()
        ['shop', 'solubility', 'reviews', 'energy']
    """
    return list(TABLES)


def load_table(name: str, *, random_state: int = 0, n_train: int | None = None, n_test: int | None = None) -> TableTask:
    """Return tables to try things on, with one row for each item, as people have them.

    They are generated. The same name and `random_state` always give the same tables.

    Args:
        name: One of `table_names()`.
        random_state: Seed of all random draws. The global random state is neither read nor changed.
        n_train: Number of sets to learn from; by default that of the table.
        n_test: Number of sets to test on; by default that of the table.

    Returns:
        Both tables, and the names of their columns.

    Raises:
        OptionError: If there is no such table, or a number is not an integer of at least 0.
        MissingDependencyError: If an optional package is needed and not installed.

    Examples:
        >>> shop = load_table("shop", n_train=20, n_test=5)
        >>> shop
        TableTask('shop': 252 rows to learn from, 66 to test on, 13 columns)
        >>> shop.roles
        {'set_id': 'visit', 'item_id': 'product', 'chosen': 'bought'}
    """
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    return TABLES[name].make(random_state=random_state, n_train=n_train, n_test=n_test)

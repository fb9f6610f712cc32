"""The tables that come with the package: their rules hold, and they depend on the seed alone."""

import numpy as np
import pytest

from setgrad.datasets import TABLES, TableTask, load_table, load_task, table_names
from setgrad.errors import OptionError


def _load(name: str, **options: int) -> TableTask:
    if name == "solubility":
        pytest.importorskip("rdkit")
    return load_table(name, **{"n_train": 12, "n_test": 4, **options})


def _sets(task: TableTask) -> list[dict[str, list]]:
    """Return the columns of each set to learn from."""
    frame = task.train.to_pandas()
    return [rows.to_dict("list") for _, rows in frame.groupby(task.set_id, sort=False)]


@pytest.mark.parametrize("name", table_names())
def test_tables_depend_on_the_seed_alone(name: str) -> None:
    task, other = _load(name), _load(name, random_state=1)
    assert task.train.equals(_load(name).train) and not task.train.equals(other.train)
    # The size of one table does not change the rows of the other, but for the numbers of its sets.
    more = _load(name, n_train=13)
    dropped = [task.set_id, "weekend", "saving", "run", "demand"] if name == "energy" else [task.set_id]
    assert more.test.drop_columns(dropped).equals(task.test.drop_columns(dropped))
    assert len(task.train[task.set_id].unique()) == 12 and len(task.test[task.set_id].unique()) == 4
    assert not set(task.train[task.set_id].to_pylist()) & set(task.test[task.set_id].to_pylist())


@pytest.mark.parametrize("name", table_names())
def test_roles_are_columns_and_every_set_has_a_choice(name: str) -> None:
    task = _load(name)
    assert set(task.roles.values()) <= set(task.train.column_names)
    assert task.train.schema == task.test.schema
    assert str(task.train.num_rows) in repr(task) and "licence" in task.source
    for columns in _sets(task):
        assert 0 < sum(columns[task.chosen]) < len(columns[task.chosen])
        assert len(set(columns[task.item_id])) == len(columns[task.item_id])


def test_what_is_bought_has_one_look() -> None:
    for visit in _sets(_load("shop")):
        pictures, bought, cart = (np.array([*visit[name]]) for name in ("picture", "bought", "in_cart"))
        distance = np.linalg.norm(pictures - pictures[cart], axis=1)
        assert cart.sum() == 1 and bought[cart].all()
        # Products of a look are 0.15 times the root of 16 apart, looks about 4.
        assert distance[bought].max() < 1.5
        assert len(set(visit["room"])) == len(set(visit["day"])) == 1


def test_one_compound_of_a_scaffold_is_picked() -> None:
    for plate in _sets(_load("solubility")):
        names = [name for name, picked in zip(plate["scaffold"], plate["picked"], strict=True) if picked]
        assert len(names) == len(set(names))
        assert len(set(plate["scaffold"])) == 6


def test_explaining_sentences_are_about_what_is_asked() -> None:
    things = {
        "staff": ("receptionist", "porter", "team", "manager", "works here"),
        "room": ("bed", "bath", "shower"),
        "breakfast": ("coffee", "bread", "fruit", "buffet"),
        "place": ("station", "old town", "beach", "museum"),
    }
    for review in _sets(_load("reviews")):
        (about,) = set(review["about"])
        for sentence, explains in zip(review["sentence"], review["explains"], strict=True):
            assert not explains or any(thing in sentence for thing in things[about])


def test_hours_are_the_best_within_the_budget() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    for day in _sets(_load("energy"))[:4]:
        saving, energy, run = (np.array(day[name]) for name in ("saving", "energy", "run"))
        limit = optimize.LinearConstraint(energy, ub=40)
        best = optimize.milp(-saving, constraints=limit, integrality=np.ones(24), bounds=(0, 1))
        assert energy[run].sum() <= 40
        assert saving[run].sum() == pytest.approx(-best.fun, rel=1e-9)


def test_wrong_names_say_what_to_call() -> None:
    with pytest.raises(OptionError, match="unknown table 'shops'; choose one of: shop, solubility"):
        load_table("shops")
    with pytest.raises(OptionError, match=r"'shop' is a table; load it with load_table\('shop'\)"):
        load_task("shop")
    with pytest.raises(OptionError, match="n_train must be an integer"):
        load_table("shop", n_train=-1)
    assert TABLES["solubility"].needs == "RDKit"

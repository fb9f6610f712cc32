"""What F has beside its trees: a term for pairs where it helps, training where it helps, and sizes from all sets."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import setgrad as sg
from setgrad.export import encode_table
from setgrad.selector import SubsetSelector
from setgrad.selector.metrics import is_clear
from setgrad.sets import Sets

SMALL: dict[str, Any] = {"dim": 8, "hidden": (8,), "layers": 1, "max_epochs": 2, "random_state": 0, "verbose": 0}
ROLES: dict[str, Any] = {"set_id": "s", "chosen": "y", "item_id": "item"}
SETS, SIZE = 60, 12


def make_frame(rule: str, seed: int = 0) -> pd.DataFrame:
    """Items of three kinds in each set; chosen are those of one random kind, or the cheap ones with noise."""
    rng = np.random.default_rng(seed)
    kind = np.tile(np.repeat(["a", "b", "c"], SIZE // 3), SETS)
    price = rng.lognormal(size=SETS * SIZE)
    wanted = np.repeat(rng.choice(["a", "b", "c"], SETS), SIZE)
    chosen = kind == wanted if rule == "kind" else np.log(price) + 0.3 * rng.normal(size=len(price)) < -0.5
    ids = np.arange(SETS * SIZE)
    return pd.DataFrame({"s": ids // SIZE, "item": ids, "kind": kind, "price": price, "y": chosen})


@pytest.fixture(scope="module")
def cheap() -> SubsetSelector:
    return SubsetSelector(**SMALL).fit(make_frame("price"), **ROLES)


def with_brands(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Add columns that tell nothing of what goes together."""
    rng = np.random.default_rng(seed)
    return frame.assign(**{f"brand{n}": rng.choice([f"b{k}" for k in range(9)], len(frame)) for n in range(4)})


@pytest.mark.parametrize("trees", [None, False])
def test_items_like_the_given_ones_are_found(few_trees, trees):
    """Nothing tells which kind is chosen, until one item is given; two epochs are too few to learn that."""
    new = with_brands(make_frame("kind", seed=1), 1)
    with few_trees():
        selector = SubsetSelector(**SMALL, trees=trees).fit(with_brands(make_frame("kind"), 0), **ROLES)
    given = new["y"] & ~new.duplicated(["s", "y"])
    picks = selector.predict(new, size=SIZE // 3, given=given.to_numpy())
    assert (picks["chosen"] == new["y"]).mean() > 0.99


def test_trees_are_used_alone_where_training_gains_nothing(cheap):
    assert cheap.best_epoch_ == 0 and not cheap.model_.config.is_function_used
    new, model = make_frame("price", seed=1), cheap.model_
    items, mask = encode_table(cheap, new)
    sets = Sets.from_lengths(torch.as_tensor(items[mask]), [SIZE] * SETS)
    assert model.relative is not None and model.trees is not None
    scores = model.trees(sets.values, model.relative(sets))
    torch.testing.assert_close(cheap.decision_function(new).values.double(), scores.double())


def test_all_sets_tell_how_many_items_to_choose(cheap):
    assert cheap.recall_ is not None and cheap.recall_.count == SETS
    # Sets that trees did not learn from are calibrated by themselves.
    other = SubsetSelector(**SMALL).fit(make_frame("price"), **ROLES, validation=make_frame("price", seed=2))
    assert other.recall_ is not None and other.recall_.count == SETS


def test_a_saved_model_remembers_that_its_trees_are_alone(cheap, tmp_path):
    cheap.save(tmp_path / "model")
    loaded, new = sg.load(tmp_path / "model", device="cpu"), make_frame("price", seed=1)
    assert loaded.best_epoch_ == 0 and loaded.validation_score_ == cheap.validation_score_
    pd.testing.assert_frame_equal(loaded.predict(new), cheap.predict(new))


def test_only_a_clear_gain_counts():
    rng = torch.Generator().manual_seed(0)
    noise = 0.2 * torch.randn(50, generator=rng)
    noise -= noise.mean()
    error = float(noise.std()) / 50**0.5
    assert not is_clear(torch.zeros(50), 3.0) and is_clear(torch.full((50,), 0.01), 3.0)
    for errors in (1.0, 3.0):
        assert is_clear(noise + 1.03 * errors * error, errors) and not is_clear(noise + 0.97 * errors * error, errors)
    # One set shows no chance.
    assert is_clear(torch.tensor([0.1]), 3.0) and not is_clear(torch.tensor([0.0]), 3.0)

"""The steps of a waterfall, by a loop over the items."""

import numpy as np
import pytest

from setgrad.explain import gain_steps
from tests.explain.oracles import CURVED, draw_sets, value


def test_each_step_adds_the_item_with_the_largest_gain():
    sets, subsets = draw_sets([6, 1, 0, 4, 5]), [[0, 2, 3, 5], [0], [], [], [0, 1, 2, 3, 4]]
    found = gain_steps(CURVED, sets, subsets)
    for items, subset, steps, gains in zip(sets, subsets, found.steps, found.gains, strict=True):
        inside: list[int] = []
        for step in range(1, len(subset) + 1):
            waiting = {
                item: value(CURVED, items, [*inside, item]) - value(CURVED, items, inside)
                for item in subset
                if item not in inside
            }
            best = max(waiting, key=waiting.__getitem__)
            assert int(steps[best]) == step
            assert float(gains[best]) == pytest.approx(waiting[best], abs=1e-12)
            inside.append(best)
        assert int((steps > 0).sum()) == len(subset) == int((~gains.isnan()).sum())


def test_gains_add_up_to_the_value(fitted, shop):
    items = fitted.explain(shop, columns=()).to_frame()
    chosen = items[items["chosen"]]
    sums = chosen.groupby("visit")[["step_gain", "shapley"]].sum()
    assert sums["step_gain"].to_numpy() == pytest.approx(sums["shapley"].to_numpy(), abs=1e-8)
    for _, rows in chosen.groupby("visit"):
        assert sorted(rows["step"]) == list(range(1, len(rows) + 1))
    assert (items.loc[~items["chosen"], "step"] == 0).all() and np.isnan(items.loc[~items["chosen"], "step_gain"]).all()

"""Draws of whole subsets: their distribution, what they depend on, and the draw that is closest to all others."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import setgrad
from setgrad.errors import NotFittedError, OptionError
from setgrad.functions import FreshNoise
from setgrad.inference import draw_partial_subsets
from setgrad.selector import SubsetSelector
from setgrad.selector._draws import DRAWS, closest_to_draws, fit_stop_logit
from setgrad.sets import Choices, Sets
from tests.models import rewrite_config
from tests.selector.conftest import TINY, make_choices


def as_subset(mask):
    return frozenset(mask.nonzero()[:, 0].tolist())


def exact_probabilities(selector, items, start=(), excluded=()):
    """Return the probability of each subset by enumerating all orders in which its items join."""
    sets = Sets.from_lengths(items, [len(items)])
    found: Counter[frozenset[int]] = Counter()

    def go(chosen, probability):
        mask = torch.zeros(1, len(items), dtype=torch.bool)
        mask[0, list(chosen)] = True
        gains = selector.function_.gains(sets, mask)[0].tolist()
        weights = {i: math.exp(gains[i]) for i in range(len(items)) if i not in chosen and i not in excluded}
        end = math.exp(selector.stop_logit_)
        total = end + sum(weights.values())
        found[frozenset(chosen)] += probability * end / total
        for item, weight in weights.items():
            go((*chosen, item), probability * weight / total)

    go(tuple(start), 1.0)
    return found


@pytest.fixture(scope="module")
def unsure(choices):
    """The method "conditional" after one epoch, so that many subsets are likely."""
    return SubsetSelector(**{**TINY, "max_epochs": 1, "method": "conditional"}).fit(*choices)


@pytest.mark.parametrize("known", [{}, {"given": [[1]], "excluded": [[3]]}], ids=["free", "known items"])
def test_the_conditional_method_draws_with_the_probabilities_of_its_gains(unsure, known: dict[str, Any]):
    items, draws = make_choices(4, seed=2).sets[2].double()[:4], 4000
    counts = Counter(as_subset(draw[0]) for draw in unsure.sample([items], draws, **known))
    exact = exact_probabilities(unsure, items, *(known[name][0] for name in known))
    assert counts.keys() <= exact.keys() and sum(p > 0.005 for p in exact.values()) >= 3
    for subset, p in exact.items():
        assert abs(counts[subset] - draws * p) <= 4.5 * math.sqrt(draws * p * (1 - p)) + 1


def test_the_end_of_a_draw_is_learned_by_maximum_likelihood(unsure):
    """By a loop over parts: the mean probability of an end is the share of parts that are whole subsets."""
    generator = torch.Generator().manual_seed(1)
    # Sets of one size, so that batches keep their order.
    sets = Sets.from_lengths(torch.randn(60, 2, generator=generator), [4] * 15)
    choices = Choices(sets, sets.with_values(torch.rand(60, generator=generator) < 0.4))
    logit = fit_stop_logit(unsure.model_, choices, seed=5)
    parts = draw_partial_subsets(choices.subsets, 8, FreshNoise(5))
    slope, ends = 0.0, 0
    for part in parts:
        gains = unsure.function_.gains(sets, part[None])[0]
        for number in range(15):
            inside = sets.layout.ids == number
            outside = inside & ~part
            total = sum(math.exp(gain) for gain in gains[outside].tolist())
            is_end = not (choices.subsets.values & outside).any()
            slope += is_end - math.exp(logit) / (math.exp(logit) + total)
            ends += is_end
    assert 10 < ends < 95 and abs(slope) < 1e-3


def test_the_logit_of_the_end_is_saved_and_that_of_models_without_one_is_0(unsure, choices, tmp_path):
    unsure.save(tmp_path / "model")
    assert setgrad.load(tmp_path / "model", device="cpu").stop_logit_ == unsure.stop_logit_ != 0
    rewrite_config(tmp_path / "model", lambda config: config.pop("stop_logit"))
    assert setgrad.load(tmp_path / "model", device="cpu").stop_logit_ == 0


@pytest.mark.parametrize("method", ["unrolled", "direct"])
@pytest.mark.parametrize("known", [{}, {"given": [[1]], "excluded": [[3]]}], ids=["free", "known items"])
def test_other_methods_draw_items_independently(choices, method, known):
    selector = SubsetSelector(**{**TINY, "max_epochs": 1, "method": method}).fit(*choices)
    items, draws = make_choices(4, seed=2).sets[2][:4], 4000
    p = selector.predict_proba([items], **known)[0].tolist()
    counts = Counter(as_subset(draw[0]) for draw in selector.sample([items], draws, **known))
    for mask in itertools.product([False, True], repeat=4):
        chance = math.prod(p[i] if mask[i] else 1 - p[i] for i in range(4))
        count = counts[frozenset(i for i in range(4) if mask[i])]
        assert abs(count - draws * chance) <= 4.5 * math.sqrt(draws * chance * (1 - chance)) + 1e-3


def test_draws_depend_on_the_set_and_the_seed_alone(quick):
    sets = Sets.cat([make_choices(6, seed=2).sets, Sets.from_list([torch.zeros(0, 2)])])
    together = quick.sample(sets, 9)
    assert [draw.dtype for draw in together] == [torch.bool] * 9
    generator = torch.Generator().manual_seed(0)
    for number, items in enumerate(sets):
        order = torch.randperm(len(items), generator=generator)
        alone = quick.sample([items[order]], 9)
        assert [draw[0].tolist() for draw in alone] == [draw[number][order].tolist() for draw in together]
    assert all(torch.equal(a.values, b.values) for a, b in zip(together, quick.sample(sets, 9), strict=True))
    other = quick.sample(sets, 9, random_state=1)
    assert any(not torch.equal(a.values, b.values) for a, b in zip(together, other, strict=True))


def test_draws_hold_the_given_items_and_no_excluded_one(quick):
    sets = make_choices(6, seed=2).sets
    for draw in quick.sample(sets, 20, given=[[0]] * 6, excluded=[[2]] * 6):
        assert all(bool(mask[0]) and not bool(mask[2]) for mask in draw)


def test_draws_in_small_batches_are_the_same(quick, monkeypatch):
    sets = make_choices(6, seed=2).sets
    expected = quick.sample(sets, 5)
    monkeypatch.setattr("setgrad.selector._draws.BATCH_ITEMS", 40)
    again = quick.sample(sets, 5)
    assert all(torch.equal(a.values, b.values) for a, b in zip(expected, again, strict=True))


def test_numbers_of_draws(quick):
    sets = make_choices(3, seed=2).sets
    assert len(quick.sample(sets)) == 1
    assert len(quick.sample(sets, np.int64(3))) == 3
    assert [len(draw) for draw in quick.sample([], 2)] == [0, 0]
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(OptionError, match="n must be a whole number of at least 1"):
            quick.sample(sets, wrong)
    with pytest.raises(NotFittedError):
        SubsetSelector().sample(sets)


def plain_jaccard(a, b):
    return len(a & b) / len(a | b) if a | b else 1.0


def test_closest_to_draws_equals_a_loop():
    sets = Sets.from_lengths(torch.zeros(13, 1), [4, 0, 1, 5, 3])
    generator = torch.Generator().manual_seed(0)
    candidates, draws = (torch.rand(count, 13, generator=generator) < 0.4 for count in (6, 9))
    result = closest_to_draws(candidates, draws, sets)
    for number, mask in enumerate(result):
        chosen = [as_subset(sets.with_values(row)[number]) for row in candidates]
        drawn = [as_subset(sets.with_values(row)[number]) for row in draws]
        means = [sum(plain_jaccard(c, d) for d in drawn) / len(drawn) for c in chosen]
        # The first of equally good ones.
        assert as_subset(mask) == chosen[max(range(6), key=lambda k: (round(means[k], 12), -k))]


def test_the_decision_by_draws_is_the_best_of_the_choice_and_the_draws(quick):
    sets = make_choices(8, seed=2).sets
    inside, outside = [[0]] * 8, [[1]] * 8
    for known in ({}, {"given": inside, "excluded": outside}):
        draws = quick.sample(sets, DRAWS, **known)
        candidates = [quick.predict(sets, **known), *draws]
        picks = quick.predict(sets, decide="expected-jaccard", **known)
        for number, mask in enumerate(picks):
            drawn = [as_subset(draw[number]) for draw in draws]
            means = [sum(plain_jaccard(as_subset(c[number]), d) for d in drawn) / len(drawn) for c in candidates]
            score = sum(plain_jaccard(as_subset(mask), d) for d in drawn) / len(drawn)
            assert score == pytest.approx(max(means))


def test_the_decision_does_not_go_with_other_arguments(quick):
    sets = make_choices(3, seed=2).sets
    others: list[dict[str, Any]] = [{"size": 1}, {"threshold": 0.5}, {"search": "local"}, {"constraint": []}]
    for other in (*others, {"recall": 0.5}):
        (name,) = other
        with pytest.raises(OptionError, match=f"decide determines the whole subset; leave out {name}"):
            quick.predict(sets, decide="expected-jaccard", **other)
    with pytest.raises(OptionError, match="unknown decide 'magic'"):
        quick.predict(sets, decide="magic")

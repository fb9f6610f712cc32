"""The size rules, compared with a plain search, and the choice among them."""

import pytest
import torch

from setgrad.errors import FileFormatError
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.selector.sizes import (
    SIZE_RULES,
    ExpectedJaccard,
    LinearSize,
    Threshold,
    calibrate,
    rule_from_json,
    rule_to_json,
)
from setgrad.sets import Sets, segment_rank


def draw(count=200, seed=0, sharp=2.0):
    """Return calibrated logits, P(chosen) = sigmoid(logit), and the chosen subsets."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [3 + i % 9 for i in range(count)] + [0]
    logits = sharp * torch.randn(sum(sizes), generator=generator, dtype=torch.float64) - 1
    chosen = torch.rand(len(logits), generator=generator) < torch.sigmoid(logits)
    return logits, Sets.from_lengths(chosen, sizes)


def score(rule, logits, subsets):
    return float(jaccard(pick_top(logits, subsets, rule.sizes(logits, subsets)), subsets).mean())


@pytest.mark.parametrize("name", SIZE_RULES)
def test_rules_give_possible_sizes_and_beat_a_constant(name):
    logits, subsets = draw()
    rule = SIZE_RULES[name].fit(logits, subsets)
    sizes = rule.sizes(logits, subsets)
    assert bool(((sizes >= 0) & (sizes <= subsets.lengths)).all())
    fixed = max(score(_Constant(k), logits, subsets) for k in range(1, 10))
    assert score(rule, logits, subsets) > fixed
    assert rule_from_json(rule_to_json(rule)) == rule


class _Constant:
    def __init__(self, size):
        self.size = size

    def sizes(self, logits, sets):
        return torch.full((len(sets),), self.size).minimum(sets.lengths)


@pytest.mark.parametrize("name", SIZE_RULES)
def test_sizes_do_not_depend_on_the_batch(name):
    logits, subsets = draw(20)
    rule = SIZE_RULES[name].fit(logits, subsets)
    together = rule.sizes(logits, subsets)
    split = subsets.with_values(logits)
    for number in range(len(subsets)):
        alone = split[number : number + 1]
        assert rule.sizes(alone.values, alone).tolist() == [together[number]]


def test_small_probabilities_are_not_rounded_by_large_sums_of_other_sets():
    rule = ExpectedJaccard(slope=1.0, shift=0.0)
    small = torch.linspace(-32.0, -28.0, 40)[:, None].expand(40, 5)
    alone = Sets.from_lengths(small.reshape(-1), [5] * 40)
    behind = Sets.from_lengths(torch.cat([torch.full((10_000,), 3.0), alone.values]), [10_000] + [5] * 40)
    assert rule.sizes(behind.values, behind)[1:].tolist() == rule.sizes(alone.values, alone).tolist()


def test_threshold_is_the_best_one():
    logits, subsets = draw(50)
    best = max(
        float(jaccard(subsets.with_values(logits > cut), subsets).mean())
        for cut in torch.linspace(-8, 8, 4001, dtype=torch.float64)
    )
    assert score(Threshold.fit(logits, subsets), logits, subsets) == pytest.approx(best, abs=5e-3)


def test_threshold_is_in_the_middle_of_the_gap():
    subsets = Sets.from_list([torch.tensor([True, False, False])] * 4)
    logits = torch.tensor([5.0, -3.0, -4.0] * 4)
    assert Threshold.fit(logits, subsets).cut == pytest.approx(1.0)


def test_linear_size_recovers_a_linear_relation():
    generator = torch.Generator().manual_seed(0)
    lengths = [4 + 2 * (i % 4) for i in range(40)]
    subsets = Sets.from_list([torch.arange(n) < n // 2 for n in lengths])
    logits = torch.randn(sum(lengths), generator=generator)
    assert LinearSize.fit(logits, subsets).sizes(logits, subsets).tolist() == [n // 2 for n in lengths]


def test_linear_size_of_a_constant_size_is_that_size():
    subsets = Sets.from_list([torch.arange(20) < 7] * 10)
    logits = torch.randn(200, generator=torch.Generator().manual_seed(0))
    assert set(LinearSize.fit(logits, subsets).sizes(logits, subsets).tolist()) == {7}


def test_expected_jaccard_equals_a_plain_loop():
    logits, subsets = draw(30)
    rule = ExpectedJaccard(1.3, -0.2)
    wanted = []
    for x in subsets.with_values(logits):
        p = sorted(torch.sigmoid(1.3 * x - 0.2).tolist(), reverse=True)
        scores = [sum(p[:k]) / (k + sum(p[k:])) for k in range(1, len(p) + 1)]
        wanted.append(1 + scores.index(max(scores)) if scores else 0)
    assert rule.sizes(logits, subsets).tolist() == wanted


def test_platt_scaling_recovers_slope_and_shift():
    logits, subsets = draw(4000)
    rule = ExpectedJaccard.fit(logits / 3 + 1, subsets)
    assert (rule.slope, rule.shift) == pytest.approx((3.0, -3.0), abs=0.15)


def test_platt_scaling_with_perfect_separation():
    subsets = Sets.from_list([torch.tensor([True, False])] * 10)
    rule = ExpectedJaccard.fit(torch.tensor([50.0, -50.0] * 10), subsets)
    assert rule.sizes(torch.tensor([50.0, -50.0]), subsets[:1]).tolist() == [1]


def test_calibrate_returns_the_best_rule():
    logits, subsets = draw()
    rule, scores = calibrate(logits, subsets)
    assert set(scores) == set(SIZE_RULES) - {"stop"}
    assert score(rule, logits, subsets) == pytest.approx(max(scores.values()))


def test_rules_are_compared_with_the_smallest_size_of_prediction():
    """Sizes are raised to the smallest one in fitting, so a threshold may leave sets without items."""
    # One item of each set is chosen. Its logit is high in the first half only; elsewhere all logits are low.
    sets = [[3.0, -4.0, -5.0]] * 10 + [[-3.0, -4.0, -5.0]] * 10
    subsets = Sets.from_list([torch.tensor([True, False, False])] * 20)
    logits = torch.tensor(sets).flatten()
    sizes = [Threshold(0.0).sizes_from(min_size, logits, subsets).tolist() for min_size in (0, 1, 9)]
    assert sizes == [[1] * 10 + [0] * 10, [1] * 20, [3] * 20]
    best = max(
        float(jaccard(pick_top(logits, subsets, Threshold(cut).sizes_from(1, logits, subsets)), subsets).mean())
        for cut in (-6.0, -4.5, -3.5, 0.0)
    )
    threshold = Threshold.fit(logits, subsets, 1)
    picked = pick_top(logits, subsets, threshold.sizes_from(1, logits, subsets))
    assert best == 1 == float(jaccard(picked, subsets).mean())
    _, scores = calibrate(logits, subsets, 1)
    assert scores["threshold"] == 1
    noisy, truth = draw()
    nonempty = truth.with_values(truth.values | (segment_rank(noisy, truth) == 0))
    rule, scores = calibrate(noisy, nonempty, 1)
    picked = pick_top(noisy, nonempty, rule.sizes_from(1, noisy, nonempty))
    assert float(jaccard(picked, nonempty).mean()) == pytest.approx(max(scores.values()))
    assert scores["threshold"] > calibrate(noisy, nonempty)[1]["threshold"]


@pytest.mark.parametrize("cut", ["0; import os", float("nan"), float("inf")])
def test_an_unknown_rule_raises(cut):
    with pytest.raises(FileFormatError, match="not one of"):
        rule_from_json({"name": "threshold", "cut": cut})

"""Choices whose gains are drawn towards those at the start, and how the weight of the start is chosen."""

import copy

import pytest
import torch

import setgrad
from setgrad import datasets
from setgrad.selector import Budget, SizeRange, SubsetSelector
from setgrad.selector._start_weight import START_WEIGHTS, best_start_weight, towards_start
from setgrad.selector.metrics import jaccard
from setgrad.sets import Sets, subset_sizes
from tests.models import rewrite_config
from tests.selector.conftest import TINY, make_choices

WEIGHTS = pytest.mark.parametrize("weight", START_WEIGHTS)


@pytest.fixture(scope="module")
def sets():
    return make_choices(40, seed=7).sets


def weighted(selector, weight):
    other = copy.deepcopy(selector)
    other.start_weight_ = weight
    return other


def chosen_by_hand(selector, items, size, weight, start=(), out=()):
    """Return the items that join one after the other, by gains in double precision."""
    (items,) = sets = Sets.from_list([items])
    chosen = set(start)

    def gains():
        mask = torch.tensor([number in chosen for number in range(len(items))])
        return selector.gains(sets, Sets.from_list([mask])).values

    first = gains()
    while len(chosen) < size:
        mixed = (1 - weight) * gains() + weight * first
        left = [number for number in range(len(items)) if number not in chosen and number not in out]
        if not left:
            break
        chosen.add(max(left, key=lambda number: float(mixed[number])))
    return chosen


def as_numbers(picks):
    return [set(mask.nonzero()[:, 0].tolist()) for mask in picks]


@WEIGHTS
def test_choices_are_those_of_a_loop(conditional, sets, weight):
    selector = weighted(conditional, weight)
    given = [[0] if number % 2 else [] for number in range(len(sets))]
    out = [[1] if number % 3 else [] for number in range(len(sets))]
    nothing, known = selector.predict(sets, size=3), selector.predict(sets, size=3, given=given, excluded=out)
    for number, items in enumerate(sets):
        assert as_numbers(nothing)[number] == chosen_by_hand(conditional, items, 3, weight)
        by_hand = chosen_by_hand(conditional, items, 3, weight, given[number], out[number])
        assert as_numbers(known)[number] == by_hand


def test_the_start_alone_is_the_order_of_the_logits(conditional, sets):
    logits = conditional.decision_function(sets)
    picks = weighted(conditional, 1.0).predict(sets, size=2)
    for scores, mask in zip(logits, picks, strict=True):
        assert mask.sum() == 2 and scores[mask].min() > scores[~mask].max()


@WEIGHTS
def test_values_and_gains_are_of_one_function(conditional, sets, weight):
    one = sets[:1]
    bound = conditional.function_.bind(one)
    total = one.layout.total
    first = bound.gains(torch.zeros(1, total, dtype=torch.bool))[0]
    function = towards_start(bound, first, weight)
    masks = torch.tensor([[bool(n >> i & 1) for i in range(total)] for n in range(2**total)])
    values, gains = function.value(masks), function.gains(masks)
    for item in range(total):
        with_item, without = masks.clone(), masks.clone()
        with_item[:, item], without[:, item] = True, False
        assert torch.allclose(function.value(with_item) - function.value(without), gains[:, item, None], atol=1e-5)
    assert torch.allclose(values[1, 0] - values[0, 0], first[0], atol=1e-5)


@WEIGHTS
@pytest.mark.parametrize("rule", ["own", "size"])
def test_choices_do_not_depend_on_batch_order_or_precision(stopping, sets, monkeypatch, weight, rule):
    selector = weighted(stopping, weight)
    asked = {"size": 2} if rule == "size" else {}
    together = selector.predict(sets, **asked)
    assert [mask.tolist() for mask in together] == [
        selector.predict(sets[number : number + 1], **asked)[0].tolist() for number in range(len(sets))
    ]
    monkeypatch.setattr("setgrad.selector._quick_choice.MARGIN", 1e9)
    assert torch.equal(selector.predict(sets, **asked).values, together.values)


@WEIGHTS
def test_a_smaller_subset_is_the_beginning_of_a_larger_one_in_large_sets_too(conditional, weight):
    selector = weighted(conditional, weight)
    large = Sets.from_list([torch.randn(2100, 2, generator=torch.Generator().manual_seed(0))])
    few, many = (selector.predict(large, size=size) for size in (3, 40))
    assert few.values.sum() == 3 and many.values.sum() == 40 and bool(many.values[few.values].all())


@WEIGHTS
def test_sets_in_chunks_are_chosen_from_as_whole_sets(choices, weight):
    options = {**TINY, "phi": "umbc", "max_epochs": 2}
    in_chunks = weighted(SubsetSelector(**options, chunk_size=16).fit(*choices), weight)
    whole = weighted(SubsetSelector(**options).fit(*choices), weight)
    large = Sets.from_list([torch.randn(60, 2, generator=torch.Generator().manual_seed(0))])
    for asked in ({"size": 5}, {"size": 5, "given": [[0, 50]]}):
        assert torch.equal(in_chunks.predict(large, **asked).values, whole.predict(large, **asked).values)


@WEIGHTS
def test_a_search_is_on_the_function_itself(conditional, sets, weight):
    selector = weighted(conditional, weight)
    for search in ("greedy", "local", "completion"):
        found, usual = (x.predict(sets, size=2, search=search) for x in (selector, weighted(conditional, 0.0)))
        assert torch.equal(found.values, usual.values)


@WEIGHTS
def test_a_constraint_that_excludes_nothing_changes_nothing(stopping, sets, weight):
    selector = weighted(stopping, weight)
    loose = [SizeRange(0, 10), Budget(sets.with_values(torch.ones(sets.layout.total)), 100)]
    assert torch.equal(selector.predict(sets, constraint=loose).values, selector.predict(sets).values)
    limited = selector.predict(sets, constraint=SizeRange(0, 1))
    assert int(subset_sizes(limited).max()) == 1


def test_the_start_alone_under_a_constraint_is_the_best_sum_of_logits(conditional, sets):
    selector = weighted(conditional, 1.0)
    prices = sets.with_values(torch.rand(sets.layout.total, generator=torch.Generator().manual_seed(1)) + 0.1)
    with pytest.warns(RuntimeWarning, match="no allowed subset"):
        picks = selector.predict(sets, size=2, constraint=Budget(prices, 1.2), on_failure="skip")
    for mask, scores, price in zip(picks, conditional.decision_function(sets), prices, strict=True):
        pairs = torch.combinations(torch.arange(len(scores)), 2)
        allowed = pairs[price[pairs].sum(1) <= 1.2]
        if len(allowed):
            assert scores[mask].sum() == pytest.approx(float(scores[allowed].sum(1).max()), rel=1e-4)
        else:
            assert not mask.any()


def test_the_weight_is_the_best_one_on_the_validation_sets(choices):
    """In clusters all depends on the items so far; of items above the mean of their set none does."""
    clusters = datasets.load_task("clusters", n_train=60, n_validation=60, n_test=1, random_state=0)
    found = set()
    for train, validation in ((choices, make_choices(60, seed=3)), (clusters.train, clusters.validation)):
        options = {**TINY, "max_epochs": 2, "learning_rate": 1e-2}
        selector = SubsetSelector(**options).fit(*train, validation=validation)
        sizes = subset_sizes(validation.subsets)
        picks = [weighted(selector, weight).predict(validation.sets, size=sizes) for weight in START_WEIGHTS]
        scores = torch.stack([jaccard(x, validation.subsets) for x in picks], 1)
        assert selector.start_weight_ == best_start_weight(scores)
        found.add(selector.start_weight_)
        name = max(selector.size_scores_, key=selector.size_scores_.__getitem__)
        assert selector.score(*validation) == pytest.approx(selector.size_scores_[name], abs=0.01)
    assert found == {0.0, 1.0}


def test_few_validation_sets_do_not_tell():
    scores = torch.tensor([[0.0, 1.0, 0.5]])
    assert best_start_weight(scores.repeat(29, 1)) == 0.0
    assert best_start_weight(scores.repeat(30, 1)) == 0.5
    # Better on average, by less than its standard error.
    unclear = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.1, 1.0]])
    assert best_start_weight(unclear.repeat(20, 1)) == 0.0


def test_the_weight_is_saved_and_models_without_it_choose_by_f_alone(conditional, sets, tmp_path):
    selector = weighted(conditional, 0.5)
    selector.save(tmp_path / "model")
    loaded = setgrad.load(tmp_path / "model", device="cpu")
    assert loaded.start_weight_ == 0.5
    assert torch.equal(loaded.predict(sets, size=2).values, selector.predict(sets, size=2).values)
    rewrite_config(tmp_path / "model", lambda config: config.pop("start_weight"))
    assert setgrad.load(tmp_path / "model", device="cpu").start_weight_ == 0.0

"""The method "conditional": what it learns, with every function and phi; values and gains; choices on F."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import setgrad
from setgrad.datasets import clusters
from setgrad.errors import NotFittedError, OptionError, ShapeError
from setgrad.inference import PartialCrossEntropy
from setgrad.selector import Budget, SizeRange, SubsetSelector, _fit, jaccard
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._choice_gradient import GRADIENTS
from setgrad.selector._constrained_choice import find_levels
from setgrad.selector._defaults import (
    default_batch_size,
    default_epochs,
    default_hidden,
    default_learning_rate,
    default_pairs,
    default_patience,
    default_relation,
    default_samples,
)
from setgrad.selector._options import SelectorOptions
from setgrad.selector._partial_validation import validate_completion
from setgrad.selector._tables import FUNCTIONS, PARTIAL_LOSSES
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.selector.metrics import pick_top
from setgrad.selector.sizes import SIZE_RULES, LinearSize, StopBelow
from setgrad.sets import Choices, Sets, subset_sizes
from tests.selector.conftest import TINY, first_member, make_choices
from tests.selector.test_constraints import LEARN, choices_within_budget

CONDITIONAL = {**TINY, "method": "conditional"}


def fit(data: Any, arguments: dict[str, Any] | None = None, **options: Any) -> SubsetSelector:
    return SubsetSelector(**{**CONDITIONAL, **options}).fit(*data, **(arguments or {}))


# ---- learning


@pytest.fixture(scope="module")
def task():
    return clusters(n_train=200, n_validation=60, n_test=100)


@pytest.fixture(scope="module")
def of_clusters(task):
    return fit(task.train, {"validation": task.validation}, max_epochs=15, learning_rate=1e-2)


def test_one_given_item_tells_the_others(of_clusters, task):
    """Without it nobody can expect more than 1/3; the standard error of a mean over 100 sets is at most 0.05."""
    given = [mask.nonzero()[:1, 0].tolist() for mask in task.test.subsets]
    assert of_clusters.score(*task.test, given=given) > 0.95
    assert of_clusters.score(*task.test) < 1 / 3 + 0.15
    # Items of another cluster become unlikely, those of the same one likely.
    p = of_clusters.predict_proba(task.test.sets, given=given).values
    rest = torch.cat([torch.arange(len(m)) != g[0] for m, g in zip(task.test.subsets, given, strict=True)])
    chosen = task.test.subsets.values
    # Training stops as soon as the order is right, so the probabilities need not be sharp.
    assert float(p[rest & chosen].mean()) > float(p[rest & ~chosen].mean()) + 0.3


def test_choices_are_whole_clusters(of_clusters, task):
    """Whichever cluster it is: items chosen one by one belong together, where the best single items do not."""

    def clusters_of(items):
        # Items of one cluster are much closer to each other than to others.
        return (torch.cdist(items, items) < 1.5).float().argmax(1)

    def share_together(picks):
        pairs = zip(task.test.sets, picks, strict=True)
        return np.mean([len(set(clusters_of(items)[mask].tolist())) == 1 for items, mask in pairs])

    sizes = subset_sizes(task.test.subsets).tolist()
    logits = of_clusters.decision_function(task.test.sets).values
    by_score = share_together(pick_top(logits, task.test.sets, np.array(sizes)))
    for search in (None, "completion"):
        picks = of_clusters.predict(task.test.sets, size=sizes, search=search)
        assert share_together(picks) > max(0.9, by_score + 0.1)


def test_a_rule_that_depends_on_the_set_is_learned(conditional):
    new = make_choices(80, seed=1)
    assert conditional.score(*new) > 0.9 and conditional.score_true_size(*new) > 0.9


@pytest.mark.parametrize("loss", PARTIAL_LOSSES)
def test_every_loss_learns(loss):
    selector = fit(make_choices(150), loss=loss, max_epochs=30, learning_rate=1e-2)
    assert selector.score_true_size(*make_choices(80, seed=1)) > 0.8


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("phi", ["context", "umbc", "mlp", "paper", "mlp+context", "module"])
def test_every_function_and_phi(choices, function, phi, seeded, tmp_path):
    """Trained, saved and loaded with the same results, in the dtype of the sets."""
    module = None
    if phi == "module":
        with seeded(0):
            module = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    selector = fit(choices, function=function, phi=phi if module is None else module, max_epochs=2)
    selector.save(tmp_path / "model")
    loaded = setgrad.load(tmp_path / "model", phi=module, device="cpu")
    sets = make_choices(10, seed=4).sets
    wide = sets.to(torch.float64)
    assert selector.predict_proba(sets).dtype == torch.float32
    assert selector.predict_proba(wide).dtype == selector.gains(wide, [[]] * 10).dtype == torch.float64
    for call in (
        lambda s: s.predict_proba(sets).values,
        lambda s: s.predict(sets, given=[[0]] * 10).values,
        lambda s: s.value(sets, [[0, 1]] * 10),
        lambda s: s.sample(sets, 3)[2].values,
    ):
        assert torch.equal(call(selector), call(loaded))


def test_all_weights_are_trained(choices):
    start, later = (fit(choices, max_epochs=3, learning_rate=rate, pairs=True) for rate in (1e-12, 1e-2))
    after = dict(later.model_.named_parameters())
    assert "members.0.pairs.weights" in after
    for name, before in start.model_.named_parameters():
        assert not torch.equal(before, after[name]), name


@pytest.mark.parametrize("function", FUNCTIONS)
def test_with_few_sets_f_starts_as_its_pair_term(choices, function, monkeypatch):
    """And learns to differ from it; with many sets it starts with the weights of the network."""
    parts = [[0, 1, 2]] * len(choices.sets)

    def distance(learning_rate: float) -> float:
        selector = fit(choices, function=function, pairs=True, max_epochs=5, learning_rate=learning_rate)
        items = selector.model_.prepare(choices.sets)
        masks = torch.cat([torch.arange(len(x)) < 3 for x in items])[None]
        pairs = first_member(selector).pairs.value(items, masks)[0]
        return float((selector.value(choices.sets, parts) - pairs).detach().abs().max())

    assert distance(1e-12) < 1e-5
    assert distance(1e-2) > 1e-3
    monkeypatch.setattr(_fit, "FEW_SETS", 0)
    assert distance(1e-12) > 1e-3


def test_pairs_weigh_features_by_their_spread(tmp_path):
    """Within a factor of two of the median, so that a column in a small unit does not decide alone."""
    spread = torch.tensor([100.0, 1.0, 1.25, 0.001, 0.8])
    items = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    items = (items - items.mean(0)) / items.std(0, correction=0) * spread
    choices = list(items.reshape(12, 5, 5)), [[0, 1]] * 12
    selector = fit(choices, {"validation": choices}, max_epochs=1, pairs=True)
    scale = first_member(selector).pairs.scale
    torch.testing.assert_close(scale[:5], torch.tensor([2.0, 1.0, 1.25, 0.5, 0.8]), rtol=1e-4, atol=0)
    # Features relative to the set are not compared.
    assert not scale[5:].any()
    selector.save(tmp_path / "model")
    loaded = setgrad.load(tmp_path / "model", device="cpu")
    assert torch.equal(first_member(loaded).pairs.scale, scale)


def test_sets_of_weight_0_are_not_learned_from():
    choices = make_choices(200)
    wrong = torch.arange(200) % 2 == 0
    flipped = choices.subsets.values ^ wrong[choices.sets.layout.ids]
    data, weights = (choices.sets, choices.sets.with_values(flipped)), (~wrong).float()
    options: dict[str, Any] = {"max_epochs": 25, "learning_rate": 1e-2}
    validation, new = make_choices(40, seed=1), make_choices(80, seed=2)
    with_weights = fit(data, {"sample_weight": weights.numpy(), "validation": validation}, **options)
    assert with_weights.score_true_size(*new) > 0.85
    by_item = fit(data, {"sample_weight": weights[choices.sets.layout.ids], "validation": validation}, **options)
    assert torch.equal(by_item.predict_proba(new.sets).values, with_weights.predict_proba(new.sets).values)
    opposite = fit(data, {"sample_weight": 1 - weights.numpy(), "validation": validation}, **options)
    assert opposite.score_true_size(*new) < 0.5


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_training_under_a_constraint(gradient):
    (choices, budget), (new, other) = choices_within_budget(150, 0), choices_within_budget(60, 1)
    options = {**LEARN, "method": "conditional"}
    selector = SubsetSelector(**options).fit(*choices, constraint=budget, gradient=gradient)
    picks = selector.predict(new.sets, constraint=other)
    assert bool(BatchConstraint.of(other, new.sets).allows(picks.values[None], new.sets).all())
    # Fitted without the budget it has 0.58: a good item that was too expensive is learned as a bad one.
    assert selector.score(*new, constraint=other) > 0.85
    again = SubsetSelector(**{**options, "max_epochs": 2}).fit(*choices, constraint=budget, gradient=gradient)
    assert [row["loss"] for row in again.history_] == [row["loss"] for row in selector.history_[:2]]


@pytest.mark.filterwarnings("ignore:nothing was chosen")
def test_a_fit_without_any_chosen_item():
    sets = make_choices(10).sets
    empty = Choices(sets, sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool)))
    selector = fit(empty, {"validation": empty}, max_epochs=40, learning_rate=0.01)
    assert selector.score(*empty) == 1.0
    assert float(selector.predict_proba(sets).values.max()) < 0.5
    assert not any(draw.values.any() for draw in selector.sample(sets, 5))


@pytest.mark.filterwarnings("ignore:everything was chosen")
def test_a_fit_of_whole_sets_and_sets_without_items():
    sets = Sets.cat([make_choices(10).sets, Sets.from_list([torch.zeros(0, 2)] * 3)])
    whole = Choices(sets, sets.with_values(torch.ones(sets.layout.total, dtype=torch.bool)))
    selector = fit(whole, {"validation": whole}, max_epochs=40, learning_rate=0.01)
    assert selector.score(*whole) == 1.0
    assert all(draw.values.all() for draw in selector.sample(sets, 5))


# ---- validation and sizes


def test_the_validation_score_starts_from_nothing_and_from_one_item(choices):
    """From the only item of a subset the choice is right, so the score is the mean of 1 and that from nothing."""
    model, sets = fit(choices, max_epochs=1).model_, make_choices(30, seed=2).sets
    one = Choices(sets, sets.with_values(sets.layout.positions == 1))
    score, _ = validate_completion(model, one, subset_sizes(one.subsets), PartialCrossEntropy(), 0)
    with torch.no_grad():
        path = choose_item_by_item(model.bind(sets), sizes=torch.ones(30, dtype=torch.long))
    right = [int(part[1]) for part in path.subsets]
    assert 0 < sum(right) < 30
    assert score == pytest.approx((1 + np.mean(right)) / 2)
    assert score == validate_completion(model, one, subset_sizes(one.subsets), PartialCrossEntropy(), 0)[0]


def test_the_validation_loss_is_that_of_the_gains(choices):
    """Without chosen items all parts are empty, so it is the cross-entropy of the logits."""
    model, sets = fit(choices, max_epochs=1).model_, make_choices(30, seed=2).sets
    none = Choices(sets, sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool)))
    score, loss = validate_completion(model, none, subset_sizes(none.subsets), PartialCrossEntropy(), 0)
    with torch.no_grad():
        gains = sets.with_values(model.bind(sets).gains(none.subsets.values[None])[0])
    expected = [np.mean([math.log1p(math.exp(x)) for x in part.tolist()]) for part in gains]
    assert score == 1.0 and loss == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_scores_of_size_rules_are_those_of_predictions(choices, function):
    validation = make_choices(30, seed=3)
    selector = fit(choices, {"validation": validation}, max_epochs=4, function=function)
    assert set(selector.size_scores_) == {"stop", "linear-size", "expected-jaccard"}
    name = next(name for name, kind in SIZE_RULES.items() if isinstance(selector.size_rule_, kind))
    assert selector.score(*validation) == pytest.approx(selector.size_scores_[name], abs=0.01)


def test_completions_have_a_size_rule_of_their_own(tmp_path):
    """One of two items was chosen at random. From nothing, both are the best choice; given the item, it alone is."""
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_lengths(torch.randn(120, 2, generator=generator), [2] * 60)
    subsets = [[int(torch.randint(2, (1,), generator=generator))] for _ in range(60)]
    selector = fit((sets, subsets), {"validation": (sets, subsets)}, max_epochs=2)
    assert selector.score(sets, subsets, given=subsets) == 1.0
    selector.size_rule_ = LinearSize(2.0, 0.0, 0.0)
    for rule in (LinearSize(1.0, 0.0, 0.0), StopBelow(1e3), StopBelow(-1e3)):
        selector.completion_rule_ = rule
        # A set without given items follows the rule for nothing, also beside others.
        given = [chosen if number % 2 else [] for number, chosen in enumerate(subsets)]
        sizes = subset_sizes(selector.predict(sets, given=given))
        assert sizes[::2].tolist() == [2] * 30
        begun = 2 if rule == StopBelow(-1e3) else 1
        assert sizes[1::2].tolist() == [begun] * 30
        loose = selector.predict(sets, given=given, constraint=SizeRange(0, 2))
        assert subset_sizes(loose).tolist() == sizes.tolist()
        selector.save(tmp_path / "model")
        loaded = setgrad.load(tmp_path / "model", device="cpu")
        assert loaded.completion_rule_ == rule


# ---- values, gains and choices on F


def random_subsets(sets: Sets, seed: int = 0) -> Sets:
    return sets.with_values(torch.rand(sets.layout.total, generator=torch.Generator().manual_seed(seed)) < 0.4)


def new_sets() -> Sets:
    return Sets.cat([make_choices(8, seed=6).sets, Sets.from_list([torch.zeros(0, 2)])]).to(torch.float64)


def test_values_and_gains_are_those_of_the_function(quick):
    sets = new_sets()
    subsets = random_subsets(sets)
    value, gains = quick.value(sets, subsets), quick.gains(sets, subsets)
    assert value.shape == (9,) and value.dtype == torch.float64
    torch.testing.assert_close(value, quick.function_.value(sets, subsets)[0])
    torch.testing.assert_close(gains.values, quick.function_.gains(sets, subsets)[0])
    lists = [mask.nonzero()[:, 0].tolist() for mask in subsets]
    assert torch.equal(quick.value([x.numpy() for x in sets], lists), value)
    for number in range(9):
        one = slice(number, number + 1)
        assert torch.allclose(quick.value(sets[one], subsets[one]), value[one], rtol=0, atol=1e-12)
        torch.testing.assert_close(quick.gains(sets[one], subsets[one])[0], gains[number], rtol=0, atol=1e-12)


def test_a_gain_is_the_difference_of_two_values(quick):
    sets = new_sets()
    subsets = random_subsets(sets)
    gains = quick.gains(sets, subsets)
    for position in range(7):
        at = sets.layout.positions == position
        both = [quick.value(sets, sets.with_values(mask)) for mask in (subsets.values | at, subsets.values & ~at)]
        expected = (both[0] - both[1])[sets.layout.ids][at]
        torch.testing.assert_close(gains.values[at], expected, rtol=0, atol=1e-10)


def test_gains_at_the_empty_subset_are_the_logits(conditional):
    sets = new_sets()
    empty = sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool))
    gains = conditional.gains(sets, empty)
    torch.testing.assert_close(gains.values, conditional.decision_function(sets).values)
    torch.testing.assert_close(torch.sigmoid(gains.values), conditional.predict_proba(sets).values)
    assert conditional.value([], []).tolist() == [] and conditional.gains([], []).values.tolist() == []


def test_wrong_subsets_raise(conditional):
    sets = new_sets()
    for call in (conditional.value, conditional.gains):
        with pytest.raises(ShapeError, match="1 subsets were given for 9 sets"):
            call(sets, [[0]])
    with pytest.raises(NotFittedError):
        SubsetSelector().value(sets, [[]] * 9)
    with pytest.raises(NotFittedError):
        SubsetSelector().gains(sets, [[]] * 9)


@pytest.mark.parametrize("options", [{}, {"size": 3}, {"size": [0, 1, 2, 3, 9, 1, 2, 3, 4]}], ids=str)
def test_the_choice_is_greedy_search(stopping, options):
    sets = new_sets()
    plain, greedy = (stopping.predict(sets, search=search, **options) for search in (None, "greedy"))
    assert torch.equal(plain.values, greedy.values)
    # By gains at each step, set by set.
    for number, items in enumerate(sets):
        size = options.get("size")
        wanted = size[number] if isinstance(size, list) else size
        chosen: list[int] = []
        while len(chosen) < len(items):
            gains = stopping.gains([items], [chosen])[0]
            gains[chosen] = -math.inf
            is_below = float(gains.max()) <= 0.2 and len(chosen) >= stopping.min_size_
            if len(chosen) == wanted or (wanted is None and is_below):
                break
            chosen.append(int(gains.argmax()))
        assert plain[number].nonzero()[:, 0].tolist() == sorted(chosen)


def test_a_threshold_reads_single_probabilities(conditional):
    sets = new_sets()
    p = conditional.predict_proba(sets).values
    assert torch.equal(conditional.predict(sets, threshold=0.3).values, p > 0.3)


def test_local_search_keeps_the_size_and_raises_f(conditional):
    sets = new_sets()
    plain, local = conditional.predict(sets), conditional.predict(sets, search="local")
    assert subset_sizes(plain).tolist() == subset_sizes(local).tolist()
    assert bool((conditional.value(sets, local) >= conditional.value(sets, plain) - 1e-9).all())


def test_a_search_under_a_constraint_raises_f(choices, monkeypatch):
    """From the best allowed subset by score to one of larger F; with a size, the price of an item is no matter."""
    conditional = fit(choices, max_epochs=2)
    sets = make_choices(40, seed=6).sets.to(torch.float64)
    limit = Budget([[1 + k % 3 for k in range(len(x))] for x in sets], budget=3)
    allowed = BatchConstraint.of(limit, sets)
    found = conditional.predict(sets, constraint=limit, size=2)
    monkeypatch.setattr("setgrad.selector._prediction.constrained_search", lambda bound, first, solve: first)
    start = conditional.predict(sets, constraint=limit, size=2)
    assert bool(allowed.allows(torch.stack([start.values, found.values]), sets).all())
    before, after = conditional.value(sets, start), conditional.value(sets, found)
    assert bool((after >= before - 1e-9).all()) and bool((after > before + 1e-6).any())
    # No result is better than the best of all allowed pairs, and more of them are that than before the search.
    is_best = np.zeros((2, len(sets)), dtype=bool)
    for number, items in enumerate(sets):
        pairs = list(itertools.combinations(range(len(items)), 2))
        fitting = [pair for pair in pairs if sum(1 + k % 3 for k in pair) <= 3]
        values = conditional.value([items] * len(fitting), [list(pair) for pair in fitting])
        assert float(after[number]) <= float(values.max()) + 1e-9
        is_best[:, number] = [float(result[number]) >= float(values.max()) - 1e-9 for result in (before, after)]
    assert is_best[1].sum() > is_best[0].sum()


def test_every_item_of_that_search_costs_the_cut(choices, monkeypatch):
    """So the search takes what the rule for sizes takes, also items with which F is a little smaller."""
    cut = -3.0
    selector, sets = fit(choices, max_epochs=2), make_choices(40, seed=6).sets.to(torch.float64)
    selector.size_rule_, selector.min_size_ = StopBelow(cut), 0
    limit = [Budget([[1 + k % 3 for k in range(len(x))] for x in sets], budget=6), SizeRange(1, 5)]
    found = selector.predict(sets, constraint=limit)
    monkeypatch.setattr("setgrad.selector._prediction.constrained_search", lambda bound, first, solve: first)
    start = selector.predict(sets, constraint=limit)
    assert not torch.equal(start.values, found.values)

    def worth(picks):
        return selector.value(sets, picks) - cut * torch.as_tensor(subset_sizes(picks))

    assert bool((worth(found) >= worth(start) - 1e-9).all())
    assert bool((worth(found) > worth(start) + 1e-6).any())


def test_levels_of_paths_do_not_depend_on_the_batch(conditional):
    """Under a constraint the cut is half-way between chosen and other items of the path."""
    sets = make_choices(30, seed=6).sets.to(torch.float64)
    sizes = [1 + number % 4 for number in range(30)]
    costs = [[1 + k % 3 for k in range(len(x))] for x in sets]
    limits = [SizeRange(0, 3), Budget(costs, budget=4)]
    together = conditional.predict(sets, constraint=limits)
    path = choose_item_by_item(conditional.function_.bind(sets), sizes=torch.tensor(sizes))
    levels = find_levels(path.scores, path.subsets)
    for number in range(30):
        one = sets[number : number + 1]
        alone = conditional.predict(one, constraint=[SizeRange(0, 3), Budget([costs[number]], budget=4)])
        assert torch.equal(alone.values, together[number])
        single = choose_item_by_item(conditional.function_.bind(one), sizes=torch.tensor(sizes[number : number + 1]))
        torch.testing.assert_close(find_levels(single.scores, single.subsets), levels[number : number + 1])


# ---- options


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"method": "conditional", "loss": "negatives"},
        r"method='conditional' has no loss='negatives'; use loss='all' or",
    ),
    ({"method": "unrolled", "loss": "list"}, "method='unrolled' has no loss='list'; use loss='all' or 'negatives'"),
    ({"method": "direct", "loss": "all+list"}, "method='direct' has no loss="),
    ({"method": "conditional", "steps": 2}, "parts of mean field, which method='conditional' does not use"),
    ({"method": "conditional", "estimator": "exact"}, "parts of mean field"),
    ({"method": "unrolled", "half": True}, "half is a part of method='conditional'"),
    ({"method": "conditional", "half": True, "samples": 2}, "use samples=3 or more"),
    ({"method": "conditional", "scale": 2.0}, "method='conditional' has no scale"),
    ({"method": "conditional", "scale": "l2"}, "method='conditional' has no scale"),
    ({"method": "conditional", "tol": 1e-3}, "parts of method='implicit'"),
    ({"method": "direct", "pairs": True}, "scores every item by itself; leave out pairs"),
    ({"pairs": 1}, "pairs must be True or False"),
    ({"method": "conditional", "function": "inset", "relation": 4}, "has no relation"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_options_that_do_not_go_together_raise(options, message):
    with pytest.raises(OptionError, match=message):
        SelectorOptions(**options)


def test_options_in_use(choices):
    options = fit(choices, max_epochs=1).options_
    assert (options.samples, options.loss, options.pairs, options.relation) == (4, "all+list", True, 64)
    assert SelectorOptions(method="conditional", scale="none").resolved_scale is None
    unrolled = SelectorOptions(method="unrolled")
    assert unrolled.resolved_samples == 5 and unrolled.resolved_loss == "all"
    assert SelectorOptions().method == "conditional"
    pairs = [default_pairs(SelectorOptions(), empty_sets(9999, width)) for width in (20, 4095, 4096)]
    assert pairs == [True, True, False]
    assert not default_pairs(SelectorOptions(method="conditional", phi="mlp"), empty_sets(10))
    assert not default_pairs(SelectorOptions(method="unrolled"), empty_sets(10))
    images = SelectorOptions(phi="pixel-cnn+context")
    assert [default_pairs(images, empty_sets(count, 784)) for count in (3999, 4000)] == [True, False]
    assert [default_relation(images, count) for count in (3999, 4000)] == [64, 0]
    assert default_relation(SelectorOptions(method="unrolled", phi="pixel-cnn+context"), 10) == 0
    ranks = {
        method: [default_relation(SelectorOptions(method=method), count) for count in (799, 800)]
        for method in ("conditional", "unrolled")
    }
    assert ranks == {"conditional": [64, 64], "unrolled": [64, 0]}
    batches = {
        method: [default_batch_size(SelectorOptions(method=method), empty_sets(count)) for count in (9999, 10000)]
        for method in ("conditional", "unrolled")
    }
    assert batches == {"conditional": [32, 64], "unrolled": [64, 64]}
    samples = [default_samples(SelectorOptions(), empty_sets(count)) for count in (1999, 2000)]
    assert samples == [4, 2]
    assert [default_learning_rate(SelectorOptions(), empty_sets(count)) for count in (1999, 2000)] == [1e-3, 2e-3]
    assert default_learning_rate(SelectorOptions(method="unrolled"), empty_sets(2000)) == 1e-3
    assert default_learning_rate(SelectorOptions(), empty_sets(2000, 32)) == 1e-3
    assert [default_samples(SelectorOptions(), empty_sets(2000, width)) for width in (32, 4095, 4096)] == [4, 4, 8]
    assert default_samples(SelectorOptions(half=True), empty_sets(2000)) == 4
    assert default_samples(SelectorOptions(method="unrolled"), empty_sets(2000)) == 5
    assert [default_hidden(SelectorOptions(), empty_sets(1, d)) for d in (31, 32)] == [(256, 128), (512, 256)]
    assert default_hidden(SelectorOptions(method="direct"), empty_sets(1, 2)) == (512, 256)
    assert [default_patience(SelectorOptions(), steps) for steps in (2, 20, 30, 100)] == [30, 10, 7, 5]
    assert [default_patience(SelectorOptions(phi="pair"), steps) for steps in (2, 100)] == [30, 20]
    assert [default_epochs(SelectorOptions(phi=phi), 20) for phi in ("context", "pair+context")] == [100, 200]
    assert (options.batch_size, fit(choices, max_epochs=1, batch_size=8).options_.batch_size) == (32, 8)


def empty_sets(count, features=2):
    return Sets.from_lengths(torch.zeros(0, features), [0] * count)


def test_pairs_of_letters_raise():
    sets = Sets.from_lengths(
        torch.randint(0, 20, (20, 1100), generator=torch.Generator().manual_seed(0)).byte(), [5] * 4
    )
    with pytest.raises(OptionError, match="pairs compare numbers"):
        fit((sets, [[0]] * 4), phi="pair", pairs=True, max_epochs=1)


def test_a_start_without_the_term_for_pairs_raises(choices):
    first = fit(choices, max_epochs=1, pairs=False)
    with pytest.raises(OptionError, match="pairs is False there, True here"):
        fit(choices, {"start": first}, max_epochs=1, pairs=True)
    assert not fit(choices, {"start": first}, max_epochs=1).options_.pairs
    with pytest.raises(OptionError, match="method is conditional there, unrolled here"):
        SubsetSelector(**{**TINY, "method": "unrolled", "max_epochs": 1}).fit(*choices, start=first)


def test_score_is_that_of_predict(conditional):
    new = make_choices(20, seed=1)
    assert conditional.score(*new) == pytest.approx(float(jaccard(conditional.predict(new.sets), new.subsets).mean()))

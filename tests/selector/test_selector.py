"""The estimator: learning, prediction, reproducibility, independence of batch and order, scikit-learn's conventions."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

from setgrad.errors import DataError, NotFittedError, OptionError, ShapeError, TrainingError
from setgrad.inference import SampledNegatives
from setgrad.selector import PRESETS, SubsetSelector, jaccard
from setgrad.sets import Choices, Sets, Table
from tests.selector.conftest import TINY, first_member, make_choices


def test_a_rule_that_depends_on_the_set_is_learned(unrolled):
    new = make_choices(80, seed=1)
    assert unrolled.score(*new) > 0.9
    assert unrolled.score_true_size(*new) > 0.9
    assert unrolled.history_[-1]["loss"] < unrolled.history_[0]["loss"]
    assert unrolled.best_epoch_ <= len(unrolled.history_)


def test_score_is_the_mean_jaccard_of_predict(unrolled):
    new = make_choices(20, seed=1)
    picks = unrolled.predict(new.sets)
    by_hand = [
        len(a & b) / len(a | b) if a | b else 1.0
        for a, b in zip(_as_python(picks), _as_python(new.subsets), strict=True)
    ]
    assert unrolled.score(*new) == pytest.approx(np.mean(by_hand))
    assert jaccard(picks, new.subsets).tolist() == pytest.approx(by_hand)


def _as_python(subsets):
    return [set(np.flatnonzero(mask.numpy())) for mask in subsets]


def test_the_same_seed_gives_the_same_bits(choices):
    first, second = (SubsetSelector(**TINY).fit(*choices) for _ in range(2))
    assert torch.equal(first.predict_proba(choices.sets).values, second.predict_proba(choices.sets).values)
    assert [h["loss"] for h in first.history_] == [h["loss"] for h in second.history_]
    other = SubsetSelector(**{**TINY, "random_state": 1}).fit(*choices)
    assert not torch.equal(first.predict_proba(choices.sets).values, other.predict_proba(choices.sets).values)


def test_predictions_do_not_depend_on_the_batch(fitted):
    sets = Sets.cat([make_choices(25, seed=2).sets, Sets.from_list([torch.zeros(0, 2)])])
    together, picks = fitted.predict_proba(sets), fitted.predict(sets)
    backwards = fitted.predict_proba(sets[::-1])
    for number in range(len(sets)):
        alone = sets[number : number + 1]
        assert torch.equal(together[number], fitted.predict_proba(alone)[0])
        assert torch.equal(together[number], backwards[len(sets) - 1 - number])
        assert torch.equal(picks[number], fitted.predict(alone)[0])
        padded, mask = sets[number : number + 2].padded()
        assert torch.equal(together[number], fitted.predict_proba(Sets.from_padded(padded, mask))[0])


def test_predictions_do_not_depend_on_the_order_of_items(fitted):
    generator = torch.Generator().manual_seed(5)
    items = torch.randn(9, 2, generator=generator)
    # Identical items must get the same probability at every position.
    items[7] = items[2]
    order = torch.randperm(9, generator=generator)
    original, moved = fitted.predict_proba([items])[0], fitted.predict_proba([items[order]])[0]
    assert torch.equal(original[order], moved)
    assert original[7] == original[2]
    # Which of two identical items is chosen may depend on the position, but not the chosen values.
    picked, again = (items[fitted.predict([items])[0]], items[order][fitted.predict([items[order]])[0]])
    assert sorted(picked.tolist()) == sorted(again.tolist())


def test_half_precision_makes_no_ties(unrolled):
    items = torch.randn(60, 2, generator=torch.Generator().manual_seed(6)).bfloat16()
    assert unrolled.decision_function([items]).values.unique().numel() == items.unique(dim=0).shape[0]
    picked, again = unrolled.predict([items], size=20)[0], unrolled.predict([items.flip(0)], size=20)[0].flip(0)
    assert torch.equal(picked, again)


def test_results_have_the_dtype_of_the_sets(unrolled):
    x = make_choices(3, seed=4).sets
    assert unrolled.predict_proba(x).dtype == torch.float32
    assert unrolled.predict_proba(x.to(torch.float64)).dtype == torch.float64
    same = unrolled.predict_proba([a.double().numpy() for a in x])
    torch.testing.assert_close(same.values.float(), unrolled.predict_proba(x).values, rtol=0, atol=1e-7)


def test_predict_by_size_and_by_threshold(unrolled):
    sets = make_choices(10, seed=3).sets
    lengths = sets.lengths.tolist()
    assert [int(m.sum()) for m in unrolled.predict(sets, size=4)] == [min(4, n) for n in lengths]
    wanted = [i % 3 for i in range(10)]
    assert [int(m.sum()) for m in unrolled.predict(sets, size=wanted)] == wanted
    p = unrolled.predict_proba(sets)
    assert torch.equal(unrolled.predict(sets, threshold=0.7).values, p.values > 0.7)
    for number, mask in enumerate(unrolled.predict(sets, size=2)):
        assert p[number][mask].min() >= p[number][~mask].max()


def test_predict_with_scores_gives_the_same_result(fitted):
    sets = make_choices(10, seed=3).sets
    scores = fitted.decision_function(sets)
    assert torch.equal(fitted.predict(sets, scores=scores).values, fitted.predict(sets).values)
    torch.testing.assert_close(torch.sigmoid(scores.values), fitted.predict_proba(sets).values)
    with pytest.raises(ShapeError, match="other sets"):
        fitted.predict(sets, scores=scores[:5])
    with pytest.raises(ShapeError, match="other sets"):
        fitted.predict_proba(sets, scores=scores[:5])
    for wrong in ([1], scores.values, sets, scores.to(torch.bool)):
        with pytest.raises(ShapeError, match="result of decision_function"):
            fitted.predict(sets, scores=wrong)


def test_search_improves_f(fitted):
    sets = make_choices(12, seed=6).sets
    bound = fitted.function_.bind(sets)

    def value(picks):
        return bound.value(picks.values[None])[0]

    plain, greedy, local = (fitted.predict(sets, size=2, search=s) for s in (None, "greedy", "local"))
    assert greedy.layout.same_as(sets.layout)
    assert all(int(m.sum()) == 2 for picks in (greedy, local) for m in picks)
    assert bool((value(local) >= value(plain) - 1e-5).all())
    if fitted.method == "conditional":
        # Its choice is greedy search, to a size that the rule gives.
        assert torch.equal(fitted.predict(sets, search="greedy").values, fitted.predict(sets).values)
    else:
        free = fitted.predict(sets, search="greedy")
        gains = bound.gains(free.values[None])[0]
        # Greedy search stops when no item outside has a positive gain.
        assert bool((gains[~free.values] <= 1e-5).all())
    assert bool((value(fitted.predict(sets, search="local")) >= value(fitted.predict(sets)) - 1e-5).all())


def test_all_forms_of_input_give_the_same_result():
    choices = make_choices(20)
    lists = [x.numpy() for x in choices.sets]
    forms = [
        (choices.sets, choices.subsets),
        (lists, [m.numpy() for m in choices.subsets]),
        (lists, [np.flatnonzero(m.numpy()) for m in choices.subsets]),
        (choices.sets, choices.subsets.values),
    ]
    results = [SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*form).predict_proba(lists).values for form in forms]
    assert all(torch.equal(results[0], r) for r in results[1:])


def test_sample_weight(choices):
    options = {**TINY, "max_epochs": 2}
    plain = SubsetSelector(**options).fit(*choices)
    ones = SubsetSelector(**options).fit(*choices, sample_weight=np.ones(len(choices)))
    assert torch.equal(plain.predict_proba(choices.sets).values, ones.predict_proba(choices.sets).values)
    weights = np.linspace(0, 1, len(choices))
    by_set = SubsetSelector(**options).fit(*choices, sample_weight=weights)
    by_rows = torch.as_tensor(np.repeat(weights, choices.sets.layout.host_lengths).astype("f4"))
    by_item = SubsetSelector(**options).fit(*choices, sample_weight=by_rows)
    assert not torch.equal(plain.predict_proba(choices.sets).values, by_set.predict_proba(choices.sets).values)
    assert torch.equal(by_item.predict_proba(choices.sets).values, by_set.predict_proba(choices.sets).values)
    for form in (
        pandas.Series(weights, index=range(100, 160)),
        choices.sets.with_values(by_rows),
        weights[::-1].copy()[::-1],
    ):
        again = SubsetSelector(**options).fit(*choices, sample_weight=form)
        assert torch.equal(again.predict_proba(choices.sets).values, by_set.predict_proba(choices.sets).values)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e30, 1e300])
def test_only_ratios_of_sample_weights_count(choices, scale):
    options, weights = {**TINY, "max_epochs": 2}, np.linspace(0.5, 1, len(choices))
    plain, scaled = (
        SubsetSelector(**options).fit(*choices, sample_weight=factor * weights).predict_proba(choices.sets).values
        for factor in (1, scale)
    )
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-4)


def test_sample_weights_that_are_all_held_out_raise():
    """One of two sets is held out; which one depends on the seed."""
    choices = make_choices(2)
    errors = 0
    for number in range(2):
        weights = np.eye(2)[number]
        try:
            SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, sample_weight=weights)
        except DataError as error:
            assert "none is left to learn from" in str(error)
            errors += 1
        SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, sample_weight=weights, validation=choices)
    assert errors == 1


def test_extreme_features_raise(choices, unrolled):
    sets = choices.sets.to(torch.float64)
    far = sets.with_values(sets.values * torch.tensor([1.0, 1e200], dtype=torch.float64))
    with pytest.raises(DataError, match=r"feature 1 .*rescale"):
        SubsetSelector(**TINY).fit(far, choices.subsets)
    huge = sets.values.clone()
    huge[sets.layout.host_offsets[4], 0] = 1e308
    for predict in (unrolled.predict, unrolled.predict_proba, lambda far: unrolled.predict(far, search="greedy")):
        with pytest.raises(DataError, match="features of set 4 are so large"):
            predict(sets.with_values(huge))


def test_features_of_any_scale_and_constant_features():
    choices = make_choices(150)
    moved = choices.sets.with_values(
        torch.cat([choices.sets.values * 1e4 + 1e6, torch.full((choices.sets.layout.total, 1), 7.0)], 1)
    )
    scaled = SubsetSelector(**{**TINY, "max_epochs": 30, "learning_rate": 1e-2}).fit(moved, choices.subsets)
    assert scaled.score(moved, choices.subsets) > 0.85
    assert bool(scaled.predict_proba(moved).values.isfinite().all())


def test_a_module_as_phi(choices, seeded):
    with seeded(0):
        phi = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    before = copy.deepcopy(phi.state_dict())
    selector = SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 2}).fit(*choices)
    first = selector.predict_proba(choices.sets).values
    assert all(torch.equal(before[name], value) for name, value in phi.state_dict().items())
    assert torch.equal(first, selector.fit(*choices).predict_proba(choices.sets).values)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_running_statistics_of_a_phi_are_kept(choices, seeded, kind):
    with seeded(0):
        phi = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh()).to(kind)
    moved = choices.sets.with_values(choices.sets.values + 5)
    selector = SubsetSelector(**{**TINY, "phi": phi, "standardize": False, "max_epochs": 3}).fit(moved, choices.subsets)
    trained = first_member(selector).function.phi.module[1]
    assert trained.num_batches_tracked > 0
    assert not torch.equal(trained.running_mean, torch.zeros(8))
    assert phi[1].num_batches_tracked == 0
    assert phi.training


def test_features_with_a_small_spread_far_from_zero(choices):
    """For example times in seconds, which float32 rounds to minutes."""
    options = {**TINY, "max_epochs": 3, "method": "direct"}
    near = choices.sets.to(torch.float64)
    far = near.with_values(near.values + 1.7e9)
    a, b = (SubsetSelector(**options).fit(s, choices.subsets).predict_proba(s).values for s in (near, far))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


@pytest.mark.parametrize("scale", ["none", "l2", 3.0])
def test_negatives_are_sampled_with_a_scale_too(scale, monkeypatch):
    """The loss reads as many items outside the subset as inside, with and without a scale."""
    read = []
    loss = SampledNegatives.__call__

    def spy(self, logits, subsets, coordinates, weights):
        read.append((len(logits), 2 * int(subsets.values.sum())))
        return loss(self, logits, subsets, coordinates, weights)

    monkeypatch.setattr(SampledNegatives, "__call__", spy)
    sets = make_choices(10).sets
    options = {**TINY, "max_epochs": 1, "method": "unrolled", "loss": "negatives", "scale": scale}
    SubsetSelector(**options).fit(sets, [[0]] * 10)
    assert read
    assert all(items == wanted for items, wanted in read)


def test_diverging_training_raises(choices):
    huge = choices.sets.with_values(choices.sets.values * 1e30)
    with pytest.raises(TrainingError, match="training diverged"):
        SubsetSelector(**{**TINY, "standardize": False, "phi": "paper", "learning_rate": 1e9}).fit(
            huge, choices.subsets
        )


def test_induced_attention():
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_lengths(torch.randn(40, 3, 4, generator=generator), [8] * 5)
    subsets = [[0, 1]] * 5
    selector = SubsetSelector(**{**TINY, "max_epochs": 1, "attention": "induced"}).fit(sets, subsets)
    assert selector.model_.config.slots is not None
    assert [int(m.sum()) for m in selector.predict(sets, size=3)] == [3] * 5


def test_scikit_learn_conventions(choices):
    selector = SubsetSelector(**TINY, samples=3)
    copy = clone(selector)
    assert copy.get_params() == selector.get_params()
    assert copy.set_params(samples=7).samples == 7
    assert "samples=3" in repr(selector)
    with pytest.raises(OptionError, match="unknown option 'sampels'"):
        selector.set_params(sampels=3)
    with pytest.raises(NotFittedError, match="call fit"):
        selector.predict(choices.sets)
    lists, masks = choices.sets.to_list()[:24], choices.subsets.to_list()[:24]
    search = GridSearchCV(SubsetSelector(**{**TINY, "max_epochs": 1}), {"samples": [1, 2]}, cv=2, error_score="raise")
    assert search.fit(lists, masks).best_params_["samples"] in (1, 2)


def test_the_constructor_only_stores_the_options():
    selector = SubsetSelector(method="nonsense", dim=-1)
    assert (selector.method, selector.dim) == ("nonsense", -1)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_learn(choices, name):
    small = {"dim": 16, "hidden": (16,), "learning_rate": 1e-2, "batch_size": 16, "max_epochs": 6, "random_state": 0}
    selector = SubsetSelector.preset(name, **small, device="cpu", verbose=0).fit(*choices)
    scores = [record["validation_jaccard"] for record in selector.history_]
    assert max(scores) > 0.4
    assert all(record["converged"] > 0.9 for record in selector.history_)


def test_predictions_that_did_not_converge_warn(choices):
    selector = SubsetSelector(**TINY, method="implicit").fit(*choices)
    # Weights for which two steps do not converge.
    for parameter in first_member(selector).function.rho.parameters():
        parameter.data *= 20
    selector.model_.config = selector.model_.config.with_options(steps=2)
    with pytest.warns(RuntimeWarning, match="inference converged on .* of the sets"):
        selector.predict(choices.sets)


def test_recognition_network_and_function_are_both_trained(choices):
    """All parameters differ from those of a fit with a tiny learning rate."""
    start = SubsetSelector(**{**TINY, "method": "amortised", "max_epochs": 1, "learning_rate": 1e-12}).fit(*choices)
    later = SubsetSelector(**{**TINY, "method": "amortised", "max_epochs": 1, "learning_rate": 1e-2}).fit(*choices)
    for name, before in start.model_.named_parameters():
        after = dict(later.model_.named_parameters())[name]
        assert not torch.equal(before, after), name


def test_letters_are_not_standardised():
    """Encoders of letters get the integers unchanged."""
    tokens = torch.randint(0, 20, (60, 1100), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    sets = Sets.from_lengths(tokens, [6] * 10)
    selector = SubsetSelector(**{**TINY, "phi": "pair", "max_epochs": 1}).fit(sets, [[0, 1]] * 10)
    assert selector.model_.mean.abs().max() == 0
    assert len(selector.predict(sets)) == 10


def fit(*data, options=TINY, **more):
    return SubsetSelector(**{**TINY, **options}).fit(*data, **more)


WRONG: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda d, x, y: fit(damaged(x), y), DataError, "item 0 of set 2 holds NaN or infinity"),
    (lambda d, x, y: fit(x, y.to_list()[:-1]), ShapeError, "59 subsets were given for 60 sets"),
    (lambda d, x, y: fit(x[:1], y[:1]), DataError, "at least 2 sets"),
    (lambda d, x, y: fit([torch.zeros(0, 2)] * 3, [[]] * 3), DataError, "hold no items"),
    (lambda d, x, y: fit(x, y, sample_weight=["a"] * 60), DataError, "one number for each set"),
    (lambda d, x, y: fit(x, y, sample_weight=[1.0]), ShapeError, "sample_weight has shape"),
    (lambda d, x, y: fit(x, y, sample_weight=np.linspace(0, -1, 60)), DataError, "not negative"),
    (lambda d, x, y: fit(x, y, validation=x), ShapeError, "pair"),
    (lambda d, x, y: fit(x, y, options={"dim": 8}, start=d), OptionError, "another architecture"),
    (lambda d, x, y: fit(x, y, options={"heads": 2}, start=d), OptionError, "heads is 4 there, 2 here"),
    (
        lambda d, x, y: fit(x, y, options={"standardize": False}, start=d),
        OptionError,
        "standardize is True there, False here",
    ),
    (lambda d, x, y: fit(x, y, start=SubsetSelector()), NotFittedError, "call fit"),
    (
        lambda d, x, y: fit(x, y, start="model"),
        OptionError,
        r"a fitted SubsetSelector, not str; see setgrad\.load",
    ),
    (
        lambda d, x, y: SubsetSelector.preset("magic"),
        OptionError,
        "unknown preset 'magic'; choose one of: diffmf, diffmf-5, idiff",
    ),
    (lambda d, x, y: d.score([], []), DataError, "no sets to score on"),
    (lambda d, x, y: d.score_true_size([], []), DataError, "no sets to score on"),
    (lambda d, x, y: d.predict(Table(x)), DataError, r"pass table\.sets"),
    (lambda d, x, y: d.predict([[[1.0, 2.0, 3.0]]]), ShapeError, r"fitted on items of shape \(2,\)"),
    (lambda d, x, y: d.predict([[[1.0, np.inf]]]), DataError, "NaN"),
    (lambda d, x, y: d.predict(x, size=1, threshold=0.5), OptionError, "give one of them"),
    (lambda d, x, y: d.predict(x, search="magic"), OptionError, "unknown search"),
    (lambda d, x, y: d.predict(x, size=1.5), OptionError, "size must be a whole number"),
    (lambda d, x, y: d.predict(x, size=[[1], [2, 3]]), OptionError, "size must be a whole number"),
    (lambda d, x, y: d.predict(x, threshold=2), OptionError, "between 0 and 1"),
    (lambda d, x, y: d.predict(x, threshold="a"), OptionError, "between 0 and 1, not 'a'"),
]


def damaged(sets):
    values = sets.values.clone()
    values[7, 1] = torch.nan
    return sets.with_values(values)


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_arguments_raise(choices, unrolled, call, error, message):
    with pytest.raises(error, match=message):
        call(unrolled, *choices)


@pytest.mark.parametrize("seed", range(4))
def test_one_set_with_items_is_not_enough(choices, seed):
    with pytest.raises(DataError, match="at least 2 sets with items"):
        fit([*[[]] * 4, choices.sets[0]], [*[[]] * 4, [0]], options={"random_state": seed})


def test_predict_without_sets_or_items(unrolled):
    assert unrolled.predict([]).values.tolist() == []
    assert len(unrolled.predict([[], []])) == 2
    one = unrolled.predict([[[0.0, 0.0]]])
    assert len(one[0]) == 1


def test_fit_with_some_empty_sets():
    sets, subsets = make_choices(8)
    mixed = [part for x in sets for part in (x, torch.zeros(0, 2))]
    masks = [part for m in subsets for part in (m, torch.zeros(0, dtype=torch.bool))]
    for seed in range(3):
        selector = SubsetSelector(**{**TINY, "max_epochs": 1, "random_state": seed}).fit(mixed, masks)
        assert selector.min_size_ > 0
        assert 0 <= selector.score(mixed, masks) <= 1


def test_fit_without_any_chosen_item():
    sets = make_choices(10).sets
    empty = Choices(sets, sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool)))
    selector = SubsetSelector(**{**TINY, "max_epochs": 40, "learning_rate": 0.01})
    with pytest.warns(UserWarning, match="nothing was chosen from any training set, so there is nothing to learn"):
        selector.fit(*empty, validation=empty)
    assert selector.score(*empty) == 1.0


def test_a_fit_on_whole_sets_is_told():
    pairs, more = (list(np.random.default_rng(0).normal(size=(6, size, 2))) for size in (2, 3))
    selector = SubsetSelector(**{**TINY, "max_epochs": 1})
    with pytest.warns(
        UserWarning, match="everything was chosen .*; lists of 0 and 1 were read as indices, so pass bool"
    ):
        selector.fit(pairs, [[0, 1]] * 6)
    with pytest.warns(
        UserWarning, match="everything was chosen from every training set, so there is nothing to learn$"
    ):
        selector.fit(more, [[0, 1, 2]] * 6)


def test_a_start_from_another_selector_helps(unrolled):
    few = make_choices(8, seed=5)
    test = make_choices(100, seed=6)
    options = {**TINY, "method": "unrolled", "max_epochs": 2}
    cold = SubsetSelector(**options).fit(*few, validation=few)
    warm = SubsetSelector(**options).fit(*few, validation=few, start=unrolled)
    assert warm.score_true_size(*test) > cold.score_true_size(*test) + 0.1
    # The weights belong to this scale of the features.
    assert torch.equal(warm.model_.mean, unrolled.model_.mean)


def test_few_sets_get_more_epochs(choices):
    """With two steps in an epoch, the default patience is 30 epochs instead of 10."""
    options = {name: value for name, value in TINY.items() if name != "max_epochs"} | {"method": "unrolled"}
    random = [torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1].tolist() for x in choices.sets]
    selector = SubsetSelector(**options, batch_size=24, learning_rate=1e-9).fit(choices.sets, random)
    assert len(selector.history_) == 31


@pytest.mark.parametrize(("learning_rate", "falls"), [(1e-2, True), (1e-9, False)])
def test_training_goes_on_while_the_loss_falls(learning_rate, falls):
    """The items of a set are equal, so its score never changes; how often one is chosen is learned."""
    sets = [torch.full((10, 2), float(number)) for number in range(20)]
    options = {**TINY, "method": "unrolled", "max_epochs": 40, "patience": 3, "learning_rate": learning_rate}
    subsets = [[number % 10] for number in range(20)]
    selector = SubsetSelector(**options).fit(sets, subsets, validation=(sets, subsets))
    assert len({record["validation_jaccard"] for record in selector.history_}) == 1
    assert len(selector.history_) > 10 if falls else len(selector.history_) == 4


def test_training_sets_without_convergence_warn(choices):
    with pytest.warns(RuntimeWarning, match="the others gave no gradient"):
        SubsetSelector(**{**TINY, "method": "implicit", "steps": 1, "max_epochs": 1}).fit(*choices)


@pytest.mark.parametrize("batch_size", [8, 100])
def test_fit_does_not_train_the_network_that_computed_the_items(choices, seeded, batch_size):
    with seeded(0):
        network = nn.Linear(2, 2)
    computed = choices.sets.with_values(network(choices.sets.values))
    options = {**TINY, "max_epochs": 2, "batch_size": batch_size}
    with torch.no_grad():
        plain = SubsetSelector(**options).fit(choices.sets.with_values(computed.values.detach()), choices.subsets)
    tied = SubsetSelector(**options).fit(computed, choices.subsets, validation=(computed, choices.subsets))
    assert network.weight.grad is None
    assert tied.history_[0]["loss"] > 0 and plain.history_[0]["loss"] > 0


def test_the_learned_function_checks_its_sets(unrolled):
    F, sets = unrolled.function_, make_choices(4, seed=9).sets
    mask = torch.ones(1, sets.layout.total, dtype=torch.bool)
    assert F.value(sets.to(torch.float64), mask).dtype == torch.float64
    torch.testing.assert_close(F.value(sets.to(torch.float64), mask).float(), F.value(sets, mask), rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeError, match="fitted on items of shape"):
        F.value(sets.with_values(sets.values[:, :1]), mask)
    with pytest.raises(DataError, match="holds NaN"):
        F.value(sets.with_values(sets.values * torch.nan), mask)


def test_repr_with_an_array():
    hidden: Any = np.array([8, 8])
    assert repr(SubsetSelector(hidden=hidden)) == "SubsetSelector(hidden=array([8, 8]))"


def test_the_options_in_use_are_known_after_a_fit(choices):
    small: dict[str, Any] = {"dim": 16, "hidden": (16,), "layers": 1, "max_epochs": 1}
    selector = SubsetSelector(**small, method="unrolled", verbose=0, device="cpu").fit(*choices)
    options = selector.options_
    assert selector.get_params()["steps"] is None
    assert (options.members, options.estimator, options.steps, options.relation) == (1, "bernoulli", 1, 64)
    assert (options.max_epochs, options.patience, options.predict_samples) == (1, 60, 20)
    assert options.device == "cpu"
    again = SubsetSelector.from_options(options).fit(*choices)
    assert torch.equal(again.predict_proba(choices.sets).values, selector.predict_proba(choices.sets).values)


def draw_integers(kind):
    """Return sets of 4 items with features 0 or 1; the first feature tells whether an item is chosen."""
    values = torch.randint(2, (160, 2), generator=torch.Generator().manual_seed(0))
    sets = Sets.from_lengths(values.to(kind), [4] * 40)
    return Choices(sets, sets.with_values(values[:, 0] > 0))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers_are_standardised_as_floats(kind):
    choices, real = draw_integers(kind), draw_integers(torch.float64)
    fitted = SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 2}).fit(*choices)
    deviation = fitted.model_.deviation
    assert ((deviation > 0.4) & (deviation < 0.6)).all()
    result = fitted.predict_proba(choices.sets).values
    assert result.dtype == (torch.float64 if choices.sets.values.element_size() >= 4 else torch.float32)
    assert torch.allclose(result.double(), fitted.predict_proba(real.sets).values, atol=1e-6)

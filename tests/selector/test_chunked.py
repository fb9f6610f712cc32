"""Sets that are read in chunks, with phi="umbc": the same results and gradients as for whole sets."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import setgrad as sg
from setgrad.errors import FileFormatError, OptionError, ShapeError, StateError
from setgrad.functions import FreshNoise
from setgrad.inference import AllItems, WeightedSum, draw_partial_subsets
from setgrad.selector import SetState, _rounds
from setgrad.selector._chunked import Chunks
from setgrad.selector._parts import bind_in_chunks
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.sets import Choices, Sets

SIZE = 50


def make_choices(count, seed=0, size=SIZE):
    """Sets in which the items above the mean of their set are chosen, if their second feature agrees."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(count, size, 2, generator=generator) + torch.randn(count, 1, 2, generator=generator)
    chosen = (items[..., 0] > items[..., 0].mean(1, keepdim=True)) & (items[..., 1] > 0)
    sets = Sets.from_lengths(items.flatten(0, 1), [size] * count)
    return Choices(sets, sets.with_values(chosen.flatten()))


def fit(choices, constraint=None, gradient="fenchel-young", **options):
    usual: dict[str, Any] = {"dim": 8, "layers": 1, "heads": 2, "hidden": (16,), "max_epochs": 2, "random_state": 0}
    selector = sg.SubsetSelector(phi="umbc", verbose=0, **{**usual, **options})
    return selector.fit(*choices, constraint=constraint, gradient=gradient)


def with_chunks(selector, size, gradient="exact"):
    """Return a copy that reads sets in chunks of this size; None for whole sets."""
    other = copy.deepcopy(selector)
    other._exact_model = None
    config = selector.model_.config.with_options(chunk_size=10**6 if size is None else size, chunk_gradient=gradient)
    other.model_.config = config
    return other


@pytest.fixture(scope="module")
def choices():
    return make_choices(12)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with pairs"])
def selector(request, choices):
    return fit(choices, pairs=request.param, max_epochs=10, learning_rate=1e-2)


@pytest.mark.parametrize("size", [1, 7, 49])
def test_every_partition_gives_the_same_predictions(selector, choices, size):
    chunked, sets = with_chunks(selector, size), choices.sets.to(torch.float64)
    given = [[3, 8]] * len(sets)
    for kwargs in ({}, {"given": given}, {"given": given, "excluded": [[0]] * len(sets)}):
        expected, found = (s.decision_function(sets, **kwargs).values for s in (selector, chunked))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        for size_ in (None, 30):
            picks, others = (s.predict(sets, size=size_, **kwargs).values for s in (selector, chunked))
            assert torch.equal(picks, others)
    subsets = [list(range(5))] * len(sets)
    torch.testing.assert_close(chunked.gains(sets, subsets).values, selector.gains(sets, subsets).values)
    torch.testing.assert_close(chunked.value(sets, subsets), selector.value(sets, subsets))


def loss_gradients(selector, choices, generator=None):
    """Return the gradient of the training loss of one set, for all weights."""
    model = copy.deepcopy(selector.model_).double()
    model.config = selector.model_.config
    sets, subsets = choices.sets[:1].to(torch.float64), choices.subsets[:1]
    (member,) = model.each()
    if model.config.reads_in_chunks(sets):
        bound = bind_in_chunks(model, member, sets, generator)
    else:
        bound = member.bind(model.prepare(sets))
    partial = draw_partial_subsets(subsets, 4, FreshNoise(1), half=True)
    loss = WeightedSum()(bound.gains(partial), partial, subsets, None)
    return [loss.detach(), *torch.autograd.grad(loss, list(member.parameters()), materialize_grads=True)]


@pytest.mark.parametrize("size", [1, 7, 49])
def test_the_gradient_of_chunks_is_that_of_the_whole_set(selector, choices, size):
    found, expected = (loss_gradients(with_chunks(selector, n), choices) for n in (size, None))
    assert sum(bool(g.abs().max() > 1e-6) for g in expected) > 0.8 * len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_the_expectation_of_the_sampled_gradient_is_the_exact_one(selector, choices, monkeypatch):
    """Over all draws of a chunk in each of the three passes."""
    # Each pass has two chunks.
    sampled, size = with_chunks(selector, 25, "sample"), 2
    draws: list[int] = []
    monkeypatch.setattr(Chunks, "_draw", lambda chunks, count: draws.pop() if count == size else -1)
    gradients = []
    for number in range(size**3):
        draws[:] = [number % size, number // size % size, number // size**2]
        gradients.append(loss_gradients(sampled, choices))
        assert not draws
    draws_of = [torch.stack(parts) for parts in zip(*gradients, strict=True)]
    exact = loss_gradients(with_chunks(selector, None), choices)
    for draw, expected in zip(draws_of, exact, strict=True):
        torch.testing.assert_close(draw.mean(0), expected, rtol=1e-9, atol=1e-11)
    spread, size_of = (sum(float(x.square().sum()) for x in xs) for xs in ([d.std(0) for d in draws_of], exact[1:]))
    assert spread > 0.01 * size_of
    # The loss itself is not sampled.
    assert float(draws_of[0].std()) < 1e-12


@pytest.mark.parametrize("size", [None, 7])
def test_appended_items_update_the_state_of_a_set(selector, choices, size, tmp_path):
    """The state is that of all items, and so are the predictions for some of them or for all."""
    chunked, items = with_chunks(selector, size), choices.sets[0].double()
    whole = chunked.encode_set(items)
    chunked.encode_set(items[:30]).save(tmp_path / "state")
    grown = chunked.encode_set(items[30:], state=SetState.load(tmp_path / "state"))
    assert len(grown) == len(whole) == SIZE
    for a, b in zip(grown.states[0].sums, whole.states[0].sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    expected = selector.decision_function([items])[0]
    found = chunked.within(grown)
    torch.testing.assert_close(found.decision_function([items])[0], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.decision_function([items[30:]])[0], expected[30:], rtol=1e-9, atol=1e-9)
    assert torch.equal(found.predict([items], size=9)[0], selector.predict([items], size=9)[0])
    assert torch.equal(found.predict([items])[0], selector.predict([items])[0])
    shrunk = grown.remove(chunked.encode_set(items[:30]))
    alone = selector.decision_function([items[30:]])[0]
    torch.testing.assert_close(chunked.within(shrunk).decision_function([items[30:]])[0], alone, rtol=1e-6, atol=1e-6)


def test_a_state_of_several_members(choices):
    selector = fit(choices, members=2)
    state = selector.encode_set(choices.sets[0])
    assert len(state.states) == 2
    expected = selector.decision_function([choices.sets[0]])[0]
    torch.testing.assert_close(selector.within(state).decision_function([choices.sets[0]])[0], expected)


def test_a_state_that_does_not_fit_is_refused(selector, choices, tmp_path):
    state, other = selector.encode_set(choices.sets[0]), fit(choices, random_state=1)
    with pytest.raises(StateError, match="other weights"):
        other.within(state)
    with pytest.raises(StateError, match="other weights"):
        other.encode_set(choices.sets[0], state=state)
    with pytest.raises(StateError, match="numbers of members"):
        state.merge(SetState(2 * state.states))
    with pytest.raises(ShapeError, match="one set, but 12 were passed"):
        selector.within(state).predict(choices.sets)
    with pytest.raises(ShapeError, match="one set, but 2 were passed"):
        selector.encode_set(choices.sets[:2])
    with pytest.raises(OptionError, match="only phi='umbc' gathers"):
        sg.SubsetSelector(phi="mlp", dim=8, max_epochs=1, random_state=0, verbose=0).fit(*choices).encode_set(
            choices.sets[0]
        )
    related = fit(choices, relation=4)
    with pytest.raises(OptionError, match="relation=0"):
        related.within(related.encode_set(choices.sets[0]))
    state.save(tmp_path / "state")
    (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="cut"):
        SetState.load(tmp_path / "cut")


@pytest.mark.parametrize("gradient", ["exact", "sample"])
def test_fit_reads_sets_in_chunks(gradient, tmp_path):
    """A saved model, and a fit whose sets are in a file, give the same results as one of whole sets."""
    choices, new = make_choices(16, size=20), make_choices(10, seed=5, size=20)
    np.save(tmp_path / "items.npy", choices.sets.values.numpy())
    sets = Sets.from_npy(tmp_path / "items.npy", choices.sets.lengths)
    options = {"max_epochs": 3, "learning_rate": 5e-3, "batch_size": 1}
    mapped = fit((sets, choices.subsets), chunk_size=8, chunk_gradient=gradient, **options)
    losses = [record["loss"] for record in mapped.history_]
    if gradient == "exact":
        whole = fit(choices, **options)
        assert losses == pytest.approx([record["loss"] for record in whole.history_], rel=1e-3)
    assert losses[-1] < losses[0]
    mapped.save(tmp_path / "model")
    loaded = sg.load(tmp_path / "model", device="cpu")
    assert (loaded.options_.chunk_size, loaded.options_.chunk_gradient) == (8, gradient)
    assert torch.equal(loaded.predict(new.sets).values, mapped.predict(new.sets).values)


def test_large_sets_are_trained_on_one_by_one_unless_their_features_are_kept(choices):
    assert fit(choices, chunk_size=SIZE, max_epochs=1).options_.batch_size > 1
    assert fit(choices, chunk_size=SIZE - 1, max_epochs=1).options_.batch_size == 1
    assert fit(choices, chunk_size=SIZE - 1, max_epochs=1, method="one-step").options_.batch_size > 1


@pytest.mark.parametrize("count", [0, 5])
def test_rounds_of_few_candidates_choose_as_many_items(selector, choices, count, monkeypatch):
    """Each round holds eight items and adds four, so that the path is no longer exact but close."""
    sets, given = choices.sets.to(torch.float64), [list(range(count))] * len(choices.sets)
    chunked = with_chunks(selector, 9)
    expected = selector.predict(sets, size=20, given=given).values
    monkeypatch.setattr(_rounds, "_MOST", 8)
    found = chunked.predict(sets, size=20, given=given).values
    assert found.reshape(-1, SIZE).sum(1).tolist() == [20] * len(sets)
    assert bool(found.reshape(-1, SIZE)[:, :count].all())
    assert (found & expected).sum() > 0.95 * expected.sum()
    free, whole = (s.predict(sets).values for s in (chunked, selector))
    assert (free & whole).sum() > 0.9 * (free | whole).sum()


def test_scores_of_rounds_are_those_of_a_path(selector, choices, monkeypatch):
    monkeypatch.setattr(_rounds, "_MOST", 8)
    chunked = with_chunks(selector, 9)
    with torch.no_grad():
        bound = chunked._precise().bind(choices.sets[:1].to(torch.float64))
        path = choose_item_by_item(bound, sizes=torch.tensor([20]))
    chosen, rest = path.scores[path.subsets.values], path.scores[~path.subsets.values]
    assert len(chosen) == 20 == len(chosen.unique())
    assert chosen.min() > rest.max()


@pytest.fixture(scope="module", params=["implicit", "unrolled", "one-step"])
def mean_field(request, choices):
    options: dict[str, dict[str, Any]] = {
        "implicit": {},
        "unrolled": {"estimator": "gaussian", "steps": 2},
        "one-step": {"steps": 2},
    }
    selector = fit(choices, method=request.param, learning_rate=1e-2, pairs=True, **options[request.param])
    if request.param == "implicit":
        selector.model_.config = selector.model_.config.with_options(tol=1e-12)
    return selector


def inference_gradients(selector, choices):
    """Return a loss of the inferred logits of sets and its gradient for all weights."""
    model = copy.deepcopy(selector.model_).double()
    model.config = selector.model_.config
    sets, (member,) = choices.sets.to(torch.float64), model.each()
    chunked = model.config.reads_in_chunks(sets)
    bound = bind_in_chunks(model, member, sets) if chunked else member.bind(model.prepare(sets))
    logits = member.infer(model.config, bound, FreshNoise(1)).logits
    loss = AllItems()(logits, choices.subsets, None, None)
    return [loss.detach(), *torch.autograd.grad(loss, list(member.parameters()), materialize_grads=True)]


@pytest.mark.parametrize("size", [7, 49])
def test_mean_field_on_chunks_is_that_of_whole_sets(mean_field, choices, size):
    """Also in a batch, with a small and an empty set in it."""
    few = Choices(choices.sets[:3], choices.subsets[:3])
    sets = Sets.from_list([*few.sets, few.sets[0][:5], few.sets[0][:0]])
    batch = Choices(sets, Sets.from_list([*few.subsets, few.subsets[0][:5], few.subsets[0][:0]]))
    chunked, wide = with_chunks(mean_field, size), sets.to(torch.float64)
    for kwargs in ({}, {"given": [[3], [8], [0, 1], [2], []]}):
        expected, found = (s.decision_function(wide, **kwargs).values for s in (mean_field, chunked))
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    found, expected = (inference_gradients(with_chunks(mean_field, n), batch) for n in (size, None))
    assert sum(bool(g.abs().max() > 1e-6) for g in expected) > 0.8 * len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_the_expected_sampled_gradient_of_mean_field_is_the_exact_one(mean_field, choices, monkeypatch):
    """Over all draws of a chunk in both passes."""
    first = Choices(choices.sets[:1], choices.subsets[:1])
    sampled, draws, gradients = with_chunks(mean_field, 25, "sample"), [0], []
    monkeypatch.setattr(Chunks, "_draw", lambda chunks, count: draws.pop())
    for pair in ((0, 0), (0, 1), (1, 0), (1, 1)):
        draws[:] = pair
        gradients.append(inference_gradients(sampled, first))
    exact = inference_gradients(with_chunks(mean_field, None), first)
    for parts, expected in zip(zip(*gradients, strict=True), exact, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), expected, rtol=1e-6, atol=1e-8)


def test_all_parts_of_the_system_work_together(tmp_path):
    """Sets in a file, read in chunks, implicit inference, and a loss of the choice under a budget."""
    choices = make_choices(8, size=20)
    np.save(tmp_path / "items.npy", choices.sets.values.numpy())
    sets = Sets.from_npy(tmp_path / "items.npy", choices.sets.lengths)
    options = {"method": "implicit", "tol": 1e-5, "batch_size": 4, "samples": 2, "max_epochs": 1}
    histories = []
    for items, size in ((sets, 8), (choices.sets, 50)):
        budget = sg.Budget(items.with_values(torch.ones(len(items.values))), 12)
        selector = fit((items, choices.subsets), chunk_size=size, constraint=budget, gradient="aimle", **options)
        assert (selector.predict(items, constraint=budget).values.view(8, 20).sum(1) <= 12).all()
        histories.append([record["loss"] for record in selector.history_])
    assert histories[0] == pytest.approx(histories[1], rel=1e-3)

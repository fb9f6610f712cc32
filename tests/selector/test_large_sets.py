"""Large sets in memory: paths in rounds against paths over all items, in single precision where that is enough."""

import pytest
import torch

from setgrad.functions import DeepSetFunction, FacilityLocation, Modular
from setgrad.selector import SubsetSelector, _batched_inference, _quick_choice, _rounds, item_by_item
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.sets import Sets
from tests.selector.conftest import TINY, make_choices

SIZES = [70, 5, 90]


@pytest.fixture
def small_limits(monkeypatch):
    """Let sets of more than 20 items be large, and rounds have few candidates."""
    for module in (_rounds, _batched_inference, item_by_item):
        monkeypatch.setattr(module, "LARGEST_WHOLE", 20)
    monkeypatch.setattr(_rounds, "_CANDIDATES", 12)


def draw_sets(sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


def deep(seeded):
    with seeded(3):
        function = DeepSetFunction(2, "mlp", dim=8, hidden=(8, 8)).double().requires_grad_(False)
    for parameter in function.rho.parameters():
        parameter.mul_(3.0)
    return function


REQUESTS = [{"sizes": torch.tensor([30, 3, 40])}, {"cut": 0.3}, {"cut": 0.3, "min_size": 25}, {"cut": -9.0}]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_rounds_that_hold_all_that_matters_are_the_path(seeded, monkeypatch, small_limits, request_):
    """Of a modular function the order never changes; of another one, rounds hold all items here."""
    for function, candidates in ((Modular(), 12), (deep(seeded), 100)):
        monkeypatch.setattr(_rounds, "_CANDIDATES", candidates)
        bound = function.bind(draw_sets())
        found = choose_item_by_item(bound, **request_)
        with monkeypatch.context() as patched:
            patched.setattr(item_by_item, "LARGEST_WHOLE", 1000)
            expected = choose_item_by_item(bound, **request_)
        assert torch.equal(found.subsets.values, expected.subsets.values)
        chosen = expected.subsets.values
        torch.testing.assert_close(found.scores[chosen], expected.scores[chosen])


def test_few_candidates_are_close_to_the_path_and_a_smaller_subset_begins_a_larger_one(seeded, small_limits):
    bound = deep(seeded).bind(draw_sets([90]))
    whole = choose_item_by_item(bound, sizes=torch.tensor([60]))
    for size in (1, 4, 5, 17, 33, 59):
        part = choose_item_by_item(bound, sizes=torch.tensor([size])).subsets.values
        assert part.sum() == size and not bool((part & ~whole.subsets.values).any())
        assert part.nonzero()[:, 0].tolist() == sorted(whole.scores.topk(size).indices.tolist())
    chosen = whole.subsets.values
    assert len(whole.scores[chosen].unique()) == 60 and whole.scores[chosen].min() > whole.scores[~chosen].max()


def test_a_set_is_chosen_from_alone_as_in_a_batch(seeded, small_limits):
    sets = draw_sets([70, 5, 30, 90])
    start, excluded = sets.layout.positions == 1, sets.layout.positions == 2
    request = {"cut": 0.1, "start": start, "excluded": excluded}
    together = choose_item_by_item(deep(seeded).bind(sets), **request)
    for number in range(4):
        rows = slice(*sets.layout.host_offsets[number : number + 2])
        one = {**request, "start": start[rows], "excluded": excluded[rows]}
        alone = choose_item_by_item(deep(seeded).bind(sets[number : number + 1]), **one)
        assert torch.equal(alone.subsets.values, together.subsets.values[rows])


def test_a_function_that_cannot_be_restricted_takes_the_whole_path(small_limits, monkeypatch):
    bound = FacilityLocation().bind(draw_sets([40]))
    found = choose_item_by_item(bound, sizes=torch.tensor([10])).subsets.values
    monkeypatch.setattr(item_by_item, "LARGEST_WHOLE", 1000)
    assert torch.equal(found, choose_item_by_item(bound, sizes=torch.tensor([10])).subsets.values)


@pytest.fixture(scope="module")
def selector():
    return SubsetSelector(**TINY).fit(*make_choices(60))


@pytest.mark.parametrize("options", [{}, {"size": 9}, {"given": [[0]] * 5}], ids=str)
def test_predictions_for_large_sets_do_not_depend_on_others_and_close_decisions_are_exact(
    selector, small_limits, monkeypatch, options
):
    generator = torch.Generator().manual_seed(1)
    items = [torch.randn(n, 2, generator=generator) for n in (25, 4, 60, 33, 7)]
    # Items that differ by less than single precision tells apart.
    items[2] = torch.cat([items[2][:30], items[2][:30] * (1 + 1e-7)])
    sets = Sets.from_list(items)
    picks, probabilities = selector.predict(sets, **options), selector.predict_proba(sets)
    for number in range(5):
        one = {name: value[:1] if name == "given" else value for name, value in options.items()}
        assert torch.equal(selector.predict(sets[number : number + 1], **one).values, picks[number])
        assert torch.equal(selector.predict_proba(sets[number : number + 1]).values, probabilities[number])
        if not options:
            order = torch.randperm(len(items[number]), generator=generator)
            assert torch.equal(selector.predict(Sets.from_list([items[number][order]])).values, picks[number][order])
    # With a margin as large as the gains everything is computed in double precision.
    for name in ("MARGIN", "MARGIN_ALONE"):
        monkeypatch.setattr(_quick_choice, name, 1e9)
    assert torch.equal(selector.predict(sets, **options).values, picks.values)

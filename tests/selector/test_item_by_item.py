"""Choosing item by item against plain loops, draws against enumeration of all orders, completions by brute force."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch

from setgrad.errors import DataError
from setgrad.functions import BoundSetFunction, DeepSetFunction, FreshNoise, FromCallable, ItemNoise, Modular
from setgrad.functions.facility_location import FacilityLocation
from setgrad.functions.graph_cut import GraphCut
from setgrad.selector.item_by_item import choose_item_by_item, draw_item_by_item
from setgrad.selector.metrics import pick_top
from setgrad.selector.search import best_completion, local_search
from setgrad.sets import Sets, segment_sum

SIZES = [5, 0, 1, 7, 3, 6]
TOTAL = sum(SIZES)


def wavy():
    """Return a function without structure, which cannot be restricted to some of its sets."""
    weights = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0]], dtype=torch.float64)
    return FromCallable(lambda items, masks: torch.sin(masks.to(items.dtype) @ items @ weights).sum(1))


def deep(seeded):
    """Return a learned function, amplified so that gains differ."""
    with seeded(3):
        function = DeepSetFunction(2, "mlp", dim=8, hidden=(8, 8)).double().requires_grad_(False)
    for parameter in function.rho.parameters():
        parameter.mul_(3.0)
    return function


def draw_sets(sizes):
    generator = torch.Generator().manual_seed(0)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


@pytest.fixture(params=["deep", "not restricted", "graph cut"])
def function(request, seeded):
    return {"deep": lambda: deep(seeded), "not restricted": wavy, "graph cut": lambda: GraphCut(penalty=2.0)}[
        request.param
    ]()


@pytest.fixture
def bound(function):
    return function.bind(draw_sets(SIZES))


def known_items():
    """Return items to start from and items that never join, at most two of each in a set."""
    positions = draw_sets(SIZES).layout.positions
    return (positions == 1) | (positions == 4), (positions == 0) | (positions == 5)


def gains_at(bound, number, chosen):
    """Return the gains of the items of one set at a subset, by differences of values."""
    start = int(bound.sets.layout.host_offsets[number])

    def value(items):
        mask = torch.zeros(1, bound.sets.layout.total, dtype=torch.bool)
        mask[0, [start + i for i in items]] = True
        return bound.value(mask)[0, number].item()

    count = int(bound.sets.layout.host_lengths[number])
    return {i: value([*chosen, i]) - value(chosen) for i in range(count) if i not in chosen}


def plain_path(bound, number, *, size=None, cut=0.0, min_size=0, start=(), excluded=()):
    """Return the items in the order in which they join, and the smallest gain up to each."""
    order: list[tuple[int, float]] = []
    chosen, lowest = list(start), math.inf
    while True:
        gains = {i: gain for i, gain in gains_at(bound, number, chosen).items() if i not in excluded}
        if not gains or (size is not None and len(chosen) >= size):
            return order
        best = max(gains, key=lambda i: gains[i])
        if size is None and gains[best] <= cut and len(chosen) >= min_size:
            return order
        lowest = min(lowest, gains[best])
        # Without a size, an item cannot join by a gain that is larger than one it had to be forced by.
        if size is None and lowest <= cut and len(chosen) >= min_size:
            return order
        chosen.append(best)
        order.append((best, lowest))


REQUESTS: list[dict[str, Any]] = [
    {"size": 0},
    {"size": 2},
    {"size": 9},
    {},
    {"cut": 0.5},
    {"cut": -2.0},
    {"cut": 0.3, "min_size": 3},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize("is_known", [False, True], ids=["free", "known items"])
def test_the_path_equals_a_plain_loop(bound, request_, is_known):
    options = dict(request_)
    start, excluded = known_items() if is_known else (None, None)
    size = options.pop("size", None)
    if size is not None:
        options["sizes"] = torch.full((len(SIZES),), size)
    path = choose_item_by_item(bound, **options, start=start, excluded=excluded)
    for number, (mask, scores) in enumerate(zip(path.subsets, path.subsets.with_values(path.scores), strict=True)):
        inside, outside = (
            [] if x is None else path.subsets.with_values(x)[number].nonzero()[:, 0].tolist() for x in (start, excluded)
        )
        order = plain_path(bound, number, **request_, start=inside, excluded=outside)
        joined = [item for item, _ in order]
        assert mask.nonzero()[:, 0].tolist() == sorted([*joined, *inside])
        assert scores[joined].tolist() == pytest.approx([lowest for _, lowest in order], abs=1e-9)
        assert scores[inside].tolist() == [math.inf] * len(inside)
        assert scores[outside].tolist() == [-math.inf] * len(outside)
        # Scores fall along the path, and those of items that did not join are lower.
        ordered = scores[joined].tolist()
        assert all(a > b for a, b in itertools.pairwise(ordered))
        rest = scores[~mask].tolist()
        assert not ordered or not rest or max(rest) < ordered[-1]


def test_long_paths_equal_a_plain_loop(seeded):
    """The first 32 items join one by one."""
    bound = deep(seeded).bind(draw_sets([40]))
    path = choose_item_by_item(bound, sizes=torch.tensor([32]))
    order = [item for item, _ in plain_path(bound, 0, size=32)]
    assert path.subsets.values.nonzero()[:, 0].tolist() == sorted(order)
    assert path.scores.sort(descending=True, stable=True).indices[:32].tolist() == order


def test_a_smaller_subset_is_the_beginning_of_a_larger_one(seeded):
    """Also beyond 64 items, where a step adds several at once."""
    bound = deep(seeded).bind(draw_sets([90, 75]))
    whole = choose_item_by_item(bound, sizes=torch.tensor([90, 75]))
    assert whole.subsets.values.all() and len(whole.scores[:90].unique()) == 90
    for size in (1, 31, 32, 33, 64, 65, 66, 67, 74):
        path = choose_item_by_item(bound, sizes=torch.tensor([size, size]))
        expected = pick_top(whole.scores, bound.sets, torch.tensor([size, size]))
        assert torch.equal(path.subsets.values, expected.values)


def test_blocks_are_a_share_of_what_is_chosen(seeded):
    bound = deep(seeded).bind(draw_sets([150]))
    counted = Counted(bound)
    choose_item_by_item(counted, sizes=torch.tensor([150]))
    count, steps = 0, 0
    while count < 150:
        count, steps = count + max(1, count // 32), steps + 1
    assert counted.calls == steps < 150
    # The items of one block are those with the best gains at the subset before it.
    before = choose_item_by_item(bound, sizes=torch.tensor([64])).subsets.values
    after = choose_item_by_item(bound, sizes=torch.tensor([66])).subsets.values
    gains = bound.gains(before[None])[0].masked_fill(before, -torch.inf)
    assert sorted((after & ~before).nonzero()[:, 0].tolist()) == sorted(gains.topk(2).indices.tolist())


class Counted(BoundSetFunction):
    """A bound function that counts the evaluations of its gains."""

    def __init__(self, bound):
        self.bound, self.sets, self.calls = bound, bound.sets, 0

    def value(self, masks):
        return self.bound.value(masks)

    def gains(self, masks, coordinates=None):
        self.calls += 1
        return self.bound.gains(masks, coordinates)


@pytest.mark.parametrize("cut", [-2.0, 0.0, 0.3])
@pytest.mark.parametrize("min_size", [0, 3])
@pytest.mark.parametrize("is_known", [False, True], ids=["free", "known items"])
def test_scores_above_the_cut_are_the_subset(bound, cut, min_size, is_known):
    start, excluded = known_items() if is_known else (None, torch.zeros(TOTAL, dtype=torch.bool))
    path = choose_item_by_item(bound, cut=cut, min_size=min_size, start=start, excluded=excluded)
    above = segment_sum(path.scores > cut, bound.sets)
    sizes = above.clamp(min=min_size).minimum(segment_sum(~excluded, bound.sets))
    assert torch.equal(path.subsets.values, pick_top(path.scores, bound.sets, sizes).values)
    if min_size == 0:
        assert torch.equal(path.subsets.values, path.scores > cut)
    # Where a path would stop at another cut can be read from its scores, up to the first item that did not join.
    stricter = choose_item_by_item(bound, cut=cut + 0.5, start=start, excluded=excluded)
    assert torch.equal(stricter.subsets.values, path.scores > cut + 0.5)


@pytest.mark.parametrize("sizes", [None, [4, 1, 1, 2, 0, 6], [3, 0, 1, 7, 2, 4]], ids=str)
def test_paths_do_not_depend_on_the_batch(function, bound, sizes):
    """Also the scores of items that did not join, from which the level of a constraint follows."""
    wanted = None if sizes is None else torch.tensor(sizes)
    start, excluded = known_items()
    for known in (False, True):
        more = {"start": start, "excluded": excluded} if known else {}
        together = choose_item_by_item(bound, sizes=wanted, **more)
        for number in range(len(SIZES)):
            rows = torch.tensor([number])
            items = bound.sets.with_values(torch.arange(TOTAL)).take(rows)
            alone = choose_item_by_item(
                function.bind(bound.sets.take(rows)),
                sizes=None if wanted is None else wanted[rows],
                **{name: mask[items.values] for name, mask in more.items()},
            )
            assert torch.equal(alone.subsets.values, together.subsets.values[items.values])
            torch.testing.assert_close(alone.scores, together.scores[items.values])


def test_ties_join_in_the_order_of_the_items():
    bound = Modular().bind(Sets.from_list([[[1.0], [2.0], [2.0], [1.0], [2.0]]]))
    path = choose_item_by_item(bound, sizes=torch.tensor([4]))
    assert path.subsets.values.tolist() == [True, True, True, False, True]
    assert path.scores.sort(descending=True, stable=True).indices.tolist() == [1, 2, 4, 0, 3]
    assert len(path.scores[path.subsets.values].unique()) == 4
    torch.testing.assert_close(path.scores, bound.sets.values[:, 0].double(), rtol=0, atol=1e-10)


def test_items_with_a_gain_of_minus_infinity_never_join():
    bound = Modular().bind(Sets.from_list([[[1.0], [-torch.inf], [2.0]], [[-torch.inf]]]))
    for options in ({"sizes": torch.tensor([3, 1])}, {"cut": -9.0}, {"min_size": 3}):
        path = choose_item_by_item(bound, **options)
        assert path.subsets.values.tolist() == [True, False, True, False]
        assert path.scores.tolist() == [1.0, -math.inf, 2.0, -math.inf]
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    assert not draw_item_by_item(bound, FreshNoise, nothing, nothing[0], 0.0)[0, [1, 3]].any()
    completed = best_completion(bound, torch.tensor([3, 1]), nothing[0], nothing[0])
    assert completed.values.tolist() == [True, False, True, False]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_gains_that_are_not_finite_raise(wrong):
    sets = Sets.from_list([torch.ones(3, 1), torch.tensor([[1.0], [wrong]])])
    bound, nothing = Modular().bind(sets), torch.zeros(2, 5, dtype=torch.bool)
    calls = [
        lambda: choose_item_by_item(bound),
        lambda: choose_item_by_item(bound, sizes=torch.tensor([1, 1])),
        lambda: draw_item_by_item(bound, FreshNoise, nothing, nothing[0], 0.0),
        lambda: best_completion(bound, torch.tensor([1, 1]), nothing[0], nothing[0]),
        lambda: best_completion(bound, torch.tensor([2, 2]), nothing[0], nothing[0]),
    ]
    for call in calls:
        with pytest.raises(DataError, match="gain of an item of set 1 is not finite"):
            call()
    twins, none = Modular().bind(sets[1:]), nothing[0, :2]
    with pytest.raises(DataError, match="gain of an item of set 0 is not finite"):
        best_completion(twins, torch.tensor([1]), none, none)
    # Items that cannot join are not looked at.
    excluded = torch.tensor([False, False, False, False, True])
    assert choose_item_by_item(bound, excluded=excluded).subsets.values.tolist() == (~excluded).tolist()


def test_the_name_of_a_set_is_that_in_the_batch():
    """Also after finished sets have left the batch."""
    values = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0], [3.0], [2.0], [1.0]])
    function = Broken(Modular().bind(Sets.from_lengths(values, [1, 1, 1, 1, 3])))
    with pytest.raises(DataError, match="item of set 4 is not finite"):
        choose_item_by_item(function)


class Broken(BoundSetFunction):
    """A bound function whose gains are NaN at subsets of two items."""

    def __init__(self, bound):
        self.bound, self.sets = bound, bound.sets

    def value(self, masks):
        return self.bound.value(masks)

    def gains(self, masks, coordinates=None):
        count = segment_sum(masks[0], self.sets)[self.sets.layout.ids]
        return self.bound.gains(masks).masked_fill(count >= 2, torch.nan)

    def restrict(self, rows, items):
        part = self.bound.restrict(rows, items)
        assert part is not None
        return Broken(part)


# ---- draws


def exact_draws(bound, number, stop_logit, start=(), excluded=()):
    """Return the probability of each subset by enumerating all orders in which its items join."""
    found: Counter[frozenset[int]] = Counter()

    def go(chosen, probability):
        gains = {i: gain for i, gain in gains_at(bound, number, list(chosen)).items() if i not in excluded}
        total = math.exp(stop_logit) + sum(math.exp(gain) for gain in gains.values())
        found[frozenset(chosen)] += probability * math.exp(stop_logit) / total
        for item, gain in gains.items():
            go([*chosen, item], probability * math.exp(gain) / total)

    go(list(start), 1.0)
    return found


@pytest.mark.parametrize("is_known", [False, True], ids=["free", "known items"])
@pytest.mark.parametrize(("kind", "stop_logit"), [("fresh", 0.0), ("fresh", 1.5), ("item", -1.0)])
def test_draws_have_their_exact_probabilities(seeded, is_known, kind, stop_logit):
    bound, draws = deep(seeded).bind(draw_sets([4, 0, 2])), 4000
    start = torch.tensor([is_known, False, False, False, False, False])
    excluded = torch.tensor([False, False, is_known, False, False, is_known])
    source = FreshNoise(1)

    def noise(step):
        return source if kind == "fresh" else ItemNoise(bound.sets, seed=step)

    picks = draw_item_by_item(bound, noise, start.expand(draws, -1), excluded, stop_logit)
    for number, (inside, outside) in {0: ([0], [2]), 2: ([], [1])}.items():
        rows = picks[:, bound.sets.layout.ids == number]
        counts = Counter(frozenset(row.nonzero()[:, 0].tolist()) for row in rows)
        exact = exact_draws(bound, number, stop_logit, *((inside, outside) if is_known else ([], [])))
        assert sum(exact.values()) == pytest.approx(1)
        assert counts.keys() <= exact.keys()
        for subset, p in exact.items():
            assert abs(counts[subset] - draws * p) <= 4.5 * math.sqrt(draws * p * (1 - p)) + 1


def test_draws_of_a_set_do_not_depend_on_the_batch_or_the_order_of_items(function):
    sets, nothing = draw_sets(SIZES), torch.zeros(20, TOTAL, dtype=torch.bool)

    def draw(sets):
        empty = nothing[:, : sets.layout.total]
        return draw_item_by_item(function.bind(sets), lambda step: ItemNoise(sets, step), empty, empty[0], 0.5)

    together = draw(sets)
    assert len(together.unique(dim=0)) > 10
    for number, items in enumerate(sets):
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(number))
        moved = Sets.from_lengths(items[order], [len(items)])
        assert torch.equal(draw(moved), together[:, sets.layout.ids == number][:, order])


# ---- searches


def plain_completion(bound, number, size, start, excluded):
    """Complete the subset from every first item, and return the one whose items are the likeliest given the others."""

    def open_gains(chosen):
        return {i: g for i, g in gains_at(bound, number, chosen).items() if i not in excluded}

    gains = open_gains(start)
    if len(start) >= size or not gains:
        return sorted(start)
    results = []
    for first in gains:
        chosen, likelihood = [*start, first], 0.0
        while len(chosen) < size and (left := open_gains(chosen)):
            chosen.append(max(left, key=lambda i: left[i]))
        for item in set(chosen) - set(start):
            others = open_gains([i for i in chosen if i != item])
            likelihood += others[item] - math.log(sum(math.exp(g) for g in others.values()))
        results.append((likelihood, gains[first], sorted(chosen)))
    return max(results)[2]


@pytest.mark.parametrize("size", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("is_known", [False, True], ids=["free", "known items"])
def test_completion_equals_brute_force_over_first_items(bound, size, is_known):
    nothing = torch.zeros(TOTAL, dtype=torch.bool)
    start, excluded = known_items() if is_known else (nothing, nothing)
    sizes = torch.full((len(SIZES),), size).minimum(bound.sets.lengths)
    picks = best_completion(bound, sizes, start, excluded)
    for number, mask in enumerate(picks):
        inside, outside = (bound.sets.with_values(x)[number].nonzero()[:, 0].tolist() for x in (start, excluded))
        assert mask.nonzero()[:, 0].tolist() == plain_completion(bound, number, int(sizes[number]), inside, outside)


def test_completion_finds_the_cluster_that_holds_together():
    """No item alone is likely; item by item starts in the wrong cluster, and the likeliest rest is elsewhere."""
    clusters, alone = torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.0, -0.1, -0.2])
    pull = torch.tensor([[0.0, 1.0, 0.9, 0.0], [1.0, 0.0, 0.0, 0.0], [0.9, 0.0, 0.0, 5.0], [0.0, 0.0, 5.0, 0.0]])

    def value(items, masks):
        m = masks.float()
        return m @ alone + ((m @ pull) * m).sum(1) / 2

    bound = FromCallable(value).bind(Sets.from_list([clusters[:, None].float()]))
    nothing = torch.zeros(4, dtype=torch.bool)
    assert choose_item_by_item(bound, sizes=torch.tensor([2])).subsets.values.tolist() == [True, True, False, False]
    assert best_completion(bound, torch.tensor([2]), nothing, nothing).values.tolist() == [False, False, True, True]


@pytest.mark.parametrize("keep_size", [True, False])
def test_local_search_leaves_fixed_items(bound, keep_size):
    inside, outside = known_items()
    start = bound.sets.with_values((inside | (bound.sets.layout.positions == 3)) & ~outside)
    fixed = inside | outside
    result = local_search(bound, start, keep_size=keep_size, fixed=fixed)
    assert torch.equal(result.values[fixed], start.values[fixed])
    before, after = bound.value(torch.stack([start.values, result.values]))
    assert bool((after >= before - 1e-9).all())
    if keep_size:
        assert torch.equal(segment_sum(result.values, bound.sets), segment_sum(start.values, bound.sets))
        return
    gains = bound.gains(result.values[None])[0]
    # No change of a single free item helps.
    assert float(torch.where(result.values, -gains, gains)[~fixed].max()) <= 1e-7


def test_local_search_by_swaps_finds_the_best_pair_beside_fixed_items():
    scores = torch.tensor([[1.0], [5.0], [3.0], [4.0], [2.0]])
    bound = Modular().bind(Sets.from_list([scores]))
    start = bound.sets.with_values(torch.tensor([True, False, False, False, True]))
    fixed = torch.tensor([True, True, False, False, False])
    result = local_search(bound, start, keep_size=True, fixed=fixed)
    assert result.values.tolist() == [True, False, False, True, False]


def test_facility_location_is_chosen_without_restriction():
    """Functions whose tables belong to the batch cannot be restricted, and need not be."""
    sets = draw_sets([9, 1, 1, 1])
    bound = FacilityLocation().bind(sets)
    picks = choose_item_by_item(bound, sizes=torch.tensor([6, 1, 1, 1])).subsets
    assert picks[0].nonzero()[:, 0].tolist() == sorted(item for item, _ in plain_path(bound, 0, size=6))

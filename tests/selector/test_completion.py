"""Given and excluded items: probabilities against the function itself, choices against enumeration, for all methods."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from setgrad import discrete
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.selector import Budget, Groups, SizeRange, SubsetSelector, jaccard
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.selector.search import best_completion
from setgrad.selector.sizes import LinearSize
from setgrad.sets import Sets, subset_sizes
from tests.selector.conftest import TINY, make_choices

OPTIONS: list[dict[str, Any]] = [
    {},
    {"size": 4},
    {"threshold": 0.4},
    {"threshold": 0.0},
    {"threshold": 1.0},
    {"search": "greedy"},
    {"search": "local"},
    {"search": "local", "size": 4},
    {"search": "completion"},
    {"search": "completion", "size": 4},
    {"search": "greedy", "size": 4},
    {"constraint": SizeRange()},
    {"constraint": SizeRange(4, 6), "search": "local"},
    {"constraint": [], "size": 4},
    {"decide": "expected-jaccard"},
]


def draw_known(sets: Sets, seed: int = 0) -> tuple[Sets, Sets]:
    """Return at most two given items and at most one excluded one of each set."""
    draw = torch.rand(sets.layout.total, generator=torch.Generator().manual_seed(seed))
    order = torch.cat([x.argsort().argsort() for x in sets.with_values(draw)]) if sets.layout.total else draw.long()
    counts = torch.randint(3, (len(sets),), generator=torch.Generator().manual_seed(seed + 1))[sets.layout.ids]
    return sets.with_values(order < counts), sets.with_values(order == 2)


def as_lists(subsets: Sets) -> list[list[int]]:
    return [mask.nonzero()[:, 0].tolist() for mask in subsets]


@examples(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(4, 7) | st.just(0), min_size=1, max_size=4),
    options=st.sampled_from(OPTIONS),
)
@settings(max_examples=30)
def test_the_choice_holds_the_given_items_and_no_excluded_one(
    quick: SubsetSelector, seed: int, sizes: list[int], options: dict[str, Any]
) -> None:
    sets = Sets.from_lengths(torch.randn(sum(sizes), 2, generator=torch.Generator().manual_seed(seed)), sizes)
    inside, outside = draw_known(sets, seed)
    if "constraint" in options and 0 in sizes and options["constraint"] != []:
        options = {**options, "constraint": SizeRange()}
    picks = quick.predict(sets, given=inside, excluded=outside, **options)
    assert not (inside.values & ~picks.values).any()
    assert not (outside.values & picks.values).any()
    if "size" in options:
        # With one item excluded, a set of four has three to choose from.
        open_items = [len(mask) - int(mask.sum()) for mask in outside]
        assert subset_sizes(picks).tolist() == [min(4, n) for n in open_items]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_known_gives_the_same_choice_alone(quick: SubsetSelector, options: dict[str, Any]) -> None:
    sets = make_choices(10, seed=4).sets
    sets = sets.take(np.flatnonzero(sets.layout.host_lengths >= 5))
    inside, outside = draw_known(sets)
    together = quick.predict(sets, given=inside, excluded=outside, **options)
    for k in range(len(sets)):
        one = slice(k, k + 1)
        alone = quick.predict(sets[one], given=inside[one], excluded=outside[one], **options)
        assert torch.equal(alone.values, together[k])


def test_probabilities_of_known_items(quick: SubsetSelector) -> None:
    sets = make_choices(10, seed=3).sets
    inside, outside = draw_known(sets)
    p = quick.predict_proba(sets, given=inside, excluded=outside).values
    assert bool((p[inside.values] == 1).all()) and bool((p[outside.values] == 0).all())
    rest = ~(inside.values | outside.values)
    assert bool(((p > 0) & (p < 1))[rest].all())
    logits = quick.decision_function(sets, given=inside, excluded=outside)
    torch.testing.assert_close(torch.sigmoid(logits.values)[rest], p[rest])
    again = quick.predict(sets, given=inside, excluded=outside, scores=logits)
    assert torch.equal(again.values, quick.predict(sets, given=inside, excluded=outside).values)
    if quick.method not in ("direct",):
        free = quick.predict_proba(sets).values
        assert float((p - free)[rest].abs().max()) > 1e-6


def test_conditional_probabilities_are_gains_at_the_given_subset(conditional: SubsetSelector) -> None:
    sets = make_choices(10, seed=3).sets.to(torch.float64)
    inside, _ = draw_known(sets)
    gains = conditional.function_.gains(sets, inside)[0]
    p = conditional.predict_proba(sets, given=inside).values
    torch.testing.assert_close(p[~inside.values], torch.sigmoid(gains)[~inside.values])
    # Excluded items are not in the subset at which the gains are taken, so they change nothing for the others.
    _, outside = draw_known(sets)
    same = conditional.predict_proba(sets, given=inside, excluded=outside).values
    rest = ~(inside.values | outside.values)
    assert torch.equal(same[rest], p[rest])


def mean_field_by_hand(function, items, inside, outside, steps):
    """Return the logits of the items after some steps of mean field with the known items fixed, by enumeration."""
    count = len(items)
    masks = list(itertools.product([False, True], repeat=count))
    alone = Sets.from_lengths(items, [count])
    table = dict(zip(masks, function.value(alone, torch.tensor(masks))[:, 0].tolist(), strict=True))
    p, logits = [0.5] * count, [0.0] * count
    for _ in range(steps):
        p = [1.0 if i in inside else 0.0 if i in outside else p[i] for i in range(count)]
        for i in range(count):
            logits[i] = 0.0
            for mask in masks:
                rest = math.prod(p[j] if mask[j] else 1 - p[j] for j in range(count) if j != i)
                logits[i] += (1 if mask[i] else -1) * rest * table[mask]
        p = [1 / (1 + math.exp(-x)) for x in logits]
    return logits


@pytest.mark.parametrize("method", ["unrolled", "one-step", "implicit"])
def test_mean_field_with_known_items_is_that_of_the_function_with_the_items_fixed(choices, method: str) -> None:
    is_implicit = method == "implicit"
    options = {**TINY, "estimator": "exact", "steps": None if is_implicit else 3, "method": method, "max_epochs": 1}
    selector = SubsetSelector(**options).fit(*choices)
    if is_implicit:
        selector.model_.config = selector.model_.config.with_options(steps=200, tol=1e-12)
    sets = make_choices(5, seed=3).sets.to(torch.float64)
    inside, outside = draw_known(sets)
    logits = selector.decision_function(sets, given=inside, excluded=outside)
    for k, items in enumerate(sets):
        known = as_lists(inside)[k], as_lists(outside)[k]
        expected = mean_field_by_hand(selector.function_, items, *known, steps=60 if is_implicit else 3)
        rest = [i for i in range(len(items)) if i not in known[0] and i not in known[1]]
        assert logits[k][rest].tolist() == pytest.approx([expected[i] for i in rest], abs=1e-8)


def best_by_enumeration(logits, inside, outside, allows, level):
    """Return the allowed subset with the largest sum of logits above the level; known items have none."""
    count = len(logits)
    subsets = [
        set(chosen)
        for size in range(count + 1)
        for chosen in itertools.combinations(range(count), size)
        if set(inside) <= set(chosen) and not set(outside) & set(chosen) and allows(set(chosen))
    ]
    return max(subsets, key=lambda s: sum(logits[i] - level for i in s if i not in inside))


COSTS = [2, 1, 3, 1, 2, 1, 3]
LABELS = ["a", "b", "a", "b", "c", "a", "b"]


def make_limit(kind: str, sets: Sets) -> tuple[Any, Any]:
    """Return a constraint and the same as a function of one subset."""
    counts = sets.layout.host_lengths
    if kind == "budget":
        return Budget([COSTS[:n] for n in counts], budget=6), lambda s: sum(COSTS[i] for i in s) <= 6
    if kind == "groups":
        return Groups([LABELS[:n] for n in counts], at_most=1), lambda s: len({LABELS[i] for i in s}) == len(s)
    return SizeRange(2, 3), lambda s: 2 <= len(s) <= 3


@pytest.mark.parametrize("kind", ["budget", "groups", "sizes"])
@pytest.mark.parametrize("options", [{"size": 3}, {"threshold": 0.1}, {"threshold": 0.9}], ids=str)
def test_known_items_count_in_every_limit(unrolled: SubsetSelector, kind: str, options: dict[str, Any]) -> None:
    sets = make_choices(60, seed=3).sets.to(torch.float64)
    limit, allows = make_limit(kind, sets)
    known = draw_known(sets, seed=5)
    # Given items that can be completed under the limits, also to three items.
    places = [
        k
        for k, (inside, outside) in enumerate(zip(*map(as_lists, known), strict=True))
        if any(
            allows(set(s)) and set(inside) <= set(s) and not set(outside) & set(s)
            for s in itertools.combinations(range(len(sets[k])), 3)
        )
    ]
    sets, (inside, outside) = sets.take(np.array(places)), (x.take(np.array(places)) for x in known)
    limit, allows = make_limit(kind, sets)
    logits = unrolled.decision_function(sets, given=inside, excluded=outside)
    picks = unrolled.predict(sets, given=inside, excluded=outside, constraint=limit, **options)
    changed = 0
    for k, chosen in enumerate(map(set, as_lists(picks))):
        size, level = options.get("size"), options.get("threshold", 0.5)

        def is_allowed(s, size=size):
            return allows(s) and size in (None, len(s))

        arguments = (logits[k].tolist(), as_lists(inside)[k], as_lists(outside)[k])
        cut = math.log(level / (1 - level)) if size is None else 0.0
        assert chosen == best_by_enumeration(*arguments, is_allowed, cut)
        changed += chosen != best_by_enumeration(*arguments, lambda s, size=size: size in (None, len(s)), cut)
    # The limit matters, except that of sizes beside a size that it allows.
    assert len(places) >= 10 and (changed >= 3 or (kind == "sizes" and "size" in options))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0]], ids=str)
def test_known_items_do_not_move_the_cut_between_chosen_and_other_items(unrolled: SubsetSelector, order) -> None:
    """Beside the given item, the free choice is the item with 3, which costs too much; the next one has 2."""
    sets, place = Sets.from_lengths(torch.zeros(4, 2), [4]), order.index
    logits, costs = torch.tensor([0.0, 3.0, 2.0, 1.5])[order], np.array([1, 9, 1, 1])[order]
    picks = unrolled.predict(
        sets, given=[[place(0)]], size=2, constraint=Budget([costs], budget=2), scores=sets.with_values(logits)
    )
    assert as_lists(picks) == [sorted([place(0), place(2)])]
    # Without the excluded item the choice and its cut are those of the other three.
    picks = unrolled.predict(
        sets, excluded=[[place(0)]], size=1, constraint=Budget([costs], budget=2), scores=sets.with_values(logits)
    )
    assert as_lists(picks) == [[place(2)]]


def test_a_size_beyond_the_open_items_is_the_same_under_a_vacuous_constraint(quick: SubsetSelector) -> None:
    sets = make_choices(6, seed=3).sets
    inside, outside = draw_known(sets)
    free = quick.predict(sets, given=inside, excluded=outside, size=9)
    assert torch.equal(free.values, ~outside.values)
    limited = quick.predict(sets, given=inside, excluded=outside, size=9, constraint=SizeRange())
    assert torch.equal(limited.values, free.values)


def test_the_conditional_method_continues_from_what_is_given(stopping: SubsetSelector) -> None:
    sets = make_choices(12, seed=3).sets.to(torch.float64)
    inside, outside = draw_known(sets)
    bound = stopping.function_.bind(sets)
    known: dict[str, Any] = {"start": inside.values, "excluded": outside.values}
    with torch.no_grad():
        expected = choose_item_by_item(bound, cut=0.2, min_size=stopping.min_size_, **known).subsets
        sizes = torch.full((len(sets),), 3)
        fixed_size = choose_item_by_item(bound, sizes=sizes, **known).subsets
        completed = best_completion(bound, sizes.minimum(sets.lengths - 1), **known)
    arguments: dict[str, Any] = {"given": inside, "excluded": outside}
    for search in (None, "greedy"):
        assert torch.equal(stopping.predict(sets, search=search, **arguments).values, expected.values)
        assert torch.equal(stopping.predict(sets, search=search, size=3, **arguments).values, fixed_size.values)
    is_three = (sets.lengths > 3)[sets.layout.ids]
    by_completion = stopping.predict(sets, search="completion", size=3, **arguments)
    assert torch.equal(by_completion.values[is_three], completed.values[is_three])


def test_sizes_of_a_rule_include_the_given_items(conditional: SubsetSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for the size counts the given items, and gives way to them."""
    sets = make_choices(10, seed=3).sets
    inside, outside = draw_known(sets)
    for name in ("size_rule_", "completion_rule_"):
        monkeypatch.setattr(conditional, name, LinearSize(1.0, 0.0, 0.0))
    picks = conditional.predict(sets, given=inside, excluded=outside)
    expected = [max(1, conditional.min_size_, int(mask.sum())) for mask in inside]
    assert subset_sizes(picks).tolist() == expected


def test_forms_of_what_is_given(conditional: SubsetSelector) -> None:
    sets = make_choices(10, seed=3).sets
    inside, outside = draw_known(sets)
    forms: list[tuple[Any, Any]] = [
        (inside, outside),
        (as_lists(inside), as_lists(outside)),
        ([m.numpy() for m in inside], [m.tolist() for m in outside]),
        (inside.values, outside.values),
    ]
    picks = [conditional.predict(sets, given=a, excluded=b).values for a, b in forms]
    assert all(torch.equal(picks[0], other) for other in picks[1:])
    nothing: list[list[int]] = [[]] * len(sets)
    assert torch.equal(
        conditional.predict(sets, given=nothing, excluded=nothing).values, conditional.predict(sets).values
    )
    everything = conditional.predict(sets, given=[list(range(len(x))) for x in sets])
    assert bool(everything.values.all())
    assert not conditional.predict(sets, excluded=[list(range(len(x))) for x in sets]).values.any()


def test_score_with_given_items(conditional: SubsetSelector) -> None:
    choices = make_choices(10, seed=3)
    first = [mask.nonzero()[:1, 0].tolist() for mask in choices.subsets]
    expected = jaccard(conditional.predict(choices.sets, given=first), choices.subsets).mean()
    assert conditional.score(*choices, given=first) == pytest.approx(float(expected))


def test_no_sets_and_sets_without_items(quick: SubsetSelector) -> None:
    assert quick.predict([], given=[]).values.tolist() == []
    empty = quick.predict([torch.zeros(0, 2)] * 2, given=[[], []], excluded=[[], []])
    assert len(empty) == 2 and empty.values.tolist() == []


def test_wrong_arguments_raise(quick: SubsetSelector) -> None:
    sets = make_choices(3, seed=3).sets
    calls: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"given": [[0], [1, 2], []], "excluded": [[], [2], []]}, DataError, r"item 2 of set 1 \(both counted from 0"),
        ({"given": [[], [0, 1], []], "size": 1}, OptionError, r"2 items of set 1 .*more than size=1"),
        ({"given": [[], [0, 1], []], "size": [3, 1, 0]}, OptionError, r"2 items of set 1 .*more than size=1"),
        ({"given": [[], [0, 1], []], "size": 1, "constraint": SizeRange()}, OptionError, "2 items of set 1"),
        ({"given": [[0]]}, ShapeError, "1 subsets were given for 3 sets"),
        ({"given": [[9], [], []]}, DataError, "subset 0 contains index 9"),
        ({"given": [[0], [], []], "constraint": discrete.CardinalityRange()}, OptionError, "linear constraints"),
        ({"given": [[0], [], []], "recall": 0.5}, OptionError, "leave out given and excluded"),
    ]
    for arguments, error, message in calls:
        with pytest.raises(error, match=message):
            quick.predict(sets, **arguments)
    with pytest.raises(DataError, match="item 0 of set 0"):
        quick.sample(sets, given=[[0], [], []], excluded=[[0], [], []])

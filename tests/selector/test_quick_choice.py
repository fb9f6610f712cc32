"""Choices in single precision: the same as in double precision, which decides where it is close."""

from typing import Any

import pytest
import torch

from setgrad.functions import Modular
from setgrad.selector import SubsetSelector
from setgrad.selector._prediction import Chooser
from setgrad.selector.item_by_item import choose_item_by_item, path_steps
from setgrad.selector.sizes import SIZE_RULES, ExpectedJaccard, LinearSize, StopBelow
from setgrad.sets import Sets
from tests.selector.conftest import TINY, make_choices

RULES = [StopBelow(0.2), LinearSize(1.0, 0.2, 0.1), ExpectedJaccard(1.0, 0.0)]


@pytest.fixture(scope="module")
def selector(choices):
    return SubsetSelector(**TINY).fit(*choices)


@pytest.fixture
def slow(monkeypatch):
    """The numbers of sets that were chosen from in double precision."""
    counts: list[int] = []
    follow = Chooser.follow_path

    def noted(self: Chooser, *arguments: Any) -> tuple[Sets, torch.Tensor, torch.Tensor]:
        counts.append(len(self.sets))
        return follow(self, *arguments)

    monkeypatch.setattr(Chooser, "follow_path", noted)
    return counts


def counted(bound: Any) -> list[int]:
    """Count the evaluations of gains of a bound function: one entry for each."""
    calls: list[int] = []
    gains = bound.gains

    def told(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return gains(*arguments)

    bound.gains = told
    return calls


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("how", ["nothing", "given", "size", "sizes"])
def test_the_choice_is_that_of_double_precision(selector, slow, monkeypatch, rule, how):
    sets = make_choices(80, seed=4).sets
    monkeypatch.setattr(selector, "size_rule_", rule)
    monkeypatch.setattr(selector, "completion_rule_", rule)
    asked: dict[str, dict[str, Any]] = {
        "nothing": {},
        "given": {"given": [[0] if number % 3 else [] for number in range(80)], "excluded": [[1]] * 80},
        "size": {"size": 2},
        "sizes": {"size": [number % 4 for number in range(80)]},
    }
    options = asked[how]
    quick = selector.predict(sets, **options)
    assert sum(slow) < 20
    slow.clear()
    # With a margin as large as the gains nothing is clear enough.
    monkeypatch.setattr("setgrad.selector._quick_choice.MARGIN", 1e9)
    exact = selector.predict(sets, **options)
    assert sum(slow) > (0 if how == "sizes" else 60)
    assert torch.equal(quick.values, exact.values)


def test_the_choice_does_not_depend_on_the_batch(selector):
    """Among the sets are some with items that are alike, for which single precision may not decide."""
    sets = make_choices(60, seed=5).sets
    twins = Sets.from_list([torch.cat([x, x * (1 + 1e-7)]) for x in sets[:10]])
    sets = Sets.cat([sets, twins])
    together = selector.predict(sets)
    for number in range(len(sets)):
        alone = selector.predict(sets[number : number + 1])
        assert torch.equal(alone.values, together[number])
    order = torch.randperm(len(sets), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = selector.predict(sets.take(order))
    assert all(torch.equal(shuffled[place], together[number]) for place, number in enumerate(order))


@pytest.mark.parametrize(
    ("gains", "options", "sure"),
    [
        ([3.0, 1.0, 2.0], {"sizes": torch.tensor([2])}, True),
        # Which one is the second item is not clear.
        ([3.0, 1.0, 1.00001], {"sizes": torch.tensor([2])}, False),
        # For all three it does not matter.
        ([3.0, 1.0, 1.00001], {"sizes": torch.tensor([3])}, False),
        ([3.0, 1.0, 2.0], {"cut": 1.5}, True),
        # Nor whether the last one is above the cut.
        ([3.0, 1.0, 2.0], {"cut": 0.99999}, False),
        ([3.0, 1.0, 2.0], {"cut": 0.99}, True),
    ],
)
def test_a_margin_tells_close_decisions(gains, options, sure):
    bound = Modular().bind(Sets.from_list([[[gain] for gain in gains], [[5.0], [-5.0]]]))
    if "sizes" in options:
        options = {"sizes": torch.cat([options["sizes"], torch.tensor([1])])}
    path = choose_item_by_item(bound, **options, margin=1e-4)
    assert path.is_sure.tolist() == [sure, True]
    assert choose_item_by_item(bound, **options).is_sure.all()


@pytest.mark.parametrize("size", [1, 3, 10, 100])
def test_a_path_in_a_few_steps_has_its_size(size):
    values = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    bound = Modular().bind(Sets.from_lengths(values, [200]))
    first = bound.gains(torch.zeros(1, 200, dtype=torch.bool))[0]
    calls = counted(bound)
    path = choose_item_by_item(bound, sizes=torch.tensor([size]), steps=4)
    assert len(calls) <= 4
    best = values[:, 0].topk(size).indices.sort().values
    assert path.subsets.values.nonzero()[:, 0].tolist() == best.tolist()
    again = choose_item_by_item(bound, sizes=torch.tensor([size]), first=first)
    assert torch.equal(again.subsets.values, path.subsets.values)


def test_the_number_of_steps_of_a_path():
    values = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    for size in (5, 32, 64, 300):
        bound = Modular().bind(Sets.from_lengths(values, [400]))
        calls = counted(bound)
        choose_item_by_item(bound, sizes=torch.tensor([size]))
        assert path_steps(size) == pytest.approx(len(calls), rel=0.12)


def test_every_rule_is_tried():
    kinds = {kind for name, kind in SIZE_RULES.items() if name != "threshold"}
    assert {type(rule) for rule in RULES} == kinds

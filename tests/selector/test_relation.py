"""The relation: the part of F that compares items with the mean of their set."""

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector
from setgrad.selector._defaults import RELATION
from tests.selector.conftest import TINY, make_choices

ONCE = {**TINY, "max_epochs": 1}
UNROLLED = {**ONCE, "method": "unrolled"}


def rank(selector):
    (member,) = selector.model_.each()
    relation = member.function.relation
    result = 0 if relation is None else relation.items.out_features
    assert result == selector.model_.config.relation == selector.options_.relation
    return result


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, RELATION),
        ({"method": "implicit"}, RELATION),
        ({"relation": 0}, 0),
        ({"relation": 3}, 3),
        ({"phi": "mlp"}, 0),
        ({"phi": "mlp", "relation": 3}, 3),
        ({"method": "direct"}, 0),
        ({"method": "direct", "relation": 3}, 3),
    ],
)
def test_default_rank_with_few_sets(choices, options, wanted):
    assert rank(SubsetSelector(**{**ONCE, **options}).fit(*choices)) == wanted


def test_default_rank_with_many_sets():
    held_out = make_choices(10)
    for options, count, wanted in (
        (UNROLLED, 800, 0),
        (UNROLLED, 799, RELATION),
        ({**UNROLLED, "relation": 2}, 800, 2),
        (ONCE, 800, RELATION),
    ):
        assert rank(SubsetSelector(**options).fit(*make_choices(count), validation=held_out)) == wanted


def test_the_rank_of_a_start_is_kept(choices):
    first = SubsetSelector(**UNROLLED).fit(*make_choices(800), validation=choices)
    assert rank(SubsetSelector(**UNROLLED).fit(*choices, start=first)) == 0
    with pytest.raises(OptionError, match=r"selector in start .* relation is 0 there, 64 here"):
        SubsetSelector(**UNROLLED, relation=RELATION).fit(*choices, start=first)


def test_letters_have_no_relation():
    letters = torch.ones(8, 1100, dtype=torch.uint8)
    with pytest.raises(OptionError, match="these items are letters"):
        SubsetSelector(**TINY, phi="pair", relation=4).fit([letters[:4], letters[4:]], [[0], [1]])

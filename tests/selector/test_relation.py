"""When F compares items with the mean of their set, and what becomes of models that do and do not."""

import json

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._fit import RELATION
from tests.selector.conftest import TINY, make_choices

ONCE = {**TINY, "max_epochs": 1}


def rank(selector):
    (member,) = selector.model_.each()
    relation = member.function.relation
    made = 0 if relation is None else relation.items.out_features
    assert made == selector.model_.config.relation
    return made


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
def test_with_few_sets_the_default_has_one(choices, options, wanted):
    assert rank(SubsetSelector(**{**ONCE, **options}).fit(*choices)) == wanted


def test_with_many_sets_it_has_none():
    some = make_choices(10)
    assert rank(SubsetSelector(**ONCE).fit(*make_choices(800), validation=some)) == 0
    assert rank(SubsetSelector(**ONCE).fit(*make_choices(799), validation=some)) == RELATION
    assert rank(SubsetSelector(**ONCE, relation=2).fit(*make_choices(800), validation=some)) == 2


def test_a_start_says_whether_there_is_one(choices):
    first = SubsetSelector(**ONCE).fit(*make_choices(800), validation=choices)
    assert rank(SubsetSelector(**ONCE).fit(*choices, start=first)) == 0
    with pytest.raises(OptionError, match=r"selector to start from .* relation is 0 there, 64 here"):
        SubsetSelector(**ONCE, relation=RELATION).fit(*choices, start=first)


def test_models_of_before_are_read(choices, tmp_path):
    """Their configuration does not speak of a relation, and they have none."""
    old = SubsetSelector(**ONCE, relation=0).fit(*choices)
    old.save(tmp_path / "old")
    path = tmp_path / "old" / "config.json"
    config = json.loads(path.read_text())
    assert config["params"].pop("relation") == config["model"].pop("relation") == 0
    path.write_text(json.dumps(config))
    again = load(tmp_path / "old", device="cpu")
    assert rank(again) == 0
    torch.testing.assert_close(
        again.predict_proba(choices.sets).values, old.predict_proba(choices.sets).values, rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relation": -1}, "relation must be a whole number of at least 0"),
        ({"relation": 2.5}, "relation must be a whole number"),
        ({"relation": 4, "function": "inset"}, "function='inset' has no relation"),
    ],
)
def test_what_cannot_be_is_refused(choices, options, message):
    with pytest.raises(OptionError, match=message):
        SubsetSelector(**{**TINY, **options}).fit(*choices)


def test_letters_have_no_mean():
    letters = torch.ones(8, 1100, dtype=torch.uint8)
    with pytest.raises(OptionError, match="these items are letters"):
        SubsetSelector(**TINY, phi="pair", relation=4).fit([letters[:4], letters[4:]], [[0], [1]])

"""With few sets `relation=None` trains with and without two terms of F, and keeps the better model."""

import pytest
import torch

import setgrad
from setgrad.errors import FileFormatError
from setgrad.selector import SizeRange, SubsetSelector
from setgrad.selector._defaults import RELATION
from setgrad.selector._separate_members import SeparateMembers
from setgrad.selector.metrics import is_clear
from tests.selector.conftest import TINY, make_choices

OPTIONS = {**TINY, "max_epochs": 4, "learning_rate": 1e-2, "patience": 1}


@pytest.fixture
def compared(monkeypatch):
    """Whether the model without the terms was better, in each fit of a test that compared two."""
    found = []
    load = SeparateMembers.load_best

    def noted(self):
        load(self)
        if len(self.models) > 1:
            found.append(self.model is self.models[1])

    monkeypatch.setattr(SeparateMembers, "load_best", noted)
    return found


@pytest.fixture
def decide(monkeypatch):
    """Let the other model be better, or not."""

    def set_to(is_better):
        monkeypatch.setattr("setgrad.selector._separate_members.is_clear", lambda gains, errors: is_better)

    return set_to


def fit(choices, **options):
    return SubsetSelector(**{**OPTIONS, **options}).fit(*choices, validation=make_choices(40, seed=5))


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(("is_better", "relation"), [(True, 0), (False, RELATION)])
def test_the_model_that_is_kept_is_that_of_a_fit_with_its_terms(
    choices, decide, tmp_path, members, is_better, relation
):
    alone = fit(choices, members=members, relation=relation, pairs=not is_better)
    decide(is_better)
    kept = fit(choices, members=members)
    assert (kept.options_.relation, kept.options_.pairs) == (relation, not is_better)
    assert [{**record, "seconds": 0} for record in kept.history_] == [
        {**record, "seconds": 0} for record in alone.history_
    ]
    assert (kept.best_epoch_, kept.validation_score_) == (alone.best_epoch_, alone.validation_score_)
    assert (kept.size_rule_, kept.start_weight_) == (alone.size_rule_, alone.start_weight_)
    for name, value in alone.model_.state_dict().items():
        assert torch.equal(value, kept.model_.state_dict()[name])
    kept.save(tmp_path / "model")
    sets = make_choices(10, seed=9).sets
    loaded = setgrad.load(tmp_path / "model", device="cpu")
    assert torch.equal(loaded.predict_proba(sets).values, alone.predict_proba(sets).values)


def test_the_scores_of_the_validation_sets_decide(choices, monkeypatch, compared):
    gains = []

    def noted(x, errors):
        gains.append(x)
        return is_clear(x, errors)

    monkeypatch.setattr("setgrad.selector._separate_members.is_clear", noted)
    for seed in range(4):
        other, usual = (
            fit(choices, relation=relation, pairs=relation > 0, random_state=seed) for relation in (0, RELATION)
        )
        fit(choices, random_state=seed)
        difference = other.validation_score_ - usual.validation_score_
        assert float(gains[-1].mean()) == pytest.approx(difference, abs=1e-4)
    assert compared == [is_clear(x, 1.0) for x in gains] and len(gains) == 4


def test_a_run_that_is_resumed_gives_the_same_result(choices, decide, tmp_path):
    decide(True)
    path, whole = tmp_path / "state", fit(choices)
    for epochs in (1, 2, OPTIONS["max_epochs"]):
        resumed = fit(choices, max_epochs=epochs, checkpoint=path)
    assert resumed.options_.relation == 0
    for name, value in whole.model_.state_dict().items():
        assert torch.equal(value, resumed.model_.state_dict()[name])
    with pytest.raises(FileFormatError, match="belongs to other data or other options"):
        fit(choices, relation=RELATION, checkpoint=path)


def test_a_term_for_pairs_that_was_asked_for_stays(choices, decide):
    decide(True)
    for pairs in (True, False):
        kept = fit(choices, max_epochs=1, pairs=pairs)
        assert (kept.options_.relation, kept.options_.pairs) == (0, pairs)


@pytest.mark.parametrize(
    "options",
    [{"relation": RELATION}, {"method": "unrolled"}, {"phi": "mlp"}, {"trees": True}],
    ids=lambda options: next(iter(options)),
)
def test_other_fits_train_one_model(choices, compared, options):
    fit(choices, **{"max_epochs": 1, **options})
    assert not compared


def test_one_model_is_trained_with_a_constraint_a_start_few_validation_sets_or_many_sets(choices, compared):
    first = SubsetSelector(**{**OPTIONS, "max_epochs": 1})
    first.fit(*choices, validation=make_choices(29))
    held_out = make_choices(40)
    SubsetSelector(**{**OPTIONS, "max_epochs": 1}).fit(*choices, validation=held_out, start=first)
    SubsetSelector(**{**OPTIONS, "max_epochs": 1}).fit(*choices, validation=held_out, constraint=SizeRange(1, 6))
    SubsetSelector(**{**OPTIONS, "max_epochs": 1}).fit(*make_choices(800), validation=held_out)
    assert not compared

"""The promise about recall: its threshold by brute force, its guarantee over random splits, its place in a model."""

import math
import warnings
from typing import Any

import pytest
import torch

import setgrad
from setgrad.errors import FileFormatError, NotFittedError, OptionError
from setgrad.selector import SizeRange, SubsetSelector
from setgrad.selector._recall import RecallCalibration
from setgrad.sets import Sets
from tests.selector.conftest import TINY, make_choices


def draw_world(count, seed, share=0.6):
    """Return exchangeable sets of 1 to 6 items: scores, and subsets that are likelier where scores are high."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (count,), generator=generator)
    scores = torch.randn(int(lengths.sum()), generator=generator, dtype=torch.float64)
    draw = torch.rand(scores.shape, generator=generator, dtype=torch.float64)
    return Sets.from_lengths(scores, lengths.tolist()), Sets.from_lengths(
        draw < share * torch.sigmoid(2 * scores), lengths.tolist()
    )


def lost(scores, subsets, threshold):
    """Return, for each set, the share of the chosen items with a score below the threshold."""
    shares = []
    for x, mask in zip(scores, subsets, strict=True):
        chosen = x[mask].tolist()
        shares.append(sum(value < threshold for value in chosen) / len(chosen) if chosen else 0.0)
    return shares


def brute_force(scores, subsets, recall):
    """Return the largest threshold that keeps the promise, out of all that make a difference."""
    count = len(subsets)
    kept = [
        t
        for t in (*scores.values.tolist(), math.inf)
        if (sum(lost(scores, subsets, t)) + 1) / (count + 1) <= 1 - recall + 1e-12
    ]
    return max(kept, default=None)


@pytest.mark.parametrize("recall", [0.3, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.6, 0.05], ids=["usual", "few chosen items"])
def test_the_threshold_equals_brute_force(recall, seed, share):
    scores, subsets = draw_world(12, seed, share)
    # With ties between and within sets.
    scores = scores.with_values((4 * scores.values).round() / 4) if seed % 2 else scores
    expected = brute_force(scores, subsets, recall)
    calibration = RecallCalibration.of(scores.values, subsets)
    if expected is None:
        with pytest.warns(RuntimeWarning, match="too few"):
            assert calibration.threshold(recall) == -math.inf
        return
    threshold = calibration.threshold(recall)
    # Items that nobody chose make no difference to the promise: what counts is which chosen items are kept.
    chosen = scores.values[subsets.values]
    assert torch.equal(chosen >= threshold, chosen >= expected)
    assert (sum(lost(scores, subsets, threshold)) + 1) / 13 <= 1 - recall + 1e-12


def test_thresholds_by_hand():
    """Nine sets with one chosen item each; one lost set is 0.1 of ten, and so is the new set itself."""
    subsets = Sets.from_list([torch.tensor([True, False])] * 9)
    calibration = RecallCalibration.of(torch.arange(18.0).flip(0), subsets)
    assert [calibration.threshold(recall) for recall in (0.9, 0.8, 0.7, 0.1)] == [1.0, 3.0, 5.0, 17.0]
    with pytest.warns(
        RuntimeWarning, match=r"9 calibration sets are too few to promise recall=0\.95.*at least 19 sets"
    ):
        assert calibration.threshold(0.95) == -math.inf


@pytest.mark.parametrize(("recall", "count"), [(0.6, 2), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_the_number_of_sets_in_the_warning_is_enough_and_not_too_many(recall, count):
    enough, few = (
        RecallCalibration.of(torch.ones(n), Sets.from_list([torch.tensor([True])] * n)) for n in (count, count - 1)
    )
    assert enough.threshold(recall) == 1.0
    with pytest.warns(RuntimeWarning, match=f"give calibrate_recall at least {count} sets"):
        few.threshold(recall)


def test_sets_of_which_nothing_was_chosen_count_as_recalled():
    """With enough of them nothing need be chosen, and that takes no warning."""
    nothing = Sets.from_list([torch.tensor([False])] * 9)
    assert RecallCalibration.of(torch.zeros(9), nothing).threshold(0.9) == math.inf
    one = Sets.from_list([torch.tensor([True]), *[torch.tensor([False])] * 9])
    calibration = RecallCalibration.of(torch.zeros(10), one)
    assert (calibration.threshold(0.9), calibration.threshold(0.8)) == (0.0, math.inf)


@pytest.mark.parametrize("recall", [0.6, 0.9])
def test_the_expected_recall_of_a_new_set_is_what_was_asked_for(recall):
    """Over many splits of exchangeable sets: at least the promise, and at most 2 / (n + 1) more."""
    n, splits = 19, 3000
    scores, subsets = draw_world((n + 1) * splits, seed=3)
    totals = []
    for k in range(splits):
        part = slice((n + 1) * k, (n + 1) * k + n)
        threshold = RecallCalibration.of(scores[part].values, subsets[part]).threshold(recall)
        new = (n + 1) * k + n
        chosen = scores[new][subsets[new]]
        totals.append(float((chosen >= threshold).double().mean()) if len(chosen) else 1.0)
    result = torch.tensor(totals, dtype=torch.float64)
    error = 4 * float(result.std()) / math.sqrt(splits)
    assert recall - error <= float(result.mean()) <= recall + 2 / (n + 1) + error


# ---- in a selector


@pytest.fixture(scope="module", params=["conditional", "unrolled"])
def selector(request, choices):
    return SubsetSelector(**{**TINY, "max_epochs": 2, "method": request.param}).fit(*choices)


def mean_recall(picks, subsets):
    pairs = [(a, b) for a, b in zip(picks, subsets, strict=True) if b.any()]
    return sum(float((a & b).sum() / b.sum()) for a, b in pairs) / len(pairs)


def test_predict_chooses_the_items_above_the_threshold(selector, choices):
    sets, new = choices.sets, make_choices(300, seed=7)
    for recall in (0.5, 0.8):
        level = selector.recall_.threshold(recall)
        picks = selector.predict(sets, recall=recall)
        assert torch.equal(picks.values, selector.decision_function(sets).values.double() >= level)
        scores = selector.decision_function(sets)
        assert torch.equal(picks.values, selector.predict(sets, recall=recall, scores=scores).values)
    again = make_calibrated(selector, new)
    for recall in (0.5, 0.8, 0.95):
        # 300 calibration sets and 300 new ones: three standard errors of a share are less than 0.09.
        result = mean_recall(again.predict(make_choices(300, seed=8).sets, recall=recall), make_choices(300, 8).subsets)
        assert recall - 0.09 <= result <= recall + 0.09


def make_calibrated(selector, choices):
    before = selector.recall_
    again = selector.calibrate_recall(*choices)
    assert again is selector and selector.recall_ is not before
    return again


def test_a_fit_calibrates_on_its_validation_sets(choices):
    validation = make_choices(25, seed=4)
    selector = SubsetSelector(**{**TINY, "max_epochs": 1, "method": "conditional"}).fit(*choices, validation=validation)
    fitted = selector.recall_
    assert fitted is not None and fitted.count == 25
    selector.calibrate_recall(*validation)
    assert selector.recall_ is not None
    torch.testing.assert_close(selector.recall_.logits, fitted.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(selector.recall_.shares.sort().values, fitted.shares.sort().values)


def test_too_few_sets_warn_and_choose_everything(selector, choices):
    make_calibrated(selector, make_choices(3, seed=4))
    with pytest.warns(RuntimeWarning, match="3 calibration sets are too few to promise recall=0.9"):
        picks = selector.predict(choices.sets, recall=0.9)
    assert bool(picks.values.all())


def test_a_calibration_is_saved_with_the_model(selector, choices, tmp_path):
    make_calibrated(selector, choices)
    selector.save(tmp_path / "model")
    loaded = setgrad.load(tmp_path / "model", device="cpu")
    for name in ("logits", "shares", "count"):
        a, b = (getattr(s.recall_, name) for s in (selector, loaded))
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    sets = make_choices(10, seed=5).sets
    assert torch.equal(loaded.predict(sets, recall=0.7).values, selector.predict(sets, recall=0.7).values)


def test_models_without_a_calibration_say_what_to_do(selector, choices, tmp_path):
    make_calibrated(selector, choices)
    before, selector.recall_ = selector.recall_, None
    selector.save(tmp_path / "model")
    selector.recall_ = before
    loaded = setgrad.load(tmp_path / "model", device="cpu")
    assert loaded.recall_ is None
    with pytest.raises(OptionError, match=r"call calibrate_recall\(sets, subsets\) first"):
        loaded.predict(choices.sets, recall=0.5)
    picks = loaded.calibrate_recall(*choices).predict(choices.sets, recall=0.5)
    assert torch.equal(picks.values, selector.predict(choices.sets, recall=0.5).values)


def test_an_incomplete_calibration_is_a_damaged_file(selector, choices, tmp_path):
    from safetensors.torch import load_file, save_file

    make_calibrated(selector, choices)
    selector.save(tmp_path / "model")
    path = tmp_path / "model" / "weights.safetensors"
    tensors = load_file(path)
    del tensors["recall.shares"]
    save_file(tensors, path)
    with pytest.raises(FileFormatError, match="model"):
        setgrad.load(tmp_path / "model", device="cpu")


def test_wrong_arguments_raise(selector, choices):
    sets = choices.sets
    for wrong in (0, 1, 1.5, -0.1, True, "a"):
        with pytest.raises(OptionError, match="recall must be a number above 0 and below 1"):
            selector.predict(sets, recall=wrong)
    others: list[dict[str, Any]] = [{"size": 1}, {"threshold": 0.5}, {"search": "greedy"}, {"constraint": SizeRange()}]
    for other in others:
        (name,) = other
        with pytest.raises(OptionError, match=f"recall determines the whole subset; leave out {name}"):
            selector.predict(sets, recall=0.5, **other)
    for name in ("given", "excluded"):
        with pytest.raises(OptionError, match="nothing is known; leave out given and excluded"):
            selector.predict(sets, recall=0.5, **{name: [[]] * len(sets)})
    with pytest.raises(NotFittedError):
        SubsetSelector().calibrate_recall(*choices)


def test_no_warning_where_the_promise_can_be_kept(selector, choices):
    make_calibrated(selector, choices)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not selector.predict(choices.sets, recall=0.5).values.all()

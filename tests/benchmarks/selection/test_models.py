"""Encoders and scores of the models: inference by name, baselines against counts by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.lib.records import RunContext
from benchmarks.selection.baselines import alike, applies, popularity, score_baseline
from benchmarks.selection.fits import Job, fit
from benchmarks.selection.inference import infer, inferences, score_selector
from benchmarks.selection.models import MODELS, describe, make_selector, options_of
from benchmarks.selection.tasks import expand, load_split
from setgrad import SubsetSelector
from setgrad.datasets import Task, load_task
from setgrad.selector import PRESETS
from setgrad.sets import Choices


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("moons", n_train=40, n_validation=20, n_test=20)


def _fitted(task: Task, **options: Any) -> SubsetSelector:
    small = dict[str, Any](dim=16, hidden=(16,), max_epochs=2, random_state=0, verbose=0, device="cpu")
    return SubsetSelector(**{**small, **options}).fit(*task.train, validation=task.validation)


def test_presets_get_the_published_encoders_and_ours_the_same_with_attention() -> None:
    for model in MODELS:
        theirs = model in PRESETS
        assert options_of(model, "anomaly:mnist")["phi"] == ("image" if theirs else "pixel-cnn+context")
        assert options_of(model, "compounds:davis:diverse")["phi"] == ("pair" if theirs else "pair+context")
        assert options_of(model, "compounds:davis:diverse")["batch_size"] == 16
        for vectors in ("moons", "anomaly:mnist:pixels"):
            assert options_of(model, vectors).get("phi") == MODELS[model].get("phi")
            assert options_of(model, vectors)["members"] == MODELS[model]["members"]


def test_model_is_a_selector_with_its_options() -> None:
    options = options_of("conditional", "anomaly:mnist", tuned={"dim": 64})
    selector = make_selector(options, seed=3, device="cpu")
    assert (selector.phi, selector.dim, selector.random_state) == ("pixel-cnn+context", 64, 3)
    assert "pixel-cnn+context" in describe(options)


def test_own_scores_are_those_of_the_selector(task: Task) -> None:
    selector = _fitted(task)
    found = score_selector(selector, task.test)
    assert found["true_size"] == pytest.approx(100 * selector.score_true_size(*task.test))
    assert found["own_size"] == pytest.approx(100 * selector.score(*task.test))


@pytest.mark.parametrize("name", ["diffmf", "idiffmf-2", "equivset-copula"])
def test_named_inference_equals_that_of_a_selector(task: Task, name: str) -> None:
    selector = _fitted(task, **{**PRESETS[name], "dim": 16, "hidden": (16,), "max_epochs": 2})
    own = selector.model_.config
    ways = inferences(own)
    assert (ways["one_step"].options.steps, ways["converged"].options.method) == (1, "implicit")
    assert (ways["one_step"] == own) == (name != "idiffmf-2")
    assert (ways["converged"] == own) == (name == "idiffmf-2")
    logits, _ = infer(selector, own, task.test.sets)
    assert torch.equal(logits.values, selector.decision_function(task.test.sets).values)
    _, share = infer(selector, ways["converged"], task.test.sets)
    assert share is not None and 0 <= share <= 1
    # The fitted model itself is left as it was.
    assert selector.model_.config == own == selector._precise().config


def test_direct_has_nothing_to_iterate(task: Task) -> None:
    found = score_selector(_fitted(task, method="direct"), task.test)
    assert found["one_step"] is found["converged"] is None


def test_popularity_counts_choices_of_training() -> None:
    train = _choices([[1, 2, 3], [1, 2, 4]], [[0, 1], [0]])
    test = _choices([[4, 2, 1, 9]], [[2]])
    task = Task("made", "", train, test, test, "")
    scores = popularity(task, 0)(test)
    # Chosen: 1 twice, 2 once, the others never.
    assert scores.argsort(descending=True)[:2].tolist() == [2, 1]
    assert scores.exp().round().tolist() == [1, 2, 3, 1]
    assert score_baseline("popularity", task, 0)["true_size"] == 100


def test_chance_has_the_expected_score() -> None:
    found = score_baseline("chance", load_task("gaussian", n_train=0, n_validation=200, n_test=500), 0)
    # 10 of 100 by chance: the mean overlap of 1 gives about 1 / 19.
    assert 4.5 < found["true_size"] < 7


def test_folds_of_a_worker_are_those_of_the_data(data_dir: Path) -> None:
    first, again = (
        load_split("amazon:safety:farthest", splits="folds", number=1, data_dir=str(data_dir), quick=False)
        for _ in range(2)
    )
    assert first is again
    assert (len(first.train), len(first.validation), len(first.test)) == (160, 53, 54)
    whole = load_split("amazon:safety:farthest", splits="published", number=1, data_dir=str(data_dir), quick=False)
    assert len(whole.train) == 89


def test_people_are_drawn_for_each_seed_and_are_in_one_part(data_dir: Path) -> None:
    people = []
    for number in range(2):
        task = load_split("anomaly:olivetti", splits="drawn", number=number, data_dir=str(data_dir), quick=True)
        parts = [set((np.asarray(part.item_ids) // 10).tolist()) for part in (task.train, task.validation, task.test)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        people.append(parts[2])
    assert people[0] != people[1]


def test_pixels_are_the_same_sets_as_vectors(data_dir: Path) -> None:
    images, vectors = (
        load_split(name, splits="drawn", number=1, data_dir=str(data_dir), quick=True)
        for name in ("anomaly:olivetti", "anomaly:olivetti:pixels")
    )
    for part in ("train", "validation", "test"):
        before, after = getattr(images, part), getattr(vectors, part)
        assert tuple(after.sets.item_shape) == (64 * 64,)
        assert torch.equal(after.sets.values.reshape(before.sets.values.shape), before.sets.values)
        assert torch.equal(after.subsets.values, before.subsets.values)
        assert np.array_equal(after.item_ids, before.item_ids)


def test_outliers_are_far_from_the_mean_of_their_set() -> None:
    test = _choices([[1, 2, 9], [50, 51, 52, 40], []], [[2], [3], []])
    task = Task("made", "", test, test, test, "")
    assert score_baseline("outlier", task, 0)["true_size"] == 100
    assert applies("outlier", "anomaly:mnist") and not applies("outlier", "amazon:toys:random")


def test_the_items_most_alike_are_found_together() -> None:
    # By itself the fourth item scores best, as it lies between two pairs; the pair to find is the closer one.
    angles = [[0.0, 0.5, 1.5, 0.9, 1.6], [0.2, 2.0, 0.1], []]
    items = [[[math.cos(angle), math.sin(angle)] for angle in row] for row in angles]
    test = Choices.of(items, [[2, 4], [0, 2], []])
    task = Task("made", "", test, test, test, "")
    assert int(alike(task, 0)(test)[:5].argmax()) == 3
    assert score_baseline("alike", task, 0)["true_size"] == 100
    assert applies("alike", "bundles:food") and not applies("alike", "moons")


@pytest.mark.parametrize("model", ["conditional", "idiffmf-2", "horse"])
def test_images_are_fitted(model: str, data_dir: Path) -> None:
    record = fit(Job("anomaly:olivetti", model, 0, quick=True), RunContext("cpu", str(data_dir)))
    assert 0 <= record["true_size"] <= 100


def test_a_full_task_name_is_not_expanded() -> None:
    assert expand(["compounds:kiba:active"], [], []) == ["compounds:kiba:active"]
    assert expand(["amazon:toys:random", "moons"], [], []) == ["amazon:toys:random", "moons"]
    assert expand(["anomaly:mnist"], [], []) == ["anomaly:mnist"]
    assert set(expand(["anomaly"], [], [])) == {
        f"anomaly:{pictures}{kind}" for pictures in ("mnist", "olivetti") for kind in ("", ":pixels")
    }
    assert expand(["anomaly:mnist:pixels"], [], []) == ["anomaly:mnist:pixels"]


def _choices(ids: list[list[int]], chosen: list[list[int]]) -> Choices:
    choices = Choices.of([[[float(i)] for i in row] for row in ids], chosen)
    return Choices(choices.sets, choices.subsets, item_ids=[i for row in ids for i in row])

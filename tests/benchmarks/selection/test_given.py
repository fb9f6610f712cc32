"""Completion: rivals against loops and counts by hand, the scores, and the benchmark end to end with a stub."""

from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from benchmarks.__main__ import main
from benchmarks.selection import fitted
from benchmarks.selection.given import by_number, lead_table, score_completion, task_table
from benchmarks.selection.given_rivals import (
    RIVALS,
    alike,
    co_occurrence,
    complete,
    is_rival_for,
    nearest,
    reveal_order,
)
from benchmarks.selection.variants import make_trial
from setgrad.datasets import Task, clusters
from setgrad.sets import Choices, Sets, subset_sizes


def _choices(ids: list[list[int]], chosen: list[list[int]]) -> Choices:
    choices = Choices.of([[[float(i), 1.0] for i in row] for row in ids], chosen)
    return Choices(choices.sets, choices.subsets, item_ids=[i for row in ids for i in row])


def _mask(choices: Choices, items: list[list[int]]) -> Sets:
    return Choices.of(choices.sets, items).subsets


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def small() -> Task:
    return clusters(n_train=40, n_validation=20, n_test=30)


def test_items_that_were_chosen_together_follow_each_other() -> None:
    # Chosen: {1, 2}, {1, 2}, {1, 3}, {3}, {5}. Item 4 is never chosen, item 9 is unknown.
    train = _choices([[1, 2, 4]] * 2 + [[1, 3, 4]] + [[3, 4]] + [[5, 4]], [[0, 1], [0, 1], [0, 1], [0], [0]])
    test = _choices([[9, 3, 2, 4, 1, 5], [1, 3]], [[2, 4], [0]])
    score = co_occurrence(Task("made", "", train, test, test, ""), 0)
    scores = score(test, _mask(test, [[4], []]))
    # 1 was chosen three times, 2 twice and always with it, 3 twice and once with it.
    assert scores[2].item() == pytest.approx(1 + 2 / np.sqrt(6))
    assert scores[1].item() == pytest.approx(1 + 1 / np.sqrt(6))
    # Never seen with it: by popularity, below all that were.
    assert 1 > scores[5] > max(scores[0], scores[3])
    # Without a given item popularity counts: 1 before 3.
    assert scores[6] > scores[7]
    # The mean over two given items, 1 and the unknown 9.
    assert score(test, _mask(test, [[0, 4], []]))[2].item() == pytest.approx(1 + 1 / np.sqrt(6))


def test_nearest_is_the_mean_cosine_with_the_given_items(small: Task) -> None:
    test = small.test
    given = _mask(test, [[0, 2] if number % 3 else [] for number in range(len(test))])
    scores = test.sets.with_values(nearest(small, 0)(test, given))
    for items, shown, found in zip(test.sets, given, scores, strict=True):
        known = items[shown] if shown.any() else items
        truth = torch.stack([cosine_similarity(item[None].double(), known.double()).mean() for item in items])
        torch.testing.assert_close(found, truth)


def test_one_given_item_completes_a_cluster(small: Task) -> None:
    test = small.test
    sizes = torch.as_tensor(subset_sizes(test.subsets))
    order = reveal_order(test.subsets, _generator())
    given = test.subsets.with_values(test.subsets.values & (order < 1))
    for rival in ("nearest", "alike"):
        chosen = RIVALS[rival](small, 0)(test, sizes, given)
        right = [bool((a == b).all()) for a, b in zip(chosen, test.subsets, strict=True)]
        assert np.mean(right) > 0.9


def test_the_most_alike_subset_contains_what_is_given() -> None:
    angles = [0.0, 0.1, 1.0, 1.05, 2.0]
    test = Choices.of([[[np.cos(angle), np.sin(angle)] for angle in angles]], [[0, 1]])
    fill = alike(Task("made", "", test, test, test, ""), 0)
    for shown, best in (([], [2, 3]), ([0], [0, 1]), ([4], [3, 4]), ([0, 4], [0, 4])):
        found = fill(test, torch.tensor([2]), _mask(test, [shown]))
        assert found.values.nonzero()[:, 0].tolist() == best


def test_given_items_are_taken_first() -> None:
    test = _choices([[1, 2, 3, 4], [5, 6]], [[0, 1], [0]])
    scores = torch.tensor([3.0, 2.0, 1.0, 0.0, 1.0, 0.0])
    found = complete(scores, test.sets, torch.tensor([2, 1]), _mask(test, [[3], []]))
    assert found.values.tolist() == [True, False, False, True, True, False]


def test_items_are_revealed_at_random_one_after_the_other() -> None:
    subsets = Choices.of(torch.zeros(2000, 5, 1), [[0, 2, 4]] * 2000).subsets
    order = reveal_order(subsets, _generator()).reshape(2000, 5)
    assert (order[:, [0, 2, 4]].sort(1).values == torch.arange(3)).all()
    assert (order[:, [1, 3]] >= 3).all()
    # Each of the three is first as often; the standard deviation is 0.011.
    assert ((order[:, [0, 2, 4]] == 0).double().mean(0) - 1 / 3).abs().max() < 0.045


def test_trees_learn_from_partial_subsets() -> None:
    pytest.importorskip("lightgbm")
    task = clusters(n_train=200, n_validation=60, n_test=60)
    scores = score_completion(RIVALS["lightgbm-given"](task, 0), task.test, seed=0)
    assert scores["found"]["1"] > 90 > 60 > scores["found"]["0"]


def test_scores_of_oracles(small: Task) -> None:
    test = small.test
    sizes = subset_sizes(test.subsets)
    right = score_completion(lambda choices, wanted, given: choices.subsets, test, seed=0)
    assert set(right["jaccard"].values()) == set(right["found"].values()) == {100.0}
    # Half of 3 to 5 items are 1 or 2; three given items would need six.
    assert right["sets"] == {"0": 30, "1": 30, "2": int((sizes >= 4).sum())}
    # Only the given ones: nothing is found, and Jaccard is their share.
    stuck = score_completion(lambda choices, wanted, given: given, test, seed=0)
    assert set(stuck["found"].values()) == {0.0}
    assert stuck["jaccard"]["0"] == 0
    assert stuck["jaccard"]["1"] == pytest.approx(float((100 / np.asarray(sizes)).mean()))


def test_given_items_belong_to_the_subset_and_grow(small: Task) -> None:
    seen: list[list[list[int]]] = []

    def spy(choices: Choices, sizes: torch.Tensor, given: Sets) -> Sets:
        assert bool((choices.subsets.values | ~given.values).all())
        assert sizes.tolist() == subset_sizes(choices.subsets).tolist()
        seen.append([mask.nonzero()[:, 0].tolist() for mask in given])
        return choices.subsets

    for _ in range(2):
        score_completion(spy, small.test, seed=3)
    assert seen[:3] == seen[3:]
    assert [{len(row) for row in rows} for rows in seen[:3]] == [{0}, {1}, {2}]
    sizes = subset_sizes(small.test.subsets)
    first = [row for row, size in zip(seen[1], sizes, strict=True) if size >= 4]
    assert all(set(one) < set(two) for one, two in zip(first, seen[2], strict=True))


def test_rivals_are_used_where_they_can_be() -> None:
    assert is_rival_for("co-occurrence", "bundles:food") and not is_rival_for("co-occurrence", "clusters")
    assert is_rival_for("alike", "clusters") and not is_rival_for("alike", "amazon:toys:random")
    for name in ("nearest", "chance", "lightgbm", "lightgbm-given"):
        assert is_rival_for(name, "clusters") and is_rival_for(name, "amazon:toys:random")


def _record(model: str, seed: int, scores: list[float], task: str = "clusters") -> dict[str, Any]:
    values = {str(number): score for number, score in enumerate(scores)}
    return {"task": task, "model": model, "seed": seed, "splits": "drawn", "jaccard": values, "found": values}


def test_tables_by_hand() -> None:
    records = [
        *(_record("conditional", seed, [30.0 + seed, 99.0 + seed]) for seed in range(2)),
        *(_record("nearest", seed, [33.0, 90.0]) for seed in range(2)),
        *(_record("chance", seed, [20.0, 95.0 + seed]) for seed in range(2)),
    ]
    values = by_number(records, "jaccard")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lead_table(values, "conditional", "best rival", RIVALS).splitlines()
    ]
    # Differences 31 - 33 and 30 - 33; then twice 4, without a spread.
    assert rows[2] == ["clusters", "-2.5 = -5.0 se (nearest)", "+4.0 = +inf se (chance)"]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in task_table(values, "clusters").splitlines()
    ]
    assert rows[0] == ["given", "0", "1"]
    assert rows[2] == ["conditional", "30.5 ± 0.7", "99.5 ± 0.7"]
    assert [row[0] for row in rows[2:]] == ["conditional", "nearest", "chance"]


@final
class _Stub:
    """A selector that takes the given items and those nearest to them."""

    def fit(self, sets: Sets, subsets: Sets, *, validation: Choices) -> "_Stub":
        self.task = Task("stub", "", Choices(sets, subsets), validation, validation, "")
        return self

    def predict(self, sets: Sets, *, size: list[int], given: Sets) -> Sets:
        known = Choices(sets, given)
        return complete(nearest(self.task, 0)(known, given), sets, torch.tensor(size), given)


def test_runs_resumes_and_renders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitted, "make_selector", lambda options, *, seed, device: _Stub())
    results = tmp_path / "g.jsonl"
    run = ["given", "--quick", "--device", "cpu", "--results", str(results)]
    assert main([*run, "--models", "conditional,nearest"]) == 0
    assert "0 of 4 trials" in capsys.readouterr().out
    assert main([*run, "--models", "conditional,nearest,alike,chance"]) == 0
    shown = capsys.readouterr().out
    assert "4 of 8 trials" in shown and "+0.0 = +0.0 se (nearest)" in shown
    page = results.with_suffix(".md").read_text()
    assert page.startswith("# Completion: some items are given")
    assert results.with_suffix(".png").exists() == ("g.png" in page)
    assert main(["given", "--table", str(results)]) == 0
    assert capsys.readouterr().out.strip() == page.strip()


def test_options_of_a_model_are_part_of_its_trial() -> None:
    trial = make_trial("amazon:toys:random", "conditional", 1, quick=False)
    assert '"method": "conditional"' in trial.options and trial.splits == "folds"
    assert make_trial("clusters", "nearest", 1, quick=False).splits == "drawn"


def test_bundles_and_registries_are_completed(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr("benchmarks.selection.boosting._ROUNDS", 20)
    models = ",".join(RIVALS)
    words = ["--quick", "--seeds", "1", "--data-dir", str(data_dir), "--models", models]
    assert main(["given", "--tasks", "bundles:food,amazon:toys", *words]) == 0
    assert "co-occurrence" in capsys.readouterr().out

"""The grid: its points, its folds, and a choice by validation scores of complete points alone."""

import argparse
import json
from typing import Any

import pytest

from benchmarks.__main__ import make_parser
from benchmarks.lib.records import Record
from benchmarks.selection.fits import Job, settings_of
from benchmarks.selection.grid import GRIDS, as_text, current, plan_jobs, points_of, show
from benchmarks.selection.published import ALGORITHM_OF, TABLE_2
from benchmarks.selection.published_options import published_point
from benchmarks.selection.tasks import HELD_OUT, load_split

SLOW, FAST = ({"learning_rate": rate, "rho_layers": 2} for rate in (1e-5, 1e-2))


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["grid", *arguments])


def _records(model: str, point: dict[str, Any], validation: list[float], test: float) -> list[Record]:
    jobs = [Job("moons", model, fold, False, HELD_OUT, as_text(point)) for fold in range(len(validation))]
    scores = [{"validation": v, "true_size": test + fold, "one_step": 9.0} for fold, v in enumerate(validation)]
    return [{**settings_of(job), "tuned": job.tuned, **s} for job, s in zip(jobs, scores, strict=True)]


def test_the_published_points_are_in_the_grid() -> None:
    for model, grid in GRIDS.items():
        for row in TABLE_2:
            task = row if row in ("celeba", "gaussian", "moons", "bindingdb") else f"amazon:{row}:farthest"
            point = published_point(task, ALGORITHM_OF.get(model, model))
            assert (point is None) == (model not in ALGORITHM_OF)
            if point is not None:
                assert all(point[name] in values for name, values in grid.items()), (model, task)


def test_every_point_is_fitted_on_every_fold_and_the_published_one_first() -> None:
    jobs = plan_jobs(_options("--tasks", "moons", "--models", "diffmf,idiffmf-c"))
    assert len(set(jobs)) == len(jobs) == 5 * (8 + 24)
    # Cheap models first.
    assert [job.model for job in jobs[:40]] == ["diffmf"] * 40
    for model, first in (("diffmf", jobs[:5]), ("idiffmf-c", jobs[40:45])):
        assert [job.seed for job in first] == list(range(5))
        assert {job.tuned for job in first} == {as_text(points_of("moons", model, "published")[0])}
    few = plan_jobs(_options("--tasks", "moons", "--models", "diffmf", "--points", "published"))
    assert few == jobs[:5]


def test_folds_share_the_test_split() -> None:
    tasks = [load_split("moons", splits=HELD_OUT, number=n, data_dir=None, quick=True) for n in (0, 1)]
    assert tasks[0].test is tasks[1].test
    assert not tasks[0].validation.sets.values.equal(tasks[1].validation.sets.values)
    assert len(tasks[0].train) + len(tasks[0].validation) == 48


def test_the_best_mean_validation_score_is_chosen() -> None:
    better_test = _records("diffmf", SLOW, [50.0, 60.0], 90.0)
    better_validation = _records("diffmf", FAST, [60.0, 51.0], 10.0)
    incomplete = _records("diffmf", {**FAST, "rho_layers": 3}, [99.0], 99.0)
    table = show([*better_test, *better_validation, *incomplete])
    assert "| 2 of 8 | 1e-02, 2 layers |" in " ".join(table.split())
    assert "55.5 | 10.5 ± 0.7 | - | 58.5 ± 0.1 |" in " ".join(table.split())


@pytest.mark.parametrize(("model", "score"), [("idiffmf-2", "9.0 ± 0.0"), ("diffmf-5", "40.5 ± 0.7")])
def test_the_published_inference_is_scored(model: str, score: str) -> None:
    assert score in show(_records(model, SLOW, [50.0, 50.0], 40.0))


def test_records_of_other_options_do_not_count() -> None:
    first, second = _records("diffmf", SLOW, [1.0, 2.0], 1.0)
    changed = {**second, "options": json.dumps({**json.loads(second["options"]), "patience": 6})}
    again = {**first, "validation": 3.0}
    assert current([first, changed, again, {**first, "splits": "folds"}]) == [again]

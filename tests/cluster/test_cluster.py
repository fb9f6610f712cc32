"""Fits and picks on a local Ray cluster of two workers, of which one is killed in the middle."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from setgrad import cluster
from setgrad.cluster import _fit, _picks
from setgrad.errors import DataError, FileFormatError, MissingDependencyError, OptionError
from setgrad.selector import SubsetSelector
from setgrad.selector._trainer import Trainer
from tests.selector.conftest import TINY
from tests.selector.streams import ROLES, make_rows, write_parts

# Ray warns of its own open files and processes.
pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {**TINY, "max_epochs": 4, "patience": 50, "dim": 8, "hidden": (8,), "trees": False}
TOLERANCE = 1e-5


# --- in the workers


def work_and_die(job: dict[str, Any]) -> None:
    """Fit, note every validation of the first worker, and kill the second one once, in the third epoch."""
    notes, validate = Path(job["folder"]).parent / "notes", Trainer._validate

    def counted(self: Trainer) -> tuple[float, float]:
        if os.environ["RANK"] == "0":
            with notes.open("a") as file:
                file.write(f"{os.getpid()} ")
        elif self.progress.epoch == 3 and not notes.with_name("killed").exists():
            notes.with_name("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return validate(self)

    Trainer._validate = counted  # type: ignore[method-assign]
    try:
        _fit._work(job)
    finally:
        Trainer._validate = validate  # type: ignore[method-assign]


def write_and_die(*job: Any) -> Any:
    """Write a part, but kill the process of the second one, once, while it chooses."""
    folder, part = Path(job[2]), job[4]
    ask, mark = SubsetSelector.ask, folder.parent / f"{folder.name} killed"

    def once(self: SubsetSelector, *arguments: Any) -> Any:
        if part[0] == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ask(self, *arguments)

    SubsetSelector.ask = once  # type: ignore[method-assign, assignment]
    try:
        return _picks._write(*job)
    finally:
        SubsetSelector.ask = ask  # type: ignore[method-assign]


# --- in the test


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("rows") / "data", make_rows(40), (333, 334), group=200)


@pytest.fixture(scope="module")
def workers():
    """Start Ray with two CPUs; its processes import what this one does."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray lowers the priority of its workers, which take minutes to start on a busy machine then.
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, log_to_driver=False)
        yield
        ray.shutdown()


def test_a_killed_worker_is_replaced_and_the_fit_goes_on(workers, data, tmp_path, monkeypatch):
    one = SubsetSelector(**OPTIONS).fit(data, **ROLES, weight="weight", stream=True)
    monkeypatch.setattr(_fit, "_work", work_and_die)
    selector = SubsetSelector(**OPTIONS)
    fitted = cluster.fit(
        selector, data, tmp_path / "model", workers=2, retries=1, **ROLES, weight="weight", stream=True
    )
    assert (tmp_path / "killed").exists()
    first, *later = (tmp_path / "notes").read_text().split()
    assert len(set(later) - {first}) == 1, "all workers start again"
    assert [pid != first for pid in later].count(True) == 2, "epochs before the last checkpoint are not repeated"
    assert len(fitted.history_) == 4 and fitted.best_epoch_ == one.best_epoch_
    for record, own in zip(fitted.history_, one.history_, strict=True):
        for name in ("loss", "validation_loss", "validation_jaccard"):
            assert record[name] == pytest.approx(own[name], abs=TOLERANCE, rel=0)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "killed",
        "model",
        "notes",
    ]
    monkeypatch.setattr(_picks, "_write", write_and_die)
    summary = cluster.write_picks(tmp_path / "model", data, tmp_path / "picks", parts=3, carry=["brand"])
    assert (tmp_path / "picks killed").exists()
    expected = fitted.predict(data, carry=["brand"])
    assert parquet.read_table(tmp_path / "picks").equals(expected)
    assert summary.items == expected.num_rows and summary.sizes.sum() == sum(expected["chosen"].to_pylist())


def test_errors_of_a_fit_come_back_and_are_not_repeated(workers, data, tmp_path):
    selector = SubsetSelector(**OPTIONS)
    with pytest.raises(DataError, match="there is no column 'sett'"):
        cluster.fit(selector, data, tmp_path / "model", workers=1, set_id="sett", chosen="chosen")
    with pytest.raises(FileFormatError, match="nowhere is not a folder"):
        cluster.write_picks(tmp_path / "nowhere", data, tmp_path / "picks", parts=1)


def test_what_cannot_be_sent_is_an_error(workers, data, tmp_path):
    selector, place = SubsetSelector(**OPTIONS), tmp_path / "model"
    with pytest.raises(OptionError, match="from files that all machines can open, not from Table"):
        cluster.fit(selector, make_rows(3), place, workers=2, **ROLES)
    with pytest.raises(OptionError, match="has no argument 'callback'; it takes set_id, chosen"):
        cluster.fit(selector, data, place, workers=2, callback=print, **ROLES)
    with pytest.raises(OptionError, match="workers must be a whole number of at least 1, not 0"):
        cluster.fit(selector, data, place, workers=0, **ROLES)
    with pytest.raises(OptionError, match="resources must be names with numbers"):
        cluster.write_picks(place, data, place, parts=1, resources={"CPU": "four"})  # type: ignore[dict-item]


def test_without_ray_an_error_names_the_extra(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.train.torch", None)
    for call in (
        lambda: cluster.fit(SubsetSelector(**OPTIONS), data, tmp_path / "model", workers=2, **ROLES),
        lambda: cluster.write_picks(tmp_path / "model", data, tmp_path / "picks", parts=2),
    ):
        with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[cluster\]"'):
            call()

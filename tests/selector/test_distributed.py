"""Fits by several processes: the losses of one process, the same decisions everywhere, and an end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from setgrad.cli import main
from setgrad.errors import LostRankError, OptionError, SetgradError
from setgrad.selector import Budget, SubsetSelector
from setgrad.selector._processes import Processes
from setgrad.selector._trainer import Trainer
from setgrad.sets import Sets
from tests.selector.conftest import TINY, make_choices
from tests.selector.streams import ROLES, make_rows, write_parts

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
# The losses of several processes are those of one up to this.
TOLERANCE = 1e-5
SMALL = {**TINY, "max_epochs": 4, "patience": 50, "dim": 8, "hidden": (8,)}


def stream(folder: Path, **more: Any) -> SubsetSelector:
    return SubsetSelector(**SMALL, trees=False).fit(folder, **ROLES, stream=True, weight="weight", **more)


def arrays(folder: Path, **more: Any) -> SubsetSelector:
    return SubsetSelector(**SMALL, batch_size=6, members=2).fit(*make_choices(60), **more)


# The largest sets of a batch of one set leave the other processes without work.
def one_by_one(folder: Path, **more: Any) -> SubsetSelector:
    return SubsetSelector(**{**SMALL, "max_epochs": 1}, batch_size=1).fit(*make_choices(30), **more)


FITS: dict[str, Callable[..., SubsetSelector]] = {"arrays": arrays, "one by one": one_by_one, "stream": stream}
# Four processes take long on two cores.
FITS_OF_FOUR = ("arrays", "one by one")


def summary(selector: SubsetSelector) -> dict[str, Any]:
    history = [{name: value for name, value in record.items() if name != "seconds"} for record in selector.history_]
    return {"history": history, "sizes": selector.size_scores_, "best": selector.best_epoch_}


# --- in the processes


def begin(rank: int, count: int, port: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})


def fit_all(rank: int, count: int, port: int, folder: Path) -> None:
    begin(rank, count, port)
    dist.init_process_group("gloo")
    names = FITS_OF_FOUR if count == 4 else tuple(FITS)
    results = {name: summary(FITS[name](folder / "data", distributed=True)) for name in names}
    try:
        SubsetSelector(**SMALL).fit(*make_choices(30, seed=rank), distributed=True)
    except SetgradError as error:
        results["other data"] = {"error": type(error).__name__, "text": str(error)}
    (folder / f"{rank}.json").write_text(json.dumps(results))


def lose_one(rank: int, count: int, port: int, folder: Path) -> None:
    """Fit with a checkpoint, and kill the second process in the third epoch."""
    begin(rank, count, port)
    validate, calls = Trainer._validate, []

    def counted(self: Trainer) -> tuple[float, float]:
        calls.append(0)
        if rank == 1 and len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return validate(self)

    Trainer._validate = counted  # type: ignore[method-assign]
    try:
        SubsetSelector(**SMALL, batch_size=6, checkpoint=folder / "run.ckpt").fit(*make_choices(60), distributed=True)
    except LostRankError:
        os._exit(7)


def stop_one(rank: int, count: int, port: int, folder: Path) -> None:
    """End training by a callback, which only the first process calls, and by the command line."""
    begin(rank, count, port)

    def callback(record: dict[str, float]) -> bool:
        (folder / f"{rank}.txt").write_text(str(record["epoch"]))
        return record["epoch"] == 2

    selector = SubsetSelector(**SMALL).fit(*make_choices(30), distributed=True, callback=callback)
    assert selector.stopped_ and len(selector.history_) == 2
    sizes = ["--dim", "8", "--hidden", "8", "--max-epochs", "2"]
    options = [*sizes, "--random-state", "0", "--device", "cpu", "--no-trees"]
    data = str(folder / "data")
    with open(folder / f"{rank}.out", "w") as out, open(folder / f"{rank}.err", "w") as err:
        sys.stdout, sys.stderr = out, err
        code = main(["fit", data, "--stream", "--set-id", "set", "--chosen", "chosen", *options, "-o", f"{folder}/m"])
        code |= main(["predict", f"{folder}/m", data, "-o", str(folder / "picks")])
        code |= 2 * (main(["evaluate", f"{folder}/m", data]) != 2)
    os._exit(code)


# --- in the test


def launch(work: Callable[[int, int, int, Path], None], count: int, folder: Path) -> list[int | None]:
    """Run `work` in so many processes, and return their exit codes."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=work, args=(rank, count, port, folder), daemon=True) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    return [process.exitcode for process in processes]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_parts(folder / "data", make_rows(40), (333, 334), group=200)
    return folder


@pytest.fixture(scope="module")
def expected(data: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: summary(fit(data / "data")) for name, fit in FITS.items()}


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_have_the_losses_of_one(data, expected, count):
    assert launch(fit_all, count, data) == [0] * count
    found = [json.loads((data / f"{rank}.json").read_text()) for rank in range(count)]
    other = [result.pop("other data") for result in found]
    assert all(result == found[0] for result in found), "the processes agree bit for bit"
    for name in found[0]:
        one = expected[name]
        history = found[0][name]["history"]
        assert len(history) == len(one["history"]) and found[0][name]["best"] == one["best"]
        for record, own in zip(history, one["history"], strict=True):
            assert record == pytest.approx(own, abs=TOLERANCE, rel=0)
        assert found[0][name]["sizes"] == pytest.approx(one["sizes"], abs=1e-6)
    assert {one["error"] for one in other} == {"DataError"}
    assert "different data or options" in other[0]["text"]


def test_a_lost_process_ends_the_fit_which_one_process_resumes(tmp_path):
    assert launch(lose_one, 2, tmp_path) == [7, -signal.SIGKILL]
    options = {**SMALL, "batch_size": 6}
    resumed = SubsetSelector(**options, checkpoint=tmp_path / "run.ckpt").fit(*make_choices(60))
    whole = SubsetSelector(**options).fit(*make_choices(60))
    assert len(resumed.history_) == 4
    for record, own in zip(resumed.history_, whole.history_, strict=True):
        assert record["loss"] == pytest.approx(own["loss"], abs=TOLERANCE)
    # The first epochs are those of two processes, which add up in another order, and took their own time.
    assert resumed.history_[0]["seconds"] != whole.history_[0]["seconds"]


def test_a_callback_ends_all_and_the_command_line_fits_and_predicts_together(data):
    assert launch(stop_one, 2, data) == [0, 0], [(data / f"{rank}.err").read_text() for rank in range(2)]
    assert (data / "0.txt").read_text() == "2" and not (data / "1.txt").exists()
    assert "fitted on 40 sets" in (data / "0.out").read_text() and not (data / "1.out").read_text()
    assert "evaluate is for one process" in (data / "0.err").read_text()
    names = sorted(path.name for path in (data / "picks").iterdir())
    assert names == ["part-00001-of-00002.parquet", "part-00002-of-00002.parquet"]


def test_work_is_dealt_out_evenly():
    costs = np.random.default_rng(0).integers(1, 100, 50)
    shares = [Processes(rank, 4).own(costs) for rank in range(4)]
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(50))
    loads = [costs[share].sum() for share in shares]
    assert max(loads) - min(loads) <= costs.max() and all((np.diff(share) > 0).all() for share in shares)
    assert len(Processes(3, 4).own(np.array([5]))) == 0
    assert sorted(len(Processes(rank, 3).own(np.zeros(6))) for rank in range(3)) == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"max_time": 60}, {}, "max_time"),
        ({"method": "unrolled"}, {}, "method='unrolled'"),
        ({"phi": torch.nn.Linear(2, 4)}, {}, "a module as phi"),
        ({}, {"constraint": Budget(Sets.from_list([torch.ones(3 + n % 5) for n in range(30)]), 9)}, "constraints"),
        ({"phi": "umbc", "chunk_size": 5}, {}, "sets of more than chunk_size items"),
    ],
)
def test_what_cannot_be_fitted_together_is_an_error(options, arguments, message, monkeypatch):
    # No other process is asked before.
    monkeypatch.setattr(SubsetSelector, "_processes", Processes(0, 2))
    with pytest.raises(OptionError, match=f"several processes cannot fit together with {message}"):
        SubsetSelector(**{**SMALL, **options}).fit(*make_choices(30), **arguments)


def test_without_a_group_a_distributed_fit_is_an_error():
    with pytest.raises(OptionError, match=r"there is no process group to fit in; start the program with torchrun"):
        SubsetSelector(**SMALL).fit(*make_choices(5), distributed=True)

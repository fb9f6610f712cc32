"""Writers that die at every file operation or at a random moment, and several writers and readers at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import setgrad as sg
from benchmarks.attack.faults import count_operations, crash_before
from benchmarks.attack.targets import fit, make_choices
from benchmarks.attack.verdicts import ERROR, LOST, OTHER, SAME, digest, fork
from setgrad._files import owned_file, read_tensors, replace_file, tensor_bytes
from setgrad.errors import SetgradError


@final
@dataclass(frozen=True)
class Writer:
    """Something that replaces one version by another.

    Attributes:
        name: What is written.
        save: Writes version 0 or 1 to a folder.
        read: Returns a digest of what is there.
        kept: Names of the files that are there after a save.
        savers: How many processes may save at once.
        point: The folder inside that may be a mount point.
    """

    name: str
    save: Callable[[Path, int], None]
    read: Callable[[Path], str]
    kept: frozenset[str]
    savers: int = 2
    point: str = "."

    def leftovers(self, folder: Path) -> set[str]:
        """Return the files and folders that no save should leave."""
        return {path.name for path in folder.rglob("*")} - self.kept


def writers() -> list[Writer]:
    """Return one writer for each kind of output."""
    models = [fit(random_state=seed) for seed in (0, 1)]
    picks = [make_choices(16, seed).subsets for seed in (0, 1)]
    contents = [tensor_bytes(model.model_.state_dict(), "attack") for model in models]

    def save_checkpoint(folder: Path, version: int) -> None:
        with owned_file(folder / "run.ckpt") as target:
            replace_file(target, contents[version], keep_previous=True)

    def read_model(folder: Path) -> str:
        selector = sg.load(folder / "model", device="cpu")
        return digest(*selector.model_.state_dict().values(), selector.history_)

    def read_checkpoint(folder: Path) -> str:
        tensors, _ = read_tensors(folder / "run.ckpt", "attack", remedy="")
        return digest(*(tensors[name] for name in sorted(tensors)))

    def read_picks(folder: Path) -> str:
        return digest(sg.read_table(folder / "p.parquet", set_id="set_id", chosen="chosen").subsets.values)

    return [
        Writer(
            "model",
            lambda folder, version: models[version].save(folder / "model"),
            read_model,
            frozenset({"model", "README.md", "config.json", "weights.safetensors", "manifest.json"}),
            point="model",
        ),
        Writer("checkpoint", save_checkpoint, read_checkpoint, frozenset({"run.ckpt", "run.ckpt.previous"}), savers=1),
        Writer(
            "picks",
            lambda folder, version: sg.write_table(folder / "p.parquet", picks[version]),
            read_picks,
            frozenset({"p.parquet"}),
        ),
    ]


def new_folder() -> Path:
    """Return a new, empty folder."""
    return Path(tempfile.mkdtemp(prefix="setgrad-attack-"))


def versions_of(writer: Writer) -> list[str]:
    """Return the digests of both versions."""
    found = []
    for version in (0, 1):
        folder = new_folder()
        writer.save(folder, version)
        found.append(writer.read(folder))
        shutil.rmtree(folder)
    return found


def _verdict(writer: Writer, folder: Path, versions: list[str], again: int) -> str:
    """Say what a dead writer left, and whether the next one is held up or leaves anything."""
    try:
        if writer.read(folder) not in versions:
            return OTHER
        writer.save(folder, again)
        is_right = writer.read(folder) == versions[again] and not writer.leftovers(folder)
        return SAME if is_right else LOST
    except (SetgradError, OSError):
        return LOST


def crash_everywhere(writer: Writer, every: int = 1, place: Path | None = None) -> Counter[str]:
    """Let a process that saves over another version die before each of its file operations, beside a reader.

    Args:
        writer: What is saved.
        every: Of the operations, one in so many is the last one.
        place: An empty folder to save to; None for a new one.
    """
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder() if place is None else place
    writer.save(folder, 0)
    operations = count_operations(partial(writer.save, folder, 1))
    for number in range(0, operations, every):
        writer.save(folder, 0)
        # A real death: locks are released by the system, and nothing is cleaned up.
        child = fork(partial(crash_before, number, partial(writer.save, folder, 1), end=partial(os._exit, 0)))
        result[_watch(writer, folder, versions, child) or _verdict(writer, folder, versions, 1)] += 1
    if place is None:
        shutil.rmtree(folder)
    return result


def _watch(writer: Writer, folder: Path, versions: list[str], child: int) -> str | None:
    """Read while another process saves, until it ends; return what is wrong, if anything is."""
    wrong = None
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        try:
            wrong = wrong or (None if writer.read(folder) in versions else OTHER)
        except (SetgradError, OSError):
            wrong = LOST
    return wrong


def _forever(work: Callable[[], Any]) -> int:
    while True:
        work()


def kill_at_random(writer: Writer, kills: int, draw: random.Random) -> Counter[str]:
    """Kill a process that saves two versions in turn, beside a reader that must see whole versions only."""
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder()
    writer.save(folder, 0)

    def save_both() -> None:
        for version in (1, 0):
            writer.save(folder, version)

    def look() -> None:
        if writer.read(folder) not in versions:
            raise ValueError("a mixed version")

    reader = fork(lambda: _forever(look))
    for _ in range(kills):
        child = fork(lambda: _forever(save_both))
        time.sleep(draw.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        result[_verdict(writer, folder, versions, draw.randrange(2))] += 1
    ended, _ = os.waitpid(reader, os.WNOHANG)
    if ended:
        # An error, or a version that was not whole.
        result[OTHER] += 1
    else:
        os.kill(reader, signal.SIGKILL)
        os.waitpid(reader, 0)
    shutil.rmtree(folder)
    return result


def save_and_load_at_once(writer: Writer, seconds: float) -> Counter[str]:
    """Let processes save different versions while this one loads."""
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder()
    writer.save(folder, 0)

    def save_in_turn(first: int) -> None:
        for version in (first, 1 - first):
            writer.save(folder, version)

    savers = [fork(partial(_forever, partial(save_in_turn, number))) for number in range(writer.savers)]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            result[SAME if writer.read(folder) in versions else OTHER] += 1
        except SetgradError:
            result[LOST] += 1
    for saver in savers:
        ended, _ = os.waitpid(saver, os.WNOHANG)
        if ended:
            result[LOST] += 1
        else:
            os.kill(saver, signal.SIGKILL)
            os.waitpid(saver, 0)
    result[_verdict(writer, folder, versions, 1)] += 1
    shutil.rmtree(folder)
    return result


def fit_twice_at_once() -> Counter[str]:
    """Start a fit on a checkpoint that another process owns."""
    folder = new_folder()
    path = folder / "run.ckpt"
    inbox, outbox = os.pipe()

    def own() -> int:
        with owned_file(path):
            os.write(outbox, b"!")
            time.sleep(600)
        return 0

    owner = fork(own)
    os.read(inbox, 1)
    result = Counter[str]()
    try:
        fit(checkpoint=path)
        result[LOST] += 1
    except SetgradError as error:
        result[ERROR if f"process {owner} on" in str(error) else OTHER] += 1
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    result[SAME if len(fit(checkpoint=path).history_) == 1 else LOST] += 1
    os.close(inbox)
    os.close(outbox)
    shutil.rmtree(folder)
    return result

"""Damaged, forged and interrupted files: is anything lost, silently wrong, or an error without a cause and remedy?

Claims checked: a changed file gives the same result or a clear error; formats with a checksum notice every change; no
reader ends in a traceback, a crash, a hang or without memory, also for files that were forged with right checksums; a
save that dies at any file operation, or is killed at any moment, leaves the old version or the new one, whole, and the
next save cleans up, also on a mount point and a full disk; several writers and readers see whole versions only; a
killed fit goes on to the same result; a second fit on a checkpoint is refused; if a rank is lost, the others end;
extreme numbers give a finite result or a clear error, and hostile texts stay texts.

Each case runs in a process of its own with 4 GiB of memory and 20 s. "Silently other" counts as a failure only where
the format has a checksum: CSV, JSON lines and Feather have none, and Parquet has one for pages where the writer asks
for it, as setgrad does. A forged file with right checksums may be another valid file. Needs Linux.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import setgrad as sg
from benchmarks.attack.extremes import attack_extremes
from benchmarks.attack.fits import kill_fits
from benchmarks.attack.full_disk import fill_at_every_operation, fill_small_disks, limit_file_sizes, mounted
from benchmarks.attack.interruptions import (
    Writer,
    crash_everywhere,
    fit_twice_at_once,
    kill_at_random,
    new_folder,
    save_and_load_at_once,
    writers,
)
from benchmarks.attack.mutations import mutate_bytes
from benchmarks.attack.ranks import CASES, lose_ranks
from benchmarks.attack.targets import TARGETS, Target, fit
from benchmarks.attack.verdicts import BAD, OTHER, VERDICTS, judge
from benchmarks.lib.tables import format_seconds, table

_CASES, _KILLS, _SECONDS, _REPEATS = 1000, 100, 20.0, 20
# Sizes of disks; of attacks with a list of cases the quick version takes each of so many.
_DISKS, _QUICK_DISKS, _QUICK_EVERY = 20, 2, 7
_QUICK_CASES, _QUICK_KILLS, _QUICK_SECONDS, _QUICK_REPEATS = 3, 2, 0.3, 2


_PAGE = """\
# Attacks: damaged, forged and interrupted files, lost processes, extreme input

`python -m benchmarks {command}`

{table}

- **same**: what was written before, or one of two whole versions. **clear error**: a `SetgradError`.
- **silently other**: another result without an error. Only where it is allowed: in formats without a checksum (CSV,
  JSON lines, Feather, Parquet written without checksums or damaged outside of its pages), and in files that were forged
  with right checksums, which are other valid files.
- **changed**: random bits, bytes, blocks and lengths. **forged**: values replaced, with checksums that agree.
- Each case runs in a process of its own with 4 GiB of memory and 20 seconds.
- The median of a small model on this machine: save {save}, load {load}.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--cases", type=int, default=_CASES, help=f"of each kind of file (default: {_CASES})")
    parser.add_argument("--kills", type=int, default=_KILLS, help=f"kills of each kind of save (default: {_KILLS})")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help=f"of saving at once (default: {_SECONDS})")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes (default: 0)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write the table as a page in Markdown")
    parser.add_argument("--only", metavar="TEXT", default="", help="only attacks whose name contains this")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Attack everything, print one row for each attack, and say whether one succeeded."""
    options.disks, options.every = (_QUICK_DISKS, _QUICK_EVERY) if options.quick else (_DISKS, 1)
    if options.quick:
        options.cases, options.kills, options.seconds = _QUICK_CASES, _QUICK_KILLS, _QUICK_SECONDS
    # A child process has no other threads.
    torch.set_num_threads(1)
    draw, rows, notes = random.Random(options.seed), {}, Counter[str]()
    failed = False
    for name, attack, may_differ in _attacks(options, draw, notes):
        if options.only not in name:
            continue
        started = time.perf_counter()
        rows[name] = attack()
        bad = (*BAD,) if may_differ else (*BAD, OTHER)
        failed = failed or any(rows[name][verdict] for verdict in bad)
        counts = ", ".join(f"{rows[name][verdict]} {verdict}" for verdict in VERDICTS if rows[name][verdict])
        print(f"{name}: {counts} ({format_seconds(time.perf_counter() - started)})", flush=True)
    cells = [[name, str(sum(row.values())), *(str(row[v] or "") for v in VERDICTS)] for name, row in rows.items()]
    result = table(("attack", "cases", *VERDICTS), cells)
    print(f"\n{result}")
    for text, count in notes.most_common(20):
        print(f"traceback, {count} times: {text}")
    times = _measure(_QUICK_REPEATS if options.quick else _REPEATS)
    print(f"median of a small model: save {times['save']}, load {times['load']}")
    if options.page is not None:
        options.page.write_text(
            _PAGE.format(table=result, command=_without_json(options.command), **times), encoding="utf-8"
        )
    return {"attacks": {name: dict(row) for name, row in rows.items()}, "times": times, "failed": failed}


def _without_json(command: list[str]) -> str:
    """Return the command without the file of results, which is a path of one machine."""
    place = command.index("--json") if "--json" in command else len(command)
    return " ".join([*command[:place], *command[place + 2 :]])


def _attacks(
    options: argparse.Namespace, draw: random.Random, notes: Counter[str]
) -> list[tuple[str, Callable[[], Counter[str]], bool]]:
    """Return the name of each attack, the attack, and whether a silently other result is allowed."""
    attacks: list[tuple[str, Callable[[], Counter[str]], bool]] = []
    for target in TARGETS:
        # The format with most parts is attacked most.
        cases = options.cases * (2 if target is TARGETS[0] else 1)
        change = _with(_mutate, target, cases, draw, notes)
        attacks.append((f"{target.name}, changed", change, not target.has_checksum))
        if target.forge is not None:
            attacks.append((f"{target.name}, forged", _with(_forge, target, cases, draw, notes), True))
    for writer in writers():
        attacks += [
            (f"{writer.name}: crash at every file operation", _with(crash_everywhere, writer, options.every), False),
            (f"{writer.name}: kill -9 beside a reader", _with(kill_at_random, writer, options.kills, draw), False),
            (f"{writer.name}: saved and loaded at once", _with(save_and_load_at_once, writer, options.seconds), False),
            (f"{writer.name}: crash on a mount point", _with(_crash_on_mount, writer, options.every), False),
            (f"{writer.name}: disk full at every operation", _with(fill_at_every_operation, writer), False),
            (f"{writer.name}: limits of file sizes", _with(limit_file_sizes, writer, options.disks), False),
            (f"{writer.name}: small disks", _with(fill_small_disks, writer, options.disks), False),
        ]
    attacks += [
        ("fit: kill -9, then resume", _with(kill_fits, options.kills, draw), False),
        ("two fits on one checkpoint", fit_twice_at_once, False),
        ("lost ranks", _with(lose_ranks, CASES[:: options.every]), False),
    ]
    attacks += [(name, attack, False) for name, attack in attack_extremes(options.every, notes)]
    return attacks


def _crash_on_mount(writer: Writer, every: int) -> Counter[str]:
    """Crash where the model is a mount point itself; nothing where this user may not mount any."""
    folder = new_folder()
    (folder / writer.point).mkdir(exist_ok=True)
    with mounted(folder / writer.point, "-t", "tmpfs") as is_mounted:
        result = crash_everywhere(writer, every, folder) if is_mounted else Counter[str]()
    shutil.rmtree(folder)
    return result


def _with(attack: Callable[..., Counter[str]], *args: Any) -> Callable[[], Counter[str]]:
    return lambda: attack(*args)


def _mutate(target: Target, cases: int, draw: random.Random, notes: Counter[str]) -> Counter[str]:
    def change(folder: Path) -> None:
        path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        path.write_bytes(mutate_bytes(path.read_bytes(), draw))

    return _attack(target, cases, change, notes)


def _forge(target: Target, cases: int, draw: random.Random, notes: Counter[str]) -> Counter[str]:
    def change(folder: Path) -> None:
        if target.forge is not None:
            target.forge(folder, draw)

    return _attack(target, cases, change, notes)


def _attack(target: Target, cases: int, change: Callable[[Path], None], notes: Counter[str]) -> Counter[str]:
    result = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        whole, folder = Path(place, "whole"), Path(place, "case")
        whole.mkdir()
        target.write(whole)
        shutil.copytree(whole, folder)
        # In the copy, because reading a checkpoint goes on with the fit.
        expected = target.read(folder)
        for _ in range(cases):
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            change(folder)
            result[judge(lambda: target.read(folder), expected, notes)] += 1
    return result


def _measure(repeats: int) -> dict[str, str]:
    selector, seconds = fit(), {"save": [0.0] * repeats, "load": [0.0] * repeats}
    with tempfile.TemporaryDirectory() as place:
        selector.save(Path(place, "model"))
        for number in range(repeats):
            started = time.perf_counter()
            selector.save(Path(place, "model"))
            saved = time.perf_counter()
            sg.load(Path(place, "model"), device="cpu")
            seconds["save"][number], seconds["load"][number] = saved - started, time.perf_counter() - saved
    return {name: format_seconds(statistics.median(values)) for name, values in seconds.items()}

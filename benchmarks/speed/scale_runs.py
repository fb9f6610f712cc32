"""Commands of setgrad in processes of their own, which may be killed and started again; every start is noted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final


@final
@dataclass(frozen=True)
class Start:
    """One start of a command.

    Attributes:
        name: What the command is called.
        seconds: How long it ran.
        cpu: Time of the processor.
        peak: Peak of memory, in bytes.
        result: What it printed as JSON; None if it was killed.
    """

    name: str
    seconds: float
    cpu: float
    peak: int
    result: dict[str, Any] | None


@final
@dataclass(frozen=True)
class Total:
    """All starts of some commands together; the peak is the largest one."""

    kills: int
    seconds: float
    cpu: float
    peak: int
    items: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@final
class Runs:
    """Runs commands to their ends, as far as time allows.

    Args:
        file: Where starts are noted; what it has is not run again.
        threads: Threads of a command.
        seconds: Seconds for all commands together; None for no limit.
        rng: Draws the moments of kills.
    """

    def __init__(self, file: Path, threads: int, seconds: float | None, rng: random.Random) -> None:
        self.file, self.threads, self.seconds, self.rng = file, threads, seconds, rng
        self.started, self.is_over = time.monotonic(), False
        self.starts = [Start(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def finish(self, name: str, arguments: Sequence[str], *, kills: int = 0) -> None:
        """Run a command until it ends, or the time is over.

        Args:
            name: What it is called.
            arguments: Its arguments.
            kills: Without a limit of time, how often it is killed, within about the time of the first command.
        """
        while not (self.is_over or self._is_done(name)):
            limit: float | None = None
            if self.seconds is not None:
                left = self.seconds - (time.monotonic() - self.started)
                limit = left * self.rng.uniform(0.5, 1.0)
                self.is_over = left < 0.1 * self.seconds
                if self.is_over:
                    return
            elif kills and len([one for one in self.starts if one.name == name]) < kills:
                limit = self.starts[0].seconds * self.rng.uniform(0.1, 0.9) / kills
            self._start(name, arguments, None if name.startswith("predict") else limit)

    def total(self, *names: str) -> Total:
        """Return what all starts of some commands took."""
        starts = [one for one in self.starts if one.name in names]
        results = [one.result for one in starts if one.result is not None]
        return Total(
            sum(one.result is None for one in starts),
            sum(one.seconds for one in starts),
            sum(one.cpu for one in starts),
            max((one.peak for one in starts), default=0),
            sum(result["items"] for result in results),
        )

    def _is_done(self, name: str) -> bool:
        return any(one.name == name and one.result is not None for one in self.starts)

    def _start(self, name: str, arguments: Sequence[str], limit: float | None) -> None:
        """Start a command, and kill it after so many seconds if it has not ended by itself."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        began = time.perf_counter()
        with tempfile.TemporaryFile("w+") as output:
            command = [sys.executable, "-m", "setgrad", *arguments, "--json"]
            process = subprocess.Popen(command, stdout=output, env=environment)
            if limit is not None:
                deadline = time.monotonic() + limit
                while time.monotonic() < deadline and os.waitid(os.P_PID, process.pid, _LOOK) is None:
                    time.sleep(0.05)
                # If it has ended by now, it waits to be asked how, and the signal does nothing.
                os.kill(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode not in (0, -signal.SIGKILL):
                raise SystemExit(f"{' '.join(arguments)} failed")
            output.seek(0)
            result = json.load(output) if process.returncode == 0 else None
        seconds, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
        one = Start(name, seconds, cpu, usage.ru_maxrss * 1024, result)
        self.starts.append(one)
        with self.file.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")
        how = "ended" if result is not None else "was killed"
        print(
            f"{name} {how} after {seconds:.0f} s, {cpu:.0f} of the processor, peak {one.peak / 1e9:.2f} GB", flush=True
        )


# Whether a process has ended, without taking its result.
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT

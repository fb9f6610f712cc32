"""Requests a second of the example server on the loopback, beside the bare predictor.

Claims checked: every answer under load is that of `predict`, whatever else is asked at the same time.

The server is `examples/serve.py` under uvicorn, one process. Each client holds a connection and asks for one set of
eight rows at a time, the next when the answer is there. "predict" is the call that the server makes, on a frame of the
same rows. Times are those of a clock, so other work on the machine counts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import table
from examples.serve import make_shop
from setgrad import SubsetSelector
from setgrad.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, WAIT = (1, 4, 16), 120
Rows = list[dict[str, Any]]
Ask = Callable[[Rows], Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--requests", type=int, default=300, help="requests of each row of the table (default: 300)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    try:
        import fastapi  # noqa: F401
        import pandas as pd
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("the server needs FastAPI and pandas: pip install 'setgrad[serve]'") from error
    machine = announce(torch.device("cpu"), options.threads)
    count, clients = (20, CLIENTS[:2]) if options.quick else (options.requests, CLIENTS)
    selector = SubsetSelector(max_epochs=2, members=1, random_state=0, device="cpu", verbose=0)
    selector.fit(make_shop(150, 1), set_id="visit", item_id="product", chosen="bought")
    visits = [rows.to_dict("records") for _, rows in make_shop(count, 2).drop(columns="bought").groupby("visit")]
    expected = [selector.predict(pd.DataFrame(rows))["chosen"].tolist() for rows in visits]

    def choose(rows: Rows) -> Any:
        return selector.predict(pd.DataFrame(rows))

    found = {"predict, no server": measure(lambda: nullcontext(choose), visits, 1)[0]}
    wrong = 0
    with serve(selector, options.threads) as port:
        for number in clients:
            name = f"server, {number} client{'s' * (number > 1)}"
            found[name], answers = measure(lambda: connect(port), visits, number)
            wrong += sum(
                [row["chosen"] for row in answer] != right for answer, right in zip(answers, expected, strict=True)
            )
    head = ["", "p50 ms", "p99 ms", "requests a second"]
    cells = [[name, *(f"{row[key]:.1f}" for key in ("p50", "p99", "rate"))] for name, row in found.items()]
    print(table(head, cells))
    print(f"{wrong} answers differ from predict, of {count * len(clients)}")
    return {"machine": machine, "rows": found, "failed": wrong}


@contextmanager
def connect(port: int) -> Iterator[Ask]:
    """Yield a function that asks for one set at a time, over a connection that is kept."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)) as connection:

        def ask(rows: Rows) -> Any:
            connection.request("POST", "/choose", json.dumps(rows), {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                return json.loads(response.read())

        yield ask


def measure(
    open_client: Callable[[], AbstractContextManager[Ask]], visits: list[Rows], clients: int
) -> tuple[dict[str, float], list[Any]]:
    """Return milliseconds at p50 and p99 and the requests a second of so many clients, and the answers in order."""

    def work(ask: Ask, mine: list[Rows]) -> list[tuple[float, Any]]:
        answers = []
        for rows in mine:
            started = time.perf_counter()
            answer = ask(rows)
            answers.append((time.perf_counter() - started, answer))
        return answers

    with ExitStack() as stack:
        asks = [stack.enter_context(open_client()) for _ in range(clients)]
        for ask in asks:
            ask(visits[0])
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        started = time.perf_counter()
        parts = list(pool.map(work, asks, [visits[client::clients] for client in range(clients)]))
    rate = len(visits) / (time.perf_counter() - started)
    p50, p99 = 1000 * np.quantile([seconds for part in parts for seconds, _ in part], [0.5, 0.99])
    answers = [parts[place % clients][place // clients][1] for place in range(len(visits))]
    return {"p50": float(p50), "p99": float(p99), "rate": rate}, answers


@contextmanager
def serve(selector: SubsetSelector, threads: int) -> Iterator[int]:
    """Serve a model in a process of its own, and yield its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as place:
        port = place.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        selector.save(Path(folder, "model"))
        environment = {**os.environ, "SETGRAD_MODEL": str(Path(folder, "model")), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "uvicorn", "examples.serve:from_environment", "--factory"]
        command += ["--port", str(port), "--log-level", "warning"]
        process = subprocess.Popen(command, env=environment, cwd=ROOT)
        try:
            wait_for(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(WAIT)


def wait_for(port: int, process: subprocess.Popen) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + WAIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)

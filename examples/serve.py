"""Serve a model over HTTP, with FastAPI: rows of a table in, the picks out. Then ask it on the loopback.

To serve your own model: `SETGRAD_MODEL=model/ uvicorn examples.serve:from_environment --factory`.
"""

import http.client
import json
import os
import socket
import sys
import threading
import time
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

import setgrad as sg

try:
    import fastapi
    import uvicorn
except ImportError:
    fastapi = None
VISITS, MOST_ROWS, REQUESTS = 150, 10_000, 200


def make_shop(visits: int, seed: int) -> pd.DataFrame:
    """Return visits of eight products; the cheap ones are bought, of any brand but one."""
    rng, rows = np.random.default_rng(seed), visits * 8
    shop = pd.DataFrame({"visit": np.repeat(np.arange(visits), 8), "product": [f"p{n}" for n in range(rows)]})
    shop = shop.assign(price=rng.uniform(5, 90, rows), brand=rng.choice(["Acme", "Nord", "Orla"], rows))
    return shop.assign(bought=shop["price"].lt(40) & shop["brand"].ne("Acme"))


def make_app(selector: sg.SubsetSelector) -> Any:
    """Return the application: POST /choose with a list of rows, GET /about."""
    if fastapi is None:
        sys.exit("this example needs FastAPI and uvicorn: pip install 'setgrad[serve]'")
    app, turn = fastapi.FastAPI(title="What to choose"), threading.Lock()

    @app.get("/about")
    def about() -> dict[str, Any]:
        return {"origin": selector.origin_, "features": selector.feature_names_in_.tolist()}

    @app.post("/choose")
    def choose(rows: list[dict[str, Any]], size: int | None = None) -> list[dict[str, Any]]:
        if not 0 < len(rows) <= MOST_ROWS:
            raise fastapi.HTTPException(422, f"send 1 to {MOST_ROWS} rows, not {len(rows)}")
        try:
            with turn:  # torch uses all cores for one request
                return selector.predict(pd.DataFrame(rows), size=size).to_dict("records")
        except (sg.errors.SetgradError, ValueError, TypeError) as error:
            raise fastapi.HTTPException(422, str(error)) from None

    return app


def from_environment() -> Any:
    """Return the application of the model in the folder `SETGRAD_MODEL`."""
    return make_app(sg.load(os.environ["SETGRAD_MODEL"]).set_params(verbose=0))


def ask(port: int, rows: list[dict[str, Any]]) -> tuple[int, Any]:
    """Return the status and the answer of a request."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/choose", json.dumps(rows), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            return response.status, json.loads(response.read())


def main() -> dict[str, float]:
    """Fit, serve on a free port, and ask for one visit at a time."""
    selector = sg.SubsetSelector(dim=16, hidden=(32,), max_epochs=20, random_state=0, verbose=0, device="cpu")
    app = make_app(selector.fit(make_shop(VISITS, 1), set_id="visit", item_id="product", chosen="bought"))
    place = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([place],), daemon=True)
    thread.start()
    visits, same, seconds = make_shop(REQUESTS, 2).drop(columns="bought"), 0, []
    for _, visit in visits.groupby("visit"):
        started = time.perf_counter()
        _, answer = ask(place.getsockname()[1], visit.to_dict("records"))
        seconds.append(time.perf_counter() - started)
        same += [row["chosen"] for row in answer] == selector.predict(visit)["chosen"].tolist()
    wrong = ask(place.getsockname()[1], [{"visit": 1, "price": "cheap", "brand": "Nord"}])[0]
    server.should_exit = True
    thread.join()
    place.close()
    p50, p99 = 1000 * np.quantile(seconds, [0.5, 0.99])
    told = {"answers that are those of predict": same / REQUESTS, "status of a wrong request": wrong}
    return {**told, "milliseconds, p50": p50, "milliseconds, p99": p99, "requests a second": REQUESTS / sum(seconds)}


if __name__ == "__main__":
    for title, number in main().items():
        print(f"{title:40} {number:.4f}")

#!/usr/bin/env python3
"""Go the whole way of a new user with a table of job applicants, and print how long each step takes.

    python scripts/new_user.py FOLDER

FOLDER gets `applicants.csv`, `new.csv` and what the commands write. The tables are unlike those that come with the
package: semicolons, decimal commas, dates as 31.12.2024, gaps, letters as texts. It needs the extras demo, tune, export
and serve, and onnxruntime and polars.
"""

import csv
import datetime
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import setgrad as sg
from setgrad.export import encode_table

ROOT = Path(__file__).resolve().parent.parent
PORT = 8137
FIELDS = {
    "Nursing": ("ward", "patients", "night shifts"),
    "IT": ("python", "servers", "databases"),
    "Finance": ("audit", "ledgers", "tax"),
    "Logistics": ("forklift", "warehouse", "routes"),
}
DEGREES = ("none", "vocational", "bachelor", "master", "doctorate")
SOURCES = ("job board", "website", "agency", "fair", "referral")
CITIES = ("Köln", "Bonn", "Aachen", "Düren", "Siegburg", "Neuss", "Brühl", "Hürth")
NUMBERS = ("experience_years", "salary_wish", "distance_km", "test_score", "interview_cost")
ROLES = "--set-id vacancy --item-id applicant --chosen invited --ignore called"
LIMITS = "--budget 300 --cost interview_cost --at-most 2 --group source --must-have internal --on-failure skip"
STEPS = (
    f"fit applicants.csv {ROLES} --dry-run",
    f"fit applicants.csv {ROLES} --random-state 0 -o model",
    "predict model new.csv -o picks.csv --carry degree,letter",
    "predict model new.csv --show 3 --carry salary_wish,letter",
    "predict model new.csv -o rest.csv --given called",
    f"predict model new.csv -o limited.csv {LIMITS}",
    "predict model new.csv -o most.csv --recall 0.9",
    "evaluate model new.csv",
    "explain model new.csv --set V0403 --vary salary_wish,experience_years",
    "explain model new.csv --importance",
    "report model new.csv --train applicants.csv -o report.html",
    f"tune applicants.csv {ROLES} --random-state 0 --trials 4 --max-time 120 -o tuned",
    "export model -o model.onnx",
)


def applicants(rng: random.Random, vacancies: range) -> Iterator[dict[str, str]]:
    """Yield the applicants of vacancies; at most five are invited, and at most two from one source."""
    for vacancy in vacancies:
        field, remote = rng.choice(list(FIELDS)), rng.random() < 0.3
        posted = datetime.date(2024, 1, 8) + datetime.timedelta(days=rng.randrange(600))
        people = sorted(
            (applicant(rng, field, posted, remote) for _ in range(rng.randint(4, 24))), key=lambda pair: -pair[0]
        )
        invited: list[str] = []
        for score, person in people:
            is_good = score > people[0][0] - 3 and len(invited) < 5 and invited.count(person["source"]) < 2
            invited += [person["source"]] * is_good
            called = is_good and rng.random() < 0.3
            person |= {"vacancy": f"V{vacancy:04}", "called": truth(called), "invited": truth(is_good)}
        yield from (person for _, person in rng.sample(people, len(people)))


def applicant(rng: random.Random, field: str, posted: datetime.date, remote: bool) -> tuple[float, dict[str, str]]:
    """Return how good an applicant is, which the table does not tell, and the row."""
    years, level, kilometres = (
        rng.expovariate(1 / 5),
        rng.choices(range(5), (2, 4, 4, 3, 1))[0],
        rng.expovariate(1 / 30),
    )
    wish, days = 32_000 + 1_400 * years + 5_500 * level + rng.gauss(0, 6_000), min(int(rng.expovariate(1 / 9)), 60)
    own = field if rng.random() < 0.6 else rng.choice(list(FIELDS))
    test, source = min(100.0, max(0.0, rng.gauss(55 + 4 * level, 15))), rng.choices(SOURCES, (5, 4, 2, 1, 1))[0]
    score = 0.25 * min(years, 10) + 0.6 * level + 2 * (own == field) - wish / 20_000 - days / 15 + (test - 55) / 12
    score += 1.2 * (source == "referral") - (not remote) * kilometres / 40 + rng.gauss(0, 0.7)
    words = rng.sample(FIELDS[own], 2)
    return score, {
        "applicant": f"P{rng.randrange(10**6):06}",
        "department": field,
        "posted": posted.strftime("%d.%m.%Y"),
        "remote": truth(remote),
        "applied": (posted + datetime.timedelta(days=days)).strftime("%d.%m.%Y"),
        "experience_years": "" if rng.random() < 0.08 else decimal(years, 1),
        "degree": "" if rng.random() < 0.05 else DEGREES[level],
        "salary_wish": "" if rng.random() < 0.15 else decimal(wish, 2),
        "distance_km": decimal(kilometres, 1),
        "test_score": "" if rng.random() < 0.2 else decimal(test, 1),
        "source": source,
        "city": rng.choice(CITIES),
        "letter": f"I have worked with {words[0]} and {words[1]} {rng.choice(('for years', 'abroad', 'as a lead'))}",
        "interview_cost": str(rng.choice((60, 80, 120, 200))),
        "internal": truth(rng.random() < 0.04),
    }


def truth(value: bool) -> str:
    """Return yes or no."""
    return "yes" if value else "no"


def decimal(number: float, digits: int) -> str:
    """Return a number with a decimal comma."""
    return f"{number:.{digits}f}".replace(".", ",")


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write a CSV file with semicolons."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)


def shipped(folder: Path) -> str:
    """Choose in onnxruntime with the code of docs/ship.md; return the share of items that predict decides so, too."""
    import onnxruntime

    page = (ROOT / "docs" / "ship.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = next(block for block in blocks if "def size_of_sets" in block)
    session = onnxruntime.InferenceSession(folder / "model.onnx")

    def run(items: np.ndarray, mask: np.ndarray, given: np.ndarray) -> np.ndarray:
        return session.run(None, {"items": items, "mask": mask, "given": given})[0]

    names: dict[str, Any] = {"np": np, "run": run}
    exec(code[: code.index("\nfacts = ")], names)
    selector = sg.load(folder / "model").set_params(verbose=0)
    facts = json.loads((folder / "model.onnx.json").read_text(encoding="utf-8"))
    items, mask = encode_table(selector, folder / "new.csv")
    rule, least = facts["size_rule"], facts["min_size"]
    if rule["name"] == "stop":
        chosen = names["choose"](items, mask, cut=rule["cut"], min_size=least)
    else:
        sizes = names["size_of_sets"](rule, run(items, mask, np.zeros_like(mask)), mask)
        chosen = names["choose"](items, mask, size=np.maximum(sizes, least))
    same = chosen[mask] == np.array(selector.predict(folder / "new.csv")["chosen"])
    return f"{100 * same.mean():.2f} % of {len(same)} items as in `predict`"


def framed(folder: Path) -> str:
    """Choose from the same rows in other containers; return in how many the result is the same to the bit."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    selector = sg.load(folder / "model").set_params(verbose=0)
    frame = pd.read_csv(folder / "new.csv", sep=";", decimal=",")
    frame.to_parquet(folder / "new.parquet")
    frame.to_json(folder / "new.jsonl", orient="records", lines=True)
    frame.to_csv(folder / "new.csv.gz", index=False)
    tables = [
        *(frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)),
        *(folder / f"new.{ending}" for ending in ("csv", "parquet", "jsonl", "csv.gz")),
    ]
    picks = [[list(map(str, selector.predict(table)[name])) for name in ("chosen", "probability")] for table in tables]
    return f"{sum(pick == picks[0] for pick in picks)} of {len(tables)} containers give the same picks, bit for bit"


def served(folder: Path) -> str:
    """Serve the model by the example, ask for every vacancy, and return how many answers are the picks."""
    with (folder / "picks.csv").open(encoding="utf-8") as file:
        picks = {(row["vacancy"], row["applicant"]): row["chosen"] == "true" for row in csv.DictReader(file)}
    with (folder / "new.csv").open(encoding="utf-8") as file:
        rows = [{name: typed(name, text) for name, text in row.items()} for row in csv.DictReader(file, delimiter=";")]
    environment = os.environ | {"SETGRAD_MODEL": str(folder / "model")}
    words = [sys.executable, "-m", "uvicorn", "examples.serve:from_environment", "--factory", "--port", str(PORT)]
    server = subprocess.Popen([*words, "--log-level", "warning"], cwd=ROOT, env=environment)
    try:
        while not answers("/about"):
            time.sleep(0.2)
        seconds, same = [], 0
        for vacancy in dict.fromkeys(row["vacancy"] for row in rows):
            asked, started = [row for row in rows if row["vacancy"] == vacancy], time.perf_counter()
            answer = answers("/choose", asked)
            seconds.append(time.perf_counter() - started)
            same += all(row["chosen"] == picks[row["vacancy"], row["applicant"]] for row in answer)
    finally:
        server.terminate()
        server.wait()
    return f"{same} of {len(seconds)} answers are the picks; p50 {1000 * np.median(seconds):.0f} ms"


def typed(name: str, text: str) -> Any:
    """Return a cell as JSON has it."""
    return (float(text.replace(",", ".")) if name in NUMBERS else text) if text else None


def answers(path: str, rows: list[dict[str, Any]] | None = None) -> Any:
    """Return what the server answers; None while it starts."""
    body = None if rows is None else json.dumps(rows).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError:
        return None


def timed(step: str, work: Callable[[], str]) -> None:
    """Do a step, and print a row of the table."""
    started = time.perf_counter()
    said = work()
    load = os.getloadavg()[0]
    print(f"| {time.perf_counter() - started:.1f} | {load:.1f} | {step}{said and ': ' + said} |", flush=True)


def command(folder: Path, words: str) -> str:
    """Run a command of setgrad; what it prints goes to a file."""
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        print(f"$ setgrad {words}", file=log, flush=True)
        arguments = [sys.executable, "-m", "setgrad", *shlex.split(words)]
        subprocess.run(arguments, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=True)
    return ""


def main() -> None:
    """Write the tables, and go through all steps."""
    folder, rng = Path(sys.argv[1]).resolve(), random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    for name, vacancies in (("applicants.csv", range(1, 401)), ("new.csv", range(401, 501))):
        write(folder / name, list(applicants(rng, vacancies)))
    print("| seconds | load | step |\n|---|---|---|")
    for words in STEPS:
        timed(f"`setgrad {words}`", lambda words=words: command(folder, words))
    timed("the exported program in onnxruntime, by the code of Shipping a model", lambda: shipped(folder))
    timed("pandas, polars, Arrow and four kinds of files", lambda: framed(folder))
    timed("`uvicorn examples.serve:from_environment --factory`, each vacancy asked for", lambda: served(folder))


if __name__ == "__main__":
    main()

"""Whatever is wrong ends in one line on the standard error and the right exit code, never in a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from setgrad import SubsetSelector
from setgrad.cli import _main
from setgrad.cli._command import Answer, Command

Rows = list[list[str]]
FIT = ["--set-id", "basket", "--chosen", "bought", "--item-id", "product"]


def check(found: object, *words: str, code: int = 1) -> None:
    assert found.code == code, found  # type: ignore[attr-defined]
    assert found.out == ""  # type: ignore[attr-defined]
    lines = found.err.splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def swap(rows: Rows, row: int, column: int, value: str) -> Rows:
    changed = [list(cells) for cells in rows]
    changed[row][column] = value
    return changed


# What is done to the table, the words of the fit, and what the message must say.
WRONG_TABLES: dict[str, tuple[Callable[[Rows], Rows], list[str], tuple[str, ...]]] = {
    "missing column": (
        lambda r: r,
        ["--set-id", "baskets", "--chosen", "bought"],
        ("'baskets'", "did you mean 'basket'"),
    ),
    "missing feature": (lambda r: r, [*FIT, "--features", "price,weight"], ("'weight'", "the columns are")),
    "not a number": (lambda r: swap(r, 3, 2, "cheap"), [*FIT, "--features", "price"], ("'price'", "row 3", "'cheap'")),
    "nan": (lambda r: swap(r, 4, 3, "nan"), FIT, ("'stars'", "row 4", "nan")),
    "missing value": (lambda r: swap(r, 4, 3, ""), FIT, ("'stars'", "row 4", "missing")),
    "scattered set": (lambda r: [*r, ["b0", "p99", "1", "1", "true", "1"]], FIT, ("'b0'", "appears again", "sort")),
    "item twice": (lambda r: swap(r, 2, 1, "p0"), FIT, ("'product'", "row 2", "'p0'")),
    "not boolean": (lambda r: swap(r, 5, 4, "perhaps"), FIT, ("'bought'", "row 5", "'perhaps'")),
    "no rows": (lambda r: r[:1], FIT, ("no rows",)),
    "one set": (lambda r: r[:5], FIT, ("at least 2 sets", "or give --validation TABLE")),
    "index of a data frame": (
        lambda r: [["" if n == 0 else str(n), *cells] for n, cells in enumerate(r)],
        FIT,
        ("index of a data frame", "index=False"),
    ),
    "negative weight": (lambda r: swap(r, 1, 5, "-1"), [*FIT, "--weights", "load"], ("'load'", "row 1", "negative")),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_wrong_table(run: Callable, rows: Rows, put: Callable, tmp_path: Path, case: str) -> None:
    spoil, words, message = WRONG_TABLES[case]
    path = put(tmp_path / "t.csv", spoil(rows))
    check(run("fit", path, *words, "-o", tmp_path / "m"), *message)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "magic"], ("unknown method 'magic'", "unrolled")),
        (["--phi", "magic"], ("unknown phi 'magic'", "context")),
        (["--dim", "0"], ("dim", "at least 1")),
        (["--dim", "10", "--heads", "4"], ("dim", "multiple of heads")),
        (["--device", "abacus"], ("unknown device 'abacus'",)),
        (["--scale", "huge"], ("scale 'huge'",)),
        (["--checkpoint", "run.ckpt"], ("--checkpoint needs --random-state",)),
        (["--validation-fraction", "2"], ("--validation-fraction must lie between 0 and 1",)),
        (["--phi", "pixel-cnn+context"], ("--phi pixel-cnn+context reads images", "rows of numbers")),
        (["--steps", "2"], ("--method 'unrolled' with --steps 2", "use --estimator 'gaussian'")),
        # Whatever is there, this is more.
        (["--dim", "4000000", "--heads", "1"], ("the memory is not enough; take a smaller --batch-size, --dim",)),
    ],
)
def test_wrong_option(run: Callable, table: Path, tmp_path: Path, words: list[str], message: tuple[str, ...]) -> None:
    check(run("fit", table, *FIT, "-o", tmp_path / "m", *words), *message)


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report"])
def test_missing_table(run: Callable, model: Path, tmp_path: Path, command: str) -> None:
    missing = tmp_path / "nowhere.parquet"
    words = {
        "fit": ["fit", missing, *FIT, "-o", tmp_path / "m"],
        "predict": ["predict", model, missing, "-o", tmp_path / "p.csv"],
        "evaluate": ["evaluate", model, missing],
        "report": ["report", model, missing, "-o", tmp_path / "r.html"],
    }
    check(run(*words[command]), str(missing), "no such file")


@pytest.mark.parametrize("name", ["t.xlsx", "t"])
def test_unknown_ending(run: Callable, model: Path, table: Path, tmp_path: Path, name: str) -> None:
    check(run("predict", model, table, "-o", tmp_path / name), ".parquet")
    shutil.copy(table, tmp_path / name)
    check(run("evaluate", model, tmp_path / name), ".parquet")


def test_empty_file(run: Callable, model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").touch()
    check(run("evaluate", model, tmp_path / "t.csv"), "empty")


def test_other_number_of_features(run: Callable, model: Path, table: Path, tmp_path: Path) -> None:
    check(run("predict", model, table, "-o", tmp_path / "p.csv", "--features", "price"), "fitted on", "(2,)", "(1,)")


@pytest.mark.parametrize(("flag", "name"), [("--set-id", "probability"), ("--item-id", "chosen")])
def test_ids_called_like_what_is_written(run: Callable, model: Path, tmp_path: Path, flag: str, name: str) -> None:
    # The table does not exist, so the message shows that the names were looked at first.
    found = run("predict", model, tmp_path / "no.csv", "-o", tmp_path / "p.csv", flag, name)
    check(found, f"column {name!r} of their own", f"rename the column in the table and give its new name: {flag}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search", "magic"], ("unknown search 'magic'", "greedy")),
        (["--threshold", "2"], ("--threshold", "between 0 and 1")),
        (["--threshold", "nan"], ("--threshold", "between 0 and 1")),
        (["--threshold", "1", "--max-size", "2"], ("--threshold", "neither of them")),
        (["--size", "-1"], ("--size", "at least 0")),
        (["--size", "3", "--max-size", "4"], ("instead of --size give --min-size 3 --max-size 3",)),
        (["--search", "greedy", "--max-size", "2"], ("--search greedy", "--search local")),
        (["--min-size", "3", "--max-size", "2"], ("--min-size 3 is more than --max-size 2",)),
        (["--min-size", "-1"], ("--min-size", "at least 0")),
        (["--max-size", "-1"], ("--max-size", "at least 0")),
        (["--at-most", "-1", "--group", "product"], ("--at-most", "at least 0")),
        (["--budget", "nan", "--cost", "load"], ("--budget", "not nan")),
    ],
)
def test_wrong_way_to_choose_is_refused_before_the_work(
    run: Callable, tmp_path: Path, words: list[str], message: tuple[str, ...]
) -> None:
    # Neither the model nor the table exists, so the message shows that the options were looked at first.
    check(run("predict", tmp_path / "m", tmp_path / "no.csv", "-o", tmp_path / "p.csv", *words), *message)


def _cut(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:100])


def _flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# What is done to a good model, and what the message must say.
WRONG_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "not a folder"),
    "foreign folder": (lambda f: (f / "config.json").unlink(), "not a setgrad model"),
    "foreign config": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "not written by setgrad"),
    "damaged config": (_cut, "damaged"),
    "damaged weights": (_flip, "damaged"),
    "damaged columns": (lambda f: (f / "table.json").write_text("{"), "table.json is damaged"),
    "foreign columns": (lambda f: (f / "table.json").write_text("[]"), "not written by this setgrad"),
    "no column names": (
        lambda f: (f / "table.json").write_text('{"format": "setgrad.table", "version": 1, "set_id": 3}'),
        "names no columns",
    ),
    "unknown type": (
        lambda f: (f / "table.json").write_text((f / "table.json").read_text().replace("float32", "int7")),
        "no type 'int7'",
    ),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_wrong_model(run: Callable, model: Path, table: Path, tmp_path: Path, case: str) -> None:
    spoil, message = WRONG_MODELS[case]
    copy = tmp_path / "m"
    shutil.copytree(model, copy)
    spoil(copy)
    check(run("evaluate", copy, table), message)
    check(run("predict", copy, table, "-o", tmp_path / "p.csv"), message)


def test_place_that_holds_something_else_is_refused_before_the_fit(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    # The table does not exist, so the message shows that the place was looked at first.
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path), "not a setgrad model")
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "thesis.tex"), "not a setgrad model")
    assert (tmp_path / "thesis.tex").exists()


def test_checkpoint_in_the_folder_of_the_model_is_refused_before_the_fit(run: Callable, tmp_path: Path) -> None:
    words = ["--checkpoint", tmp_path / "m" / "run.ckpt", "--random-state", 0]
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "m", *words), "run.ckpt", "put it elsewhere")
    words = ["--checkpoint", tmp_path / "moons" / "run.ckpt", "--tasks", "moons", "--sets", "4,4,4"]
    check(run("demo", "--output", tmp_path, *words), "run.ckpt", "put it elsewhere")


@pytest.mark.parametrize("option", ["table", "--validation"])
def test_checkpoint_that_is_a_table_is_refused_before_the_fit(
    run: Callable, table: Path, tiny: list[str], tmp_path: Path, option: str
) -> None:
    mine = Path(shutil.copy(table, tmp_path / "in.csv"))
    (tmp_path / "link.csv").symlink_to(mine)
    before = mine.read_bytes()
    tables = [mine] if option == "table" else [table, option, mine]
    for checkpoint in (mine, tmp_path / "link.csv"):
        found = run("fit", *tables, *FIT, "-o", tmp_path / "m", *tiny, "--checkpoint", checkpoint)
        check(found, f"{checkpoint} is the table", "choose another place", "--checkpoint FILE")
        assert "remove" not in found.err
    assert mine.read_bytes() == before


def test_checkpoint_that_is_another_file_of_the_command_is_refused(run: Callable, model: Path, tmp_path: Path) -> None:
    # The table does not exist, so the message shows that the place was looked at first.
    words = ["--start", model, "--random-state", 0, "--checkpoint", model / "config.json"]
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "m", *words), "a part of the model to start from")
    words = ["--checkpoint", tmp_path / "report.html", "--tasks", "moons", "--sets", "4,4,4"]
    check(run("demo", "--output", tmp_path, *words), "report.html is where the report goes")


def test_current_folder_is_refused_before_the_fit(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", "."), "current folder", "model/")


def test_place_that_cannot_be_written(run: Callable, model: Path, table: Path, tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check(run("predict", model, table, "-o", tmp_path / "file" / "p.csv"), "cannot be written")
    check(run("report", model, "-o", tmp_path / "file" / "r.html"), "cannot be written")
    check(run("fit", table, *FIT, "-o", tmp_path / "file" / "m", *tiny), str(tmp_path / "file"))


@pytest.mark.parametrize("command", ["predict", "report"])
def test_output_that_would_take_what_is_read(
    run: Callable, model: Path, table: Path, tmp_path: Path, command: str
) -> None:
    mine = Path(shutil.copy(table, tmp_path / "in.csv"))
    (tmp_path / "link.csv").symlink_to(mine)
    before = mine.read_bytes()
    for output in (mine, tmp_path / "link.csv"):
        check(run(command, model, mine, "-o", output), str(output), "the table that is read", "-o FILE")
    assert mine.read_bytes() == before


def test_output_that_would_take_a_part_of_the_model(run: Callable, model: Path, tmp_path: Path) -> None:
    # The table does not exist, so the message shows that the place was looked at first.
    for part in ("config.json", "weights.safetensors", "table.json"):
        check(run("report", model, tmp_path / "no.csv", "-o", model / part), "a part of the model", "-o FILE")


def test_output_that_is_a_folder_is_refused_before_the_work(run: Callable, model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").mkdir()
    missing = tmp_path / "no.csv"
    check(run("predict", model, missing, "-o", tmp_path / "p.csv"), "this is a folder; name a file")
    for output in (tmp_path, ".", "/"):
        check(run("report", model, missing, "-o", output), "this is a folder; name a file")
    (tmp_path / "test.parquet").mkdir()
    check(run("datasets", "amazon:toys", "--data-dir", missing, "-o", tmp_path), "test.parquet: this is a folder")
    (tmp_path / "report.html").mkdir()
    check(run("demo", "--sets", "4,4,4", "--output", tmp_path), "report.html: this is a folder")
    words = ["--sets", "4,4,4", "--output", tmp_path / "d", "--checkpoint", "."]
    check(run("demo", *words), "this is a folder; name a file")


def test_ids_that_cannot_be_written_are_refused_before_the_work(
    run: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pa.array([b"\xff", b"\xff"])
    columns = {"basket": names, "product": ["a", "b"], "price": [1.0, 2.0], "stars": [1.0, 2.0]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    monkeypatch.setattr(SubsetSelector, "decision_function", None)
    check(run("predict", model, tmp_path / "t.parquet", "-o", tmp_path / "p.csv"), "bytes that are not UTF-8", ".parquet")


def test_unknown_data_set(run: Callable, tmp_path: Path) -> None:
    check(run("datasets", "suns"), "unknown data set 'suns'", "moons")
    check(run("demo", "--tasks", "suns", "--output", tmp_path), "unknown data set 'suns'")
    check(run("demo", "--tasks", ",", "--output", tmp_path), "at least one data set")
    check(run("datasets", "-o", tmp_path), "which data set")


def test_missing_data_are_asked_for_by_the_option(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SETGRAD_DATA", raising=False)
    check(run("datasets", "amazon:toys"), "SETGRAD_DATA, or give --data-dir FOLDER: the folder that contains")
    # No such option there.
    check(run("demo", "--tasks", "amazon:toys", "--output", tmp_path), "SETGRAD_DATA: the folder that contains")


def test_error_as_json(run: Callable) -> None:
    found = run("datasets", "suns", "--json")
    assert found.code == 1
    assert found.err == f"error: {found.data['error']}\n"


@pytest.mark.parametrize("words", [["frobnicate"], ["fit"], ["demo", "--sets", "3,4"]])
def test_wrong_usage_as_json(run: Callable, words: list[str]) -> None:
    found = run(*words, "--json")
    assert found.code == 2
    assert found.err.startswith("usage: setgrad")
    assert found.err.endswith(f"error: {found.data['error']}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["fit"],
        ["fit", "t.csv", *FIT],
        ["fit", "t.csv", *FIT, "-o", "m", "--dim", "wide"],
        ["fit", "t.csv", *FIT, "-o", "m", "--hidden", "8;8"],
        ["fit", "t.csv", *FIT, "-o", "m", "--preset", "magic"],
        ["fit", "t.csv", *FIT, "-o", "m", "--features", "a,,b"],
        ["predict", "m", "t.csv", "-o", "p.csv", "--size", "3", "--threshold", "0.5"],
        ["demo", "--sets", "3,4"],
        ["demo", "--sets", "6,4,0"],
        # Abbreviations would change their meaning when an option is added.
        ["fit", "t.csv", *FIT, "-o", "m", "--max", "3"],
    ],
)
def test_wrong_usage(run: Callable, words: list[str]) -> None:
    found = run(*words)
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("usage: setgrad")
    assert "error: " in found.err


def test_wrong_value_says_what_is_wanted(run: Callable) -> None:
    assert "'wide' is not a whole number" in run("fit", "t.csv", *FIT, "-o", "m", "--dim", "wide").err
    assert "whole numbers separated by commas" in run("fit", "t.csv", *FIT, "-o", "m", "--hidden", "x").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (OSError(28, "No space left on device"), 1, "No space left"),
    ],
)
def test_what_comes_from_outside(
    run: Callable, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(args: object) -> Answer:
        raise error

    broken = Command("datasets", "", "", "", (), lambda parser: None, fail)
    monkeypatch.setitem(_main.COMMANDS, "datasets", broken)
    check(run("datasets"), message, code=code)


def test_a_bug_is_not_hidden(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> Answer:
        raise ZeroDivisionError

    monkeypatch.setitem(_main.COMMANDS, "datasets", Command("datasets", "", "", "", (), lambda parser: None, fail))
    with pytest.raises(ZeroDivisionError):
        run("datasets")

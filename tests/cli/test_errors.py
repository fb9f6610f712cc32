"""Every error is one line on the standard error with the right exit code, and never a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from setgrad import SubsetSelector
from setgrad.cli import _main
from setgrad.cli._command import Command, CommandResult
from tests.models import rewrite, rewrite_config

Rows = list[list[str]]
FIT = ["--set-id", "basket", "--chosen", "bought", "--item-id", "product"]


def check(result: object, *words: str, code: int = 1) -> None:
    assert result.code == code, result  # type: ignore[attr-defined]
    assert result.out == ""  # type: ignore[attr-defined]
    lines = result.err.splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def swap(rows: Rows, row: int, column: int, value: str) -> Rows:
    changed = [list(cells) for cells in rows]
    changed[row][column] = value
    return changed


# How the table is changed, the options of the fit, and parts of the message.
WRONG_TABLES: dict[str, tuple[Callable[[Rows], Rows], list[str], tuple[str, ...]]] = {
    "missing column": (
        lambda r: r,
        ["--set-id", "baskets", "--chosen", "bought"],
        ("'baskets'", "did you mean 'basket'"),
    ),
    "missing feature": (lambda r: r, [*FIT, "--features", "price,weight"], ("'weight'", "the columns are")),
    "not a number": (lambda r: swap(r, 3, 2, "cheap"), [*FIT, "--features", "price"], ("'price'", "row 3", "'cheap'")),
    "infinite": (lambda r: swap(r, 4, 3, "inf"), FIT, ("'stars'", "row 4", "inf")),
    "two faults": (
        lambda r: swap(swap(r, 4, 3, "good"), 5, 2, "cheap"),
        FIT,
        ("2 faults", "'price', row 5", "'cheap'", "'stars', row 4", "'good'"),
    ),
    "faults of ids, choices and columns": (
        lambda r: swap(swap(swap(swap(r, 4, 3, "inf"), 5, 4, "perhaps"), 2, 1, ""), 3, 0, ""),
        FIT,
        ("4 faults", "'basket', row 3", "'bought', row 5", "'product', row 2", "'stars', row 4"),
    ),
    "not boolean": (lambda r: swap(r, 5, 4, "perhaps"), FIT, ("'bought'", "row 5", "'perhaps'")),
    "no rows": (lambda r: r[:1], FIT, ("no rows",)),
    "one set": (lambda r: r[:5], FIT, ("at least 2 sets", "or pass --validation")),
    "negative weight": (
        lambda r: swap(r, 1, 5, "-1"),
        [*FIT, "--weight", "load"],
        ("'load'", "row 1", "negative"),
    ),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_wrong_tables(run: Callable, rows: Rows, put: Callable, tmp_path: Path, case: str) -> None:
    change, words, message = WRONG_TABLES[case]
    path = put(tmp_path / "t.csv", change(rows))
    check(run("fit", path, *words, "-o", tmp_path / "m"), *message)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "magic"], ("unknown --method 'magic'", "unrolled")),
        (["--phi", "magic"], ("unknown --phi 'magic'", "context")),
        # The value of the user is not changed, though it contains the name of an option.
        (["--phi", "my_batch_size"], ("unknown --phi 'my_batch_size'",)),
        (["--dim", "0"], ("--dim must be a whole number of at least 1",)),
        (["--dim", "10", "--heads", "4"], ("dim", "multiple of heads")),
        (["--device", "abacus"], ("unknown --device 'abacus'",)),
        (["--scale", "huge"], ("unknown --scale 'huge'",)),
        (["--checkpoint", "run.ckpt"], ("--checkpoint needs --random-state",)),
        (["--validation-fraction", "2"], ("--validation-fraction must be a number between 0 and 1",)),
        (["--phi", "pixel-cnn+context"], ("--phi pixel-cnn+context reads images", "rows of numbers")),
        (
            ["--method", "unrolled", "--steps", "2"],
            ("--method='unrolled' with --steps=2", "use --estimator='gaussian'"),
        ),
        # More than any machine has.
        (["--dim", "4000000", "--heads", "1"], ("there is not enough memory; use a smaller --batch-size, --dim",)),
    ],
)
def test_wrong_options(run: Callable, table: Path, tmp_path: Path, words: list[str], message: tuple[str, ...]) -> None:
    quiet = ["--features", "price,stars", "--verbose", "0"]
    check(run("fit", table, *FIT, "-o", tmp_path / "m", *quiet, *words), *message)


def test_a_command_without_an_output_raises_before_any_work(run: Callable, tmp_path: Path) -> None:
    # Neither the model nor the table exists.
    check(run("fit", tmp_path / "no.csv", *FIT), "name the folder for the model: -o FOLDER", "--dry-run")
    check(run("predict", tmp_path / "m", tmp_path / "no.csv"), "name the file for the picks: -o FILE", "--show 3")


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
    check(
        run("predict", model, table, "-o", tmp_path / "p.csv", "--features", "price"),
        "fitted on",
        "price, stars",
        "as many",
    )


@pytest.mark.parametrize(("flag", "name"), [("--set-id", "probability"), ("--item-id", "chosen")])
def test_ids_with_the_name_of_a_column_of_the_picks(
    run: Callable, model: Path, tmp_path: Path, flag: str, name: str
) -> None:
    # The table does not exist, so the message shows that the names are checked first.
    result = run("predict", model, tmp_path / "no.csv", "-o", tmp_path / "p.csv", flag, name)
    check(result, f"its own column {name!r}", f"rename the column in the table and give its new name: {flag}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search", "magic"], ("unknown --search 'magic'", "greedy")),
        (["--threshold", "2"], ("--threshold", "between 0 and 1")),
        (["--threshold", "nan"], ("--threshold", "between 0 and 1")),
        (["--size", "-1"], ("--size", "at least 0")),
        (["--on-failure", "stop"], ("unknown --on-failure 'stop'", "skip")),
        (["--at-least", "-1", "--group", "product"], ("--at-least", "at least 0")),
        (["--at-least", "3", "--at-most", "2", "--group", "a"], ("--at-least 3 is more than --at-most 2",)),
        (["--search", "greedy", "--max-size", "2"], ("--search greedy", "--search local")),
        (["--min-size", "3", "--max-size", "2"], ("--min-size 3 is more than --max-size 2",)),
        (["--min-size", "-1"], ("--min-size", "at least 0")),
        (["--max-size", "-1"], ("--max-size", "at least 0")),
        (["--at-most", "-1", "--group", "product"], ("--at-most", "at least 0")),
        (["--budget", "nan", "--cost", "load"], ("--budget", "not nan")),
    ],
)
def test_wrong_choices_of_predict_raise_before_any_work(
    run: Callable, tmp_path: Path, words: list[str], message: tuple[str, ...]
) -> None:
    # Neither the model nor the table exists, so the message shows that the options are checked first.
    check(run("predict", tmp_path / "m", tmp_path / "no.csv", "-o", tmp_path / "p.csv", *words), *message)


def _cut(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:100])


def _flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _put_foreign(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "config.json").write_text('{"model_type": "bert"}')


def _edit_table(folder: Path, **changes: object) -> None:
    rewrite_config(folder, lambda config: config["table"].update(changes))


# How a valid model is damaged, and a part of the message.
WRONG_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "not a folder"),
    "folder without a configuration": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "configuration of another library": (
        lambda f: rewrite(f, "config.json", b'{"model_type": "bert"}'),
        "not written by setgrad",
    ),
    "folder of another library": (
        _put_foreign,
        "not written by setgrad",
    ),
    "damaged config": (_cut, "damaged"),
    "damaged weights": (_flip, "damaged"),
    "damaged columns": (lambda f: _edit_table(f, set_id=3), "does not name the columns of a table"),
    "unknown dtype": (lambda f: _edit_table(f, dtype="int7"), "'int7' is not one of the dtypes"),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_wrong_models(run: Callable, model: Path, table: Path, tmp_path: Path, case: str) -> None:
    damage, message = WRONG_MODELS[case]
    copy = tmp_path / "m"
    shutil.copytree(model, copy)
    damage(copy)
    check(run("evaluate", copy, table), message)
    check(run("predict", copy, table, "-o", tmp_path / "p.csv"), message)


def test_output_folder_with_other_files_raises_before_the_fit(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    # The table does not exist, so the message shows that the path is checked first.
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path), "not a setgrad model")
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "thesis.tex"), "not a setgrad model")
    assert (tmp_path / "thesis.tex").exists()


def test_checkpoint_in_the_folder_of_the_model_raises_before_the_fit(run: Callable, tmp_path: Path) -> None:
    words = ["--checkpoint", tmp_path / "m" / "run.ckpt", "--random-state", 0]
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "m", *words), "run.ckpt", "put it elsewhere")
    words = ["--checkpoint", tmp_path / "moons" / "run.ckpt", "--tasks", "moons", "--sets", "4,4,4"]
    check(run("demo", "--output", tmp_path, *words), "run.ckpt", "put it elsewhere")


@pytest.mark.parametrize("option", ["table", "--validation"])
def test_checkpoint_that_is_a_table_raises_before_the_fit(
    run: Callable, table: Path, tiny: list[str], tmp_path: Path, option: str
) -> None:
    mine = Path(shutil.copy(table, tmp_path / "in.csv"))
    (tmp_path / "link.csv").symlink_to(mine)
    before = mine.read_bytes()
    tables = [mine] if option == "table" else [table, option, mine]
    for checkpoint in (mine, tmp_path / "link.csv"):
        result = run("fit", *tables, *FIT, "-o", tmp_path / "m", *tiny, "--checkpoint", checkpoint)
        check(result, f"{checkpoint} is the {'input table' if option == 'table' else 'table of validation sets'}")
        check(result, "choose another file", "--checkpoint FILE")
        assert "delete" not in result.err
    assert mine.read_bytes() == before


def test_checkpoint_that_is_another_file_of_the_command_raises(run: Callable, model: Path, tmp_path: Path) -> None:
    # The table does not exist, so the message shows that the path is checked first.
    words = ["--start", model, "--random-state", 0, "--checkpoint", model / "config.json"]
    check(run("fit", tmp_path / "no.csv", *FIT, "-o", tmp_path / "m", *words), "a file of the model to start from")
    words = ["--checkpoint", tmp_path / "report.html", "--tasks", "moons", "--sets", "4,4,4"]
    check(run("demo", "--output", tmp_path, *words), "report.html is the file of the report")


def test_output_that_cannot_be_written(
    run: Callable, model: Path, table: Path, tiny: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    check(run("predict", model, table, "-o", tmp_path / "file" / "p.csv"), "cannot be written")
    check(run("report", model, "-o", tmp_path / "file" / "r.html"), "cannot be written")
    check(run("fit", table, *FIT, "-o", tmp_path / "file" / "m", *tiny), str(tmp_path / "file"))


@pytest.mark.parametrize("command", ["predict", "report"])
def test_output_that_is_the_input_table(run: Callable, model: Path, table: Path, tmp_path: Path, command: str) -> None:
    mine = Path(shutil.copy(table, tmp_path / "in.csv"))
    (tmp_path / "link.csv").symlink_to(mine)
    before = mine.read_bytes()
    for output in (mine, tmp_path / "link.csv"):
        check(run(command, model, mine, "-o", output), str(output), "the input table", "-o FILE")
    assert mine.read_bytes() == before


def test_output_that_is_a_file_of_the_model(run: Callable, model: Path, tmp_path: Path) -> None:
    # The table does not exist, so the message shows that the path is checked first.
    for part in ("config.json", "weights.safetensors", "manifest.json", "table.json"):
        check(run("report", model, tmp_path / "no.csv", "-o", model / part), "a file of the model", "-o FILE")


def test_output_that_is_a_folder_raises_before_any_work(run: Callable, model: Path, tmp_path: Path) -> None:
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


def test_ids_that_cannot_be_written_raise_before_any_work(
    run: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pa.array([b"\xff", b"\xff"])
    columns = {"basket": names, "product": ["a", "b"], "price": [1.0, 2.0], "stars": [1.0, 2.0]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    monkeypatch.setattr(SubsetSelector, "decision_function", None)
    check(
        run("predict", model, tmp_path / "t.parquet", "-o", tmp_path / "p.csv"), "bytes that are not UTF-8", ".parquet"
    )


def test_unknown_data_sets(run: Callable, tmp_path: Path) -> None:
    check(run("datasets", "suns"), "unknown data set 'suns'", "moons")
    check(run("demo", "--tasks", "suns", "--output", tmp_path), "unknown data set 'suns'")
    check(run("demo", "--tasks", ",", "--output", tmp_path), "at least one data set")
    check(run("datasets", "-o", tmp_path), "name the data set to write")


def test_missing_data_files(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SETGRAD_DATA", raising=False)
    for words in (["datasets", "amazon:toys"], ["demo", "--tasks", "amazon:toys", "--output", tmp_path]):
        check(run(*words), "SETGRAD_DATA, or pass --data-dir: the folder that contains")


def test_error_as_json(run: Callable) -> None:
    result = run("datasets", "suns", "--json")
    assert result.code == 1
    assert result.err == f"error: {result.data['error']}\n"


@pytest.mark.parametrize("words", [["frobnicate"], ["fit"], ["demo", "--sets", "3,4"]])
def test_wrong_usage_as_json(run: Callable, words: list[str]) -> None:
    result = run(*words, "--json")
    assert result.code == 2
    assert result.err.startswith("usage: setgrad")
    assert result.err.endswith(f"error: {result.data['error']}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["fit"],
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
    result = run(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("usage: setgrad")
    assert "error: " in result.err


def test_wrong_values_name_the_expected_type(run: Callable) -> None:
    assert "'wide' is not a whole number" in run("fit", "t.csv", *FIT, "-o", "m", "--dim", "wide").err
    assert "whole numbers separated by commas" in run("fit", "t.csv", *FIT, "-o", "m", "--hidden", "x").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (OSError(28, "No space left on device"), 1, "No space left"),
    ],
)
def test_interrupts_and_errors_of_the_system(
    run: Callable, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(args: object) -> CommandResult:
        raise error

    broken = Command("datasets", "", "", "", (), lambda parser: None, fail)
    monkeypatch.setitem(_main.COMMANDS, "datasets", broken)
    check(run("datasets"), message, code=code)


def test_bugs_are_not_hidden(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> CommandResult:
        raise ZeroDivisionError

    monkeypatch.setitem(_main.COMMANDS, "datasets", Command("datasets", "", "", "", (), lambda parser: None, fail))
    with pytest.raises(ZeroDivisionError):
        run("datasets")

"""Writes a fitted selector as a program for `torch.export` or ONNX, with a JSON about it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from setgrad._files import atomic_write, to_json
from setgrad.errors import MissingDependencyError, OptionError
from setgrad.export._predictor import PaddedPredictor
from setgrad.selector import SubsetSelector
from setgrad.selector.sizes import rule_to_json

FORMAT, VERSION = "setgrad.export", 1
INPUTS, OUTPUT = ("items", "mask", "given"), "logits"
SUFFIXES = (".onnx", ".pt2")
# Attention over more items at once would take more memory than an export is for.
_MOST = 2**15


def export_model(selector: SubsetSelector, path: str | Path) -> Path:
    """Write a fitted selector as a program that runs without setgrad, and a JSON file about it beside it.

    The program has three inputs: `items` `(b, n, d)` in double precision, `mask` `(b, n)`, true for items and false for
    padding, and `given` `(b, n)`, true for items that are in the subset already. It returns `logits` `(b, n)`, those of
    `decision_function`. See `PaddedPredictor` for what is inside.

    Args:
        selector: A fitted selector of method "conditional" or "direct".
        path: The file: `.onnx` for ONNX (extra `export`), `.pt2` for `torch.export.load`. The other file is
            `FILE.json`: what the numbers of an item are, with all columns and categories, the rule for the number of
            items, and where the model comes from.

    Returns:
        The path of the JSON file.

    Raises:
        DataError: If a file cannot be written.
        MissingDependencyError: If onnx or onnxscript is not installed.
        NotFittedError: If the selector is not fitted.
        OptionError: If the selector cannot be exported, or the path has another ending.

    Examples:
        >>> import tempfile
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=8, n_test=8)
        >>> selector = SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0, device="cpu").fit(*task.train)
        >>> items, mask = task.test.sets.padded()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     about = export_model(selector, Path(folder, "model.pt2"))
        ...     program = torch.export.load(Path(folder, "model.pt2")).module()
        ...     names = sorted(path.name for path in Path(folder).iterdir())
        >>> names, program(items.double(), mask, torch.zeros_like(mask)).shape == mask.shape
        (['model.pt2', 'model.pt2.json'], True)
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise OptionError(f"{path} must end in .onnx, for ONNX, or in .pt2, for torch.export")
    is_onnx = path.suffix == ".onnx"
    if is_onnx:
        check_onnx()
    predictor = PaddedPredictor(selector)
    program = _trace(predictor, is_onnx=is_onnx)
    about = about_path(path)
    with atomic_write(path) as draft:
        if is_onnx:
            # In one file: a draft with another name cannot refer to a second one.
            with _quiet():
                onnx_program = torch.onnx.export(program, dynamo=True, verbose=False, external_data=False)
                assert onnx_program is not None
                onnx_program.save(str(draft), external_data=False)
        else:
            with draft.open("wb") as stream:
                torch.export.save(program, stream)
    with atomic_write(about) as draft:
        draft.write_bytes(to_json(_about(selector, predictor)))
    return about


def about_path(path: Path) -> Path:
    """Return the path of the JSON file beside a program."""
    return path.with_name(f"{path.name}.json")


def check_onnx() -> None:
    """Raise a MissingDependencyError if ONNX files cannot be written."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            'an ONNX file needs onnx and onnxscript: pip install "setgrad[export]"; or write a .pt2 file'
        ) from error


def _trace(predictor: PaddedPredictor, *, is_onnx: bool) -> torch.export.ExportedProgram:
    items = torch.linspace(-1, 1, 2 * 3 * predictor.width, dtype=torch.double).reshape(2, 3, -1)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    sizes = {0: torch.export.Dim("sets", min=1, max=_MOST), 1: torch.export.Dim("items_of_a_set", min=1, max=_MOST)}
    with torch.no_grad(), _quiet():
        return torch.export.export(
            predictor, (items, mask, torch.zeros_like(mask)), dynamic_shapes=(sizes, sizes, sizes), strict=False
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter says about itself: nothing in it is for users of a selector."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _about(selector: SubsetSelector, predictor: PaddedPredictor) -> dict[str, Any]:
    config = predictor.model.config
    return {
        "format": FORMAT,
        "version": VERSION,
        "inputs": {
            "items": {"shape": ["sets", "items", predictor.width], "type": "float64"},
            "mask": {"shape": ["sets", "items"], "type": "bool"},
            "given": {"shape": ["sets", "items"], "type": "bool"},
        },
        "outputs": {OUTPUT: {"shape": ["sets", "items"], "type": "float32"}},
        "method": config.options.method,
        "size_rule": rule_to_json(selector.size_rule_),
        "completion_rule": rule_to_json(selector.completion_rule_),
        "min_size": selector.min_size_,
        "start_weight": selector.start_weight_,
        # How the columns of a table become the numbers of an item, in their order.
        "table": None if selector.table_ is None else selector.table_.to_json(),
        "widths": None if config.parts is None else [part.width for part in config.parts],
        "origin": None if selector.origin_ is None else asdict(selector.origin_),
    }

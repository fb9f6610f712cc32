"""`setgrad export`: a model as a program that runs without setgrad."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from setgrad.cli._command import Command, CommandResult
from setgrad.cli._paths import check_output
from setgrad.export import export_model
from setgrad.export._write import INPUTS, OUTPUT, about_path
from setgrad.selector import load


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="folder that `setgrad fit` wrote")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help='file for the program: .onnx (pip install "setgrad[export]"), or .pt2 for torch.export; FILE.json beside '
        "it tells what the numbers of an item are",
    )


def _run(args: Namespace) -> CommandResult:
    for path in (args.output, about_path(args.output)):
        check_output(path, model=args.model, table=None)
    about = export_model(load(args.model, device="cpu"), args.output)
    data = {"program": str(args.output), "about": str(about), "inputs": list(INPUTS), "outputs": [OUTPUT]}
    return CommandResult(
        data,
        (
            f"program written to {args.output}: {', '.join(INPUTS)} to {OUTPUT}, for any number of sets and items",
            f"its columns, categories and size rule: {about}",
        ),
    )


EXPORT = Command(
    name="export",
    summary="write a model as a program for ONNX or torch.export",
    usage="setgrad export MODEL -o FILE",
    description=(
        "Write a program that computes the logits of the items of padded sets without setgrad: standardisation, "
        "vectors of categories and features relative to the set are inside. How a table becomes numbers is told by the "
        "JSON file beside it. The choice from the logits is a short loop, see the page on shipping a model."
    ),
    examples=(
        "setgrad export model/ -o model.onnx",
        "setgrad export model/ -o model.pt2",
    ),
    declare=_declare,
    run=_run,
)

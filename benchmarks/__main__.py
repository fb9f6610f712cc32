"""The command line of the benchmarks: `python -m benchmarks NAME`; without a name, lists them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import final

from setgrad.errors import SetgradError

# The modules of the benchmarks.
_PLACES = {
    "speed-meanfield": "speed.speed_meanfield",
    "members-speed": "speed.members_speed",
    "method-speed": "speed.method_speed",
    "speed-fit": "speed.speed_fit",
    "speed-predict": "speed.speed_predict",
    "gpu-fit": "speed.gpu_fit",
    "explain-time": "speed.explain_time",
    "serve-load": "speed.serve_load",
    "huge-set": "speed.huge_set",
    "scale": "speed.scale",
    "processes": "speed.processes",
    "time-to-score": "selection.time_to_score",
    "predict-sizes": "selection.predict_sizes",
    "table2": "selection.table2",
    "grid": "selection.grid",
    "copula": "selection.copula",
    "system": "selection.system",
    "ablation": "selection.ablation",
    "demo-scores": "selection.demo_scores",
    "constrained-training": "selection.constrained",
    "given": "selection.given",
    "utility": "selection.utility",
    "recall": "selection.recall",
    "size-limit": "selection.size_limit",
    "amazon-tables": "tables.amazon_tables",
    "bundle-tables": "tables.bundle_tables",
    "shop-tables": "tables.shop_tables",
    "table-reading": "tables.table_reading",
    "estimator-error": "implicit.estimator_error",
    "encoder-memory": "encoders.encoder_memory",
    "clustering": "encoders.clustering",
    "activations": "encoders.activations",
    "gradient-noise": "encoders.gradient_noise",
    "streaming": "encoders.streaming",
    "partition-variance": "encoders.partition_variance",
    "completion": "encoders.completion",
    "documents": "encoders.documents",
    "mil": "encoders.mil",
    "gradients": "discrete.gradients",
    "discrete-speed": "speed.discrete_speed",
    "dvae": "discrete.dvae",
    "ranking": "discrete.ranking",
    "explain": "discrete.explain",
    "relations": "discrete.relations",
    "paths": "discrete.paths",
    "tsp": "discrete.tsp",
    "tsp-noise": "discrete.tsp_noise",
    "matching": "discrete.matching",
    "graph-matching": "discrete.graph_matching",
    "knapsack": "discrete.knapsack",
    "implicit-gradient": "implicit.implicit_gradient",
    "implicit-memory": "implicit.implicit_memory",
    "implicit-solvers": "implicit.implicit_solvers",
    "implicit-qp": "implicit.implicit_qp",
    "attack": "attack.attack",
}


@final
class Benchmarks(Mapping[str, ModuleType]):
    """The benchmarks by name, imported where they are used: one may need a package that another does without.

    Each module has a docstring that names the claim, `configure(parser)` and `run(options) -> results`.
    """

    def __getitem__(self, name: str) -> ModuleType:
        return import_module(f"benchmarks.{_PLACES[name]}")

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


BENCHMARKS = Benchmarks()

# Writes the pages of all benchmarks from their records.
PAGES = "pages"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser(given[:1])
    options = parser.parse_args(given)
    if options.name is None:
        parser.print_help()
        return 0
    # For results that are kept: which command gave them.
    options.command = given
    try:
        results = _module(options.name).run(options)
    except SetgradError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"benchmark": options.name, **results}, indent=1) + "\n", encoding="utf-8")
    return 1 if results.get("failed") else 0


def make_parser(wanted: Sequence[str] = ()) -> argparse.ArgumentParser:
    """One subcommand for each benchmark; its help is the module's docstring.

    Args:
        wanted: The name of the benchmark, if it is known; others are then left out.
    """
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what setgrad claims. `python -m benchmarks NAME --help` says which claim.",
        formatter_class=plain,
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    every = (*BENCHMARKS, PAGES)
    for name in [name for name in every if name in wanted] or every:
        module = _module(name)
        text = module.__doc__ or ""
        one = names.add_parser(name, help=text.partition("\n")[0], description=text, formatter_class=plain)
        one.add_argument("--quick", action="store_true", help="a tiny version that only shows that it works")
        one.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
        module.configure(one)
    return parser


def _module(name: str) -> ModuleType:
    return import_module("benchmarks.all_pages") if name == PAGES else BENCHMARKS[name]


if __name__ == "__main__":
    sys.exit(main())

"""The command line of the benchmarks: `python -m benchmarks NAME`; without a name, lists them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import all_pages
from benchmarks.attack import attack
from benchmarks.discrete import (
    dvae,
    explain,
    gradients,
    graph_matching,
    knapsack,
    matching,
    paths,
    ranking,
    relations,
    tsp,
    tsp_noise,
)
from benchmarks.encoders import (
    activations,
    clustering,
    completion,
    documents,
    encoder_memory,
    gradient_noise,
    mil,
    partition_variance,
    streaming,
)
from benchmarks.implicit import estimator_error, implicit_gradient, implicit_memory, implicit_qp, implicit_solvers
from benchmarks.selection import (
    ablation,
    constrained,
    copula,
    demo_scores,
    given,
    grid,
    predict_sizes,
    recall,
    size_limit,
    system,
    table2,
    time_to_score,
    utility,
)
from benchmarks.speed import (
    discrete_speed,
    explain_time,
    gpu_fit,
    huge_set,
    members_speed,
    method_speed,
    processes,
    scale,
    serve_load,
    speed_fit,
    speed_meanfield,
    speed_predict,
)
from benchmarks.tables import amazon_tables, bundle_tables, shop_tables, table_reading
from setgrad.errors import SetgradError

# Each module has a docstring that names the claim, `configure(parser)` and `run(options) -> results`.
BENCHMARKS: dict[str, ModuleType] = {
    "speed-meanfield": speed_meanfield,
    "members-speed": members_speed,
    "method-speed": method_speed,
    "speed-fit": speed_fit,
    "speed-predict": speed_predict,
    "gpu-fit": gpu_fit,
    "explain-time": explain_time,
    "serve-load": serve_load,
    "huge-set": huge_set,
    "scale": scale,
    "processes": processes,
    "time-to-score": time_to_score,
    "predict-sizes": predict_sizes,
    "table2": table2,
    "grid": grid,
    "copula": copula,
    "system": system,
    "ablation": ablation,
    "demo-scores": demo_scores,
    "constrained-training": constrained,
    "given": given,
    "utility": utility,
    "recall": recall,
    "size-limit": size_limit,
    "amazon-tables": amazon_tables,
    "bundle-tables": bundle_tables,
    "shop-tables": shop_tables,
    "table-reading": table_reading,
    "estimator-error": estimator_error,
    "encoder-memory": encoder_memory,
    "clustering": clustering,
    "activations": activations,
    "gradient-noise": gradient_noise,
    "streaming": streaming,
    "partition-variance": partition_variance,
    "completion": completion,
    "documents": documents,
    "mil": mil,
    "gradients": gradients,
    "discrete-speed": discrete_speed,
    "dvae": dvae,
    "ranking": ranking,
    "explain": explain,
    "relations": relations,
    "paths": paths,
    "tsp": tsp,
    "tsp-noise": tsp_noise,
    "matching": matching,
    "graph-matching": graph_matching,
    "knapsack": knapsack,
    "implicit-gradient": implicit_gradient,
    "implicit-memory": implicit_memory,
    "implicit-solvers": implicit_solvers,
    "implicit-qp": implicit_qp,
    "attack": attack,
}


# Writes the pages of all benchmarks from their records.
PAGES = "pages"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; return the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.name is None:
        parser.print_help()
        return 0
    # For results that are kept: which command gave them.
    options.command = list(sys.argv[1:] if arguments is None else arguments)
    try:
        is_for_all = options.name == PAGES
        results = all_pages.rewrite(BENCHMARKS, options) if is_for_all else BENCHMARKS[options.name].run(options)
    except SetgradError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"benchmark": options.name, **results}, indent=1) + "\n", encoding="utf-8")
    return 1 if results.get("failed") else 0


def make_parser() -> argparse.ArgumentParser:
    """One subcommand for each benchmark; its help is the module's docstring."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what setgrad claims. `python -m benchmarks NAME --help` says which claim.",
        formatter_class=plain,
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    for name, module in {**BENCHMARKS, PAGES: all_pages}.items():
        text = module.__doc__ or ""
        one = names.add_parser(name, help=text.partition("\n")[0], description=text, formatter_class=plain)
        one.add_argument("--quick", action="store_true", help="a tiny version that only shows that it works")
        one.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
        module.configure(one)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""setgrad learns to choose: subset selection with machine learning, on PyTorch."""

from typing import TYPE_CHECKING

from setgrad import errors as errors
from setgrad._fork import compute_alone_after_fork
from setgrad.sets import Choices as Choices
from setgrad.sets import Sets as Sets

if TYPE_CHECKING:
    from setgrad import cli as cli
    from setgrad import cluster as cluster
    from setgrad import columns as columns
    from setgrad import datasets as datasets
    from setgrad import discrete as discrete
    from setgrad import encoders as encoders
    from setgrad import explain as explain
    from setgrad import export as export
    from setgrad import functions as functions
    from setgrad import implicit as implicit
    from setgrad import inference as inference
    from setgrad import report as report
    from setgrad import selector as selector
    from setgrad import sets as sets
    from setgrad.columns import TableDescription as TableDescription
    from setgrad.columns import describe as describe
    from setgrad.selector import AllOf as AllOf
    from setgrad.selector import Budget as Budget
    from setgrad.selector import Conflicts as Conflicts
    from setgrad.selector import Groups as Groups
    from setgrad.selector import MustHave as MustHave
    from setgrad.selector import MustNot as MustNot
    from setgrad.selector import SizeRange as SizeRange
    from setgrad.selector import SubsetSelector as SubsetSelector
    from setgrad.selector import load as load
    from setgrad.selector import tune as tune
    from setgrad.sets import read_table as read_table
    from setgrad.sets import write_table as write_table

__version__ = "0.2.0"

compute_alone_after_fork()

__all__ = [
    "AllOf",
    "Budget",
    "Choices",
    "Conflicts",
    "Groups",
    "MustHave",
    "MustNot",
    "Sets",
    "SizeRange",
    "SubsetSelector",
    "TableDescription",
    "cli",
    "cluster",
    "columns",
    "datasets",
    "describe",
    "discrete",
    "encoders",
    "errors",
    "explain",
    "export",
    "functions",
    "implicit",
    "inference",
    "load",
    "read_table",
    "report",
    "selector",
    "sets",
    "tune",
    "write_table",
]
# Where a name comes from that is not a package of its own. All are imported when first used, so that
# `import setgrad` stays fast.
_SOURCES = {
    **dict.fromkeys(("TableDescription", "describe"), "columns"),
    **dict.fromkeys(("AllOf", "Budget", "Conflicts", "Groups", "MustHave", "MustNot", "SizeRange"), "selector"),
    **dict.fromkeys(("SubsetSelector", "load", "tune"), "selector"),
    **dict.fromkeys(("read_table", "write_table"), "sets"),
}

# A type checker reads the imports above instead, so that it refuses unknown names.
if not TYPE_CHECKING:

    def __getattr__(name):
        import importlib

        if name not in __all__:
            raise AttributeError(f"module 'setgrad' has no attribute {name!r}")
        module = importlib.import_module(f"setgrad.{_SOURCES.get(name, name)}")
        return getattr(module, name) if name in _SOURCES else module

    def __dir__():
        return [*__all__, "__version__"]

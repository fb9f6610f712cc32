"""`Sets`, the container for a batch of sets; operations inside each set; reading and writing tables."""

from importlib import import_module
from typing import TYPE_CHECKING

from setgrad.sets._choices import Choices as Choices
from setgrad.sets._choices import Table as Table
from setgrad.sets._choices import as_sets as as_sets
from setgrad.sets._choices import as_subsets as as_subsets
from setgrad.sets._choices import subset_sizes as subset_sizes
from setgrad.sets._layout import Layout as Layout
from setgrad.sets._mapped import write_npy as write_npy
from setgrad.sets._segments import segment_matmul as segment_matmul
from setgrad.sets._segments import segment_max as segment_max
from setgrad.sets._segments import segment_mean as segment_mean
from setgrad.sets._segments import segment_order as segment_order
from setgrad.sets._segments import segment_rank as segment_rank
from setgrad.sets._segments import segment_softmax as segment_softmax
from setgrad.sets._segments import segment_sum as segment_sum
from setgrad.sets._segments import segment_top_k as segment_top_k
from setgrad.sets._sets import Sets as Sets
from setgrad.sets._sets import unpad as unpad

if TYPE_CHECKING:
    from setgrad.sets._read import read_table as read_table
    from setgrad.sets._write import write_table as write_table
else:

    def __getattr__(name: str) -> object:
        # Tables need PyArrow, which `import setgrad` must not load.
        modules = {"read_table": "_read", "write_table": "_write"}
        if name not in modules:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{modules[name]}"), name)

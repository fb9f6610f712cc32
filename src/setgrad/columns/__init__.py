"""The columns of a table: their kinds, and how they become the numbers of items.

The modules that read tables need PyArrow, so they are imported where a table is read.
"""

from setgrad.columns._describe import ColumnSummary as ColumnSummary
from setgrad.columns._describe import TableDescription as TableDescription
from setgrad.columns._understand import describe as describe

"""The columns of a table: their kinds, and how they become the numbers of items.

The modules that read tables need PyArrow, so they are imported where a table is read.
"""

from setgrad.columns._module import ColumnItems as ColumnItems
from setgrad.columns._part import Part as Part
from setgrad.columns._part import compared_scales as compared_scales
from setgrad.columns._part import count_features as count_features
from setgrad.columns._relative import RelativeFeatures as RelativeFeatures

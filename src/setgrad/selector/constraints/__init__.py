"""Constraints on subsets: budgets, groups, sizes, items that must or must not be chosen, and several of them at once.

A constraint returns a solver of `setgrad.discrete` for a group of sets of the same or of similar size. Its numbers
belong to the sets in their order; the indices of the sets tell which of them to use.
"""

from setgrad.selector.constraints._base import Constraint as Constraint
from setgrad.selector.constraints._base import LinearConstraint as LinearConstraint
from setgrad.selector.constraints.all_of import AllOf as AllOf
from setgrad.selector.constraints.all_of import AnyConstraint as AnyConstraint
from setgrad.selector.constraints.budget import Budget as Budget
from setgrad.selector.constraints.conflicts import Conflicts as Conflicts
from setgrad.selector.constraints.groups import Groups as Groups
from setgrad.selector.constraints.items import MustHave as MustHave
from setgrad.selector.constraints.items import MustNot as MustNot
from setgrad.selector.constraints.size_range import SizeRange as SizeRange

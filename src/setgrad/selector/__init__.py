"""The estimator: training, sizes, search, constraints, saving and loading."""

from setgrad.selector._device import resolve_device as resolve_device
from setgrad.selector._load import load as load
from setgrad.selector._options import SelectorOptions as SelectorOptions
from setgrad.selector._table_schema import TableSchema as TableSchema
from setgrad.selector.choice_losses import ChoiceLoss as ChoiceLoss
from setgrad.selector.choice_losses import Regret as Regret
from setgrad.selector.constraints import AllOf as AllOf
from setgrad.selector.constraints import Budget as Budget
from setgrad.selector.constraints import Conflicts as Conflicts
from setgrad.selector.constraints import Constraint as Constraint
from setgrad.selector.constraints import Groups as Groups
from setgrad.selector.constraints import LinearConstraint as LinearConstraint
from setgrad.selector.constraints import MustHave as MustHave
from setgrad.selector.constraints import MustNot as MustNot
from setgrad.selector.constraints import SizeRange as SizeRange
from setgrad.selector.metrics import jaccard as jaccard
from setgrad.selector.metrics import pick_top as pick_top
from setgrad.selector.presets import PRESETS as PRESETS
from setgrad.selector.search import greedy as greedy
from setgrad.selector.search import local_search as local_search
from setgrad.selector.selector import SubsetSelector as SubsetSelector
from setgrad.selector.sizes import SIZE_RULES as SIZE_RULES
from setgrad.selector.sizes import SizeRule as SizeRule
from setgrad.selector.tuning import Trial as Trial
from setgrad.selector.tuning import TuneResult as TuneResult
from setgrad.selector.tuning import tune as tune

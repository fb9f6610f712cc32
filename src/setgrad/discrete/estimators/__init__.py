"""Estimators of gradients through discrete choices, one in each file."""

from setgrad.discrete.estimators.aimle import AIMLE as AIMLE
from setgrad.discrete.estimators.blackbox import Blackbox as Blackbox
from setgrad.discrete.estimators.fenchel_young import FenchelYoung as FenchelYoung
from setgrad.discrete.estimators.gumbel_softmax import GumbelSoftmax as GumbelSoftmax
from setgrad.discrete.estimators.identity import Identity as Identity
from setgrad.discrete.estimators.imle import IMLE as IMLE
from setgrad.discrete.estimators.lpgd import LPGD as LPGD
from setgrad.discrete.estimators.lpgd import Envelope as Envelope
from setgrad.discrete.estimators.perturbed import Perturbed as Perturbed
from setgrad.discrete.estimators.rein_max import ReinMax as ReinMax
from setgrad.discrete.estimators.relaxed_spanning_tree import RelaxedSpanningTree as RelaxedSpanningTree
from setgrad.discrete.estimators.relaxed_top_k import RelaxedTopK as RelaxedTopK
from setgrad.discrete.estimators.score_function import ScoreFunction as ScoreFunction
from setgrad.discrete.estimators.score_function import reinforce as reinforce
from setgrad.discrete.estimators.score_function import rloo as rloo
from setgrad.discrete.estimators.sfess import SFESS as SFESS
from setgrad.discrete.estimators.simple import SIMPLE as SIMPLE
from setgrad.discrete.estimators.soft_sub import SoftSub as SoftSub
from setgrad.discrete.estimators.step_rules import PerInstanceRule as PerInstanceRule
from setgrad.discrete.estimators.step_rules import PublishedRule as PublishedRule
from setgrad.discrete.estimators.step_rules import ReferenceCodeRule as ReferenceCodeRule
from setgrad.discrete.estimators.step_rules import StepRule as StepRule
from setgrad.discrete.estimators.straight_through import StraightThrough as StraightThrough

"""Discrete choices, argmax <theta, z>: solvers, gradient estimators, noise, and distributions over z."""

from typing import TYPE_CHECKING, Any

from setgrad._deprecation import deprecated_name
from setgrad._status import Status as Status
from setgrad.discrete._estimator import GradientEstimator as GradientEstimator
from setgrad.discrete._estimator import SolverEstimator as SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver as CombinatorialSolver
from setgrad.discrete._solver import SolverResult as SolverResult
from setgrad.discrete.distributions import Categorical as Categorical
from setgrad.discrete.distributions import Distribution as Distribution
from setgrad.discrete.distributions import KSubset as KSubset
from setgrad.discrete.distributions import PlackettLuce as PlackettLuce
from setgrad.discrete.distributions import RandomSpanningTree as RandomSpanningTree
from setgrad.discrete.estimators import AIMLE as AIMLE
from setgrad.discrete.estimators import IMLE as IMLE
from setgrad.discrete.estimators import LPGD as LPGD
from setgrad.discrete.estimators import SFESS as SFESS
from setgrad.discrete.estimators import SIMPLE as SIMPLE
from setgrad.discrete.estimators import Blackbox as Blackbox
from setgrad.discrete.estimators import Envelope as Envelope
from setgrad.discrete.estimators import FenchelYoung as FenchelYoung
from setgrad.discrete.estimators import GumbelSoftmax as GumbelSoftmax
from setgrad.discrete.estimators import Identity as Identity
from setgrad.discrete.estimators import PerInstanceRule as PerInstanceRule
from setgrad.discrete.estimators import Perturbed as Perturbed
from setgrad.discrete.estimators import PublishedRule as PublishedRule
from setgrad.discrete.estimators import ReferenceCodeRule as ReferenceCodeRule
from setgrad.discrete.estimators import ReinMax as ReinMax
from setgrad.discrete.estimators import RelaxedSpanningTree as RelaxedSpanningTree
from setgrad.discrete.estimators import RelaxedTopK as RelaxedTopK
from setgrad.discrete.estimators import ScoreFunction as ScoreFunction
from setgrad.discrete.estimators import SoftSub as SoftSub
from setgrad.discrete.estimators import StepRule as StepRule
from setgrad.discrete.estimators import StraightThrough as StraightThrough
from setgrad.discrete.estimators import reinforce as reinforce
from setgrad.discrete.estimators import rloo as rloo
from setgrad.discrete.losses import hamming_loss as hamming_loss
from setgrad.discrete.losses import log_rank_loss as log_rank_loss
from setgrad.discrete.losses import loglog_rank_loss as loglog_rank_loss
from setgrad.discrete.losses import normalized_regret as normalized_regret
from setgrad.discrete.losses import recall_at_k as recall_at_k
from setgrad.discrete.losses import recall_loss as recall_loss
from setgrad.discrete.losses import regret as regret
from setgrad.discrete.margins import InformedMargin as InformedMargin
from setgrad.discrete.margins import Margin as Margin
from setgrad.discrete.margins import NoiseMargin as NoiseMargin
from setgrad.discrete.noise import Antithetic as Antithetic
from setgrad.discrete.noise import Gumbel as Gumbel
from setgrad.discrete.noise import Logistic as Logistic
from setgrad.discrete.noise import Noise as Noise
from setgrad.discrete.noise import NoNoise as NoNoise
from setgrad.discrete.noise import Normal as Normal
from setgrad.discrete.noise import PairedNoise as PairedNoise
from setgrad.discrete.noise import SumOfGamma as SumOfGamma
from setgrad.discrete.noise import Tempered as Tempered
from setgrad.discrete.projections import MeanProjection as MeanProjection
from setgrad.discrete.projections import NormProjection as NormProjection
from setgrad.discrete.projections import PlaneProjection as PlaneProjection
from setgrad.discrete.projections import Projection as Projection
from setgrad.discrete.projections import StdProjection as StdProjection
from setgrad.discrete.schedules import ConstantSchedule as ConstantSchedule
from setgrad.discrete.schedules import CosineSchedule as CosineSchedule
from setgrad.discrete.schedules import ExponentialSchedule as ExponentialSchedule
from setgrad.discrete.schedules import LinearSchedule as LinearSchedule
from setgrad.discrete.schedules import Schedule as Schedule
from setgrad.discrete.schedules import ScheduledTemperature as ScheduledTemperature
from setgrad.discrete.solvers import TSP as TSP
from setgrad.discrete.solvers import ArgMax as ArgMax
from setgrad.discrete.solvers import Assignment as Assignment
from setgrad.discrete.solvers import Backend as Backend
from setgrad.discrete.solvers import CallableSolver as CallableSolver
from setgrad.discrete.solvers import CardinalityRange as CardinalityRange
from setgrad.discrete.solvers import GraphMatching as GraphMatching
from setgrad.discrete.solvers import GraphPath as GraphPath
from setgrad.discrete.solvers import GridPath as GridPath
from setgrad.discrete.solvers import HiGHS as HiGHS
from setgrad.discrete.solvers import IntegerProgram as IntegerProgram
from setgrad.discrete.solvers import Knapsack as Knapsack
from setgrad.discrete.solvers import Matroid as Matroid
from setgrad.discrete.solvers import ORTools as ORTools
from setgrad.discrete.solvers import PartitionMatroid as PartitionMatroid
from setgrad.discrete.solvers import Program as Program
from setgrad.discrete.solvers import PyEPOSolver as PyEPOSolver
from setgrad.discrete.solvers import Ranking as Ranking
from setgrad.discrete.solvers import SpanningTree as SpanningTree
from setgrad.discrete.solvers import Threshold as Threshold
from setgrad.discrete.solvers import TopK as TopK
from setgrad.discrete.solvers import WorkerPool as WorkerPool
from setgrad.discrete.solvers import to_pyepo as to_pyepo

if not TYPE_CHECKING:
    _OLD_NAMES = {
        "Solver": CombinatorialSolver,
        "Solved": SolverResult,
        "Estimator": GradientEstimator,
        "Custom": CallableSolver,
        "FromPyEPO": PyEPOSolver,
        "HostPool": WorkerPool,
        "MirroredNoise": PairedNoise,
        "Temperature": ScheduledTemperature,
        "hamming": hamming_loss,
        "recall_at": recall_at_k,
    }

    def __getattr__(name: str) -> Any:
        return deprecated_name(__name__, name, _OLD_NAMES, removed_in="0.3.0")

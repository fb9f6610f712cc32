"""Set functions F(S, V), neural and classical, and their multilinear extension."""

from typing import TYPE_CHECKING, Any

from setgrad._deprecation import deprecated_name
from setgrad.functions._estimator import Bernoulli as Bernoulli
from setgrad.functions._estimator import ExtensionEstimator as ExtensionEstimator
from setgrad.functions._estimator import Gaussian as Gaussian
from setgrad.functions._estimator import Pathwise as Pathwise
from setgrad.functions._set_function import BoundSetFunction as BoundSetFunction
from setgrad.functions._set_function import FromCallable as FromCallable
from setgrad.functions._set_function import SetFunction as SetFunction
from setgrad.functions._set_function import as_set_function as as_set_function
from setgrad.functions.average import Average as Average
from setgrad.functions.coverage import Coverage as Coverage
from setgrad.functions.deep_set_function import DeepSetFunction as DeepSetFunction
from setgrad.functions.exact import Exact as Exact
from setgrad.functions.facility_location import FacilityLocation as FacilityLocation
from setgrad.functions.graph_cut import GraphCut as GraphCut
from setgrad.functions.horse_function import HorseFunction as HorseFunction
from setgrad.functions.inset_function import InsetFunction as InsetFunction
from setgrad.functions.item_scores import ItemScores as ItemScores
from setgrad.functions.log_determinant import LogDeterminant as LogDeterminant
from setgrad.functions.modular import Modular as Modular
from setgrad.functions.multilinear import multilinear_gradient as multilinear_gradient
from setgrad.functions.multilinear import multilinear_hessian_vector as multilinear_hessian_vector
from setgrad.functions.multilinear import multilinear_value as multilinear_value
from setgrad.functions.noise import FreshNoise as FreshNoise
from setgrad.functions.noise import FrozenNoise as FrozenNoise
from setgrad.functions.noise import ItemNoise as ItemNoise
from setgrad.functions.noise import NoiseSource as NoiseSource
from setgrad.functions.pair_scores import PairScores as PairScores
from setgrad.functions.relaxed import Relaxed as Relaxed
from setgrad.functions.second_difference import SecondDifference as SecondDifference
from setgrad.functions.similarity import rbf as rbf

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return an object by its old name, with a warning."""
        old = {
            "DeepSet": DeepSetFunction,
            "Direct": ItemScores,
            "Estimator": ExtensionEstimator,
            "Fresh": FreshNoise,
            "Frozen": FrozenNoise,
            "Horse": HorseFunction,
            "Inset": InsetFunction,
            "Noise": NoiseSource,
        }
        return deprecated_name(__name__, name, old, removed_in="0.3.0")

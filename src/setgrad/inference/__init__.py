"""Inference: from a set function to the probability of each item, and the losses that train it."""

from typing import TYPE_CHECKING, Any

from setgrad._deprecation import deprecated_name
from setgrad.inference.copula import CopulaRecognition as CopulaRecognition
from setgrad.inference.diagnostics import Contraction as Contraction
from setgrad.inference.diagnostics import contraction as contraction
from setgrad.inference.diagnostics import iterations_needed as iterations_needed
from setgrad.inference.losses import AllItems as AllItems
from setgrad.inference.losses import SampledNegatives as SampledNegatives
from setgrad.inference.losses import SubsetLoss as SubsetLoss
from setgrad.inference.mean_field import ImplicitMeanField as ImplicitMeanField
from setgrad.inference.mean_field import MeanField as MeanField
from setgrad.inference.mean_field import MeanFieldSolver as MeanFieldSolver
from setgrad.inference.mean_field import OneStepMeanField as OneStepMeanField
from setgrad.inference.mean_field import UnrolledMeanField as UnrolledMeanField
from setgrad.inference.mean_field import mean_field as mean_field
from setgrad.inference.partial import NextItem as NextItem
from setgrad.inference.partial import PartialCrossEntropy as PartialCrossEntropy
from setgrad.inference.partial import PartialSubsetLoss as PartialSubsetLoss
from setgrad.inference.partial import WeightedSum as WeightedSum
from setgrad.inference.partial import draw_partial_subsets as draw_partial_subsets
from setgrad.inference.recognition import IndependentRecognition as IndependentRecognition
from setgrad.inference.recognition import Recognition as Recognition
from setgrad.inference.scales import BatchFrobeniusScale as BatchFrobeniusScale
from setgrad.inference.scales import BatchNuclearScale as BatchNuclearScale
from setgrad.inference.scales import ConstantScale as ConstantScale
from setgrad.inference.scales import L2Scale as L2Scale
from setgrad.inference.scales import Scale as Scale

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return an object by its old name, with a warning."""
        old = {"Implicit": ImplicitMeanField, "OneStep": OneStepMeanField, "Unrolled": UnrolledMeanField}
        return deprecated_name(__name__, name, old, removed_in="0.3.0")

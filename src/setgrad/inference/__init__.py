"""Inference: from a set function to the probability of each item, and the losses that train it."""

from setgrad.inference.losses import AllItems as AllItems
from setgrad.inference.losses import SampledNegatives as SampledNegatives
from setgrad.inference.losses import SubsetLoss as SubsetLoss
from setgrad.inference.mean_field import MeanField as MeanField
from setgrad.inference.mean_field import MeanFieldSolver as MeanFieldSolver
from setgrad.inference.mean_field import OneStep as OneStep
from setgrad.inference.mean_field import Unrolled as Unrolled
from setgrad.inference.mean_field import mean_field as mean_field
from setgrad.inference.scales import ConstantScale as ConstantScale
from setgrad.inference.scales import L2Scale as L2Scale
from setgrad.inference.scales import Scale as Scale

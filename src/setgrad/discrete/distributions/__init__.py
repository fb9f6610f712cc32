"""Distributions over discrete points, with exact samples, probabilities, marginals, entropy, divergence and mode."""

from setgrad.discrete.distributions._base import Distribution as Distribution
from setgrad.discrete.distributions.categorical import Categorical as Categorical
from setgrad.discrete.distributions.k_subset import KSubset as KSubset
from setgrad.discrete.distributions.plackett_luce import PlackettLuce as PlackettLuce
from setgrad.discrete.distributions.spanning_tree import RandomSpanningTree as RandomSpanningTree

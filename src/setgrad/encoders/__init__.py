"""Encoders of sets. Item encoders give features to every item of a set."""

from setgrad.encoders._base import ItemEncoder as ItemEncoder
from setgrad.encoders._base import ItemWise as ItemWise
from setgrad.encoders._mergeable import MergeableEncoder as MergeableEncoder
from setgrad.encoders._mergeable import SetEncoder as SetEncoder
from setgrad.encoders._state import State as State
from setgrad.encoders.context import ContextItems as ContextItems
from setgrad.encoders.deep_sets import DeepSets as DeepSets
from setgrad.encoders.images import ImageItems as ImageItems
from setgrad.encoders.linear import LinearItems as LinearItems
from setgrad.encoders.mlp import MLPItems as MLPItems
from setgrad.encoders.sequences import PairItems as PairItems
from setgrad.encoders.stacked import Stacked as Stacked
from setgrad.encoders.streaming import stream as stream
from setgrad.encoders.umbc import UMBC as UMBC

# The presets of phi, by the name used in the estimator and on the command line. All take (in_dim, width).
ITEM_ENCODERS = {"context": ContextItems, "mlp": MLPItems, "paper": LinearItems, "image": ImageItems, "pair": PairItems}

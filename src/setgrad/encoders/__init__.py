"""Item encoders, which compute features of every item, and set encoders, which compute one code for each set."""

from setgrad.encoders._base import ItemEncoder as ItemEncoder
from setgrad.encoders._base import ItemWise as ItemWise
from setgrad.encoders._max_state import MaxState as MaxState
from setgrad.encoders._mergeable import ChunkedEncoder as ChunkedEncoder
from setgrad.encoders._mergeable import MergeableEncoder as MergeableEncoder
from setgrad.encoders._mergeable import SetEncoder as SetEncoder
from setgrad.encoders._rank_guard import guard_ranks as guard_ranks
from setgrad.encoders._state import State as State
from setgrad.encoders.activations import Activation as Activation
from setgrad.encoders.activations import Sigmoid as Sigmoid
from setgrad.encoders.activations import SlotExp as SlotExp
from setgrad.encoders.activations import SlotSigmoid as SlotSigmoid
from setgrad.encoders.activations import SlotSoftmax as SlotSoftmax
from setgrad.encoders.activations import Softmax as Softmax
from setgrad.encoders.context import ContextItems as ContextItems
from setgrad.encoders.deep_sets import DeepSets as DeepSets
from setgrad.encoders.deep_umbc import DeepUMBC as DeepUMBC
from setgrad.encoders.diff_em import DiffEM as DiffEM
from setgrad.encoders.distributed import Sharded as Sharded
from setgrad.encoders.distributed import begin_over as begin_over
from setgrad.encoders.distributed import mean_gradients as mean_gradients
from setgrad.encoders.distributed import merge_over as merge_over
from setgrad.encoders.distributed import stream_over as stream_over
from setgrad.encoders.fspool import FSPool as FSPool
from setgrad.encoders.images import ImageItems as ImageItems
from setgrad.encoders.linear import LinearItems as LinearItems
from setgrad.encoders.max_pool import MaxPool as MaxPool
from setgrad.encoders.mil import ABMIL as ABMIL
from setgrad.encoders.mil import DSMIL as DSMIL
from setgrad.encoders.mlp import MLPItems as MLPItems
from setgrad.encoders.pixel_cnn import PixelCNNItems as PixelCNNItems
from setgrad.encoders.sequences import PairItems as PairItems
from setgrad.encoders.set_transformer import SetTransformer as SetTransformer
from setgrad.encoders.set_transformer import TransformerHead as TransformerHead
from setgrad.encoders.sources import NpyChunks as NpyChunks
from setgrad.encoders.sources import ParquetChunks as ParquetChunks
from setgrad.encoders.sse import SSE as SSE
from setgrad.encoders.sse import OnSlots as OnSlots
from setgrad.encoders.sse import hierarchical_sse as hierarchical_sse
from setgrad.encoders.stacked import Stacked as Stacked
from setgrad.encoders.streaming import stream as stream
from setgrad.encoders.umbc import UMBC as UMBC
from setgrad.encoders.umbc_items import UMBCItems as UMBCItems

# The item encoders by the names of phi in the estimator and on the command line. All take (in_dim, dim).
ITEM_ENCODERS = {
    "context": ContextItems,
    "umbc": UMBCItems,
    "mlp": MLPItems,
    "paper": LinearItems,
    "image": ImageItems,
    "pixel-cnn": PixelCNNItems,
    "pair": PairItems,
}

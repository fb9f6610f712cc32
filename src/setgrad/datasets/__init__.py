"""Tasks and tables to train and test on: generated, bundled with scikit-learn, and loaders of public data."""

from typing import TYPE_CHECKING

from setgrad.datasets._amazon import AMAZON_CATEGORIES as AMAZON_CATEGORIES
from setgrad.datasets._amazon import AMAZON_PROTOCOLS as AMAZON_PROTOCOLS
from setgrad.datasets._amazon import amazon as amazon
from setgrad.datasets._anomaly import ANOMALY_IMAGES as ANOMALY_IMAGES
from setgrad.datasets._anomaly import anomaly as anomaly
from setgrad.datasets._bayes import bayes_jaccard as bayes_jaccard
from setgrad.datasets._bindingdb import BINDINGDB_MEASURES as BINDINGDB_MEASURES
from setgrad.datasets._bindingdb import bindingdb as bindingdb
from setgrad.datasets._bundles import BUNDLE_CATEGORIES as BUNDLE_CATEGORIES
from setgrad.datasets._bundles import bundles as bundles
from setgrad.datasets._celeba import celeba as celeba
from setgrad.datasets._clusters import clusters as clusters
from setgrad.datasets._compounds import COMPOUND_DATASETS as COMPOUND_DATASETS
from setgrad.datasets._compounds import compounds as compounds
from setgrad.datasets._digits import digits as digits
from setgrad.datasets._folds import fold as fold
from setgrad.datasets._folds import folds as folds
from setgrad.datasets._load import LOADERS as LOADERS
from setgrad.datasets._load import TaskLoader as TaskLoader
from setgrad.datasets._load import load_task as load_task
from setgrad.datasets._load import task_names as task_names
from setgrad.datasets._load_table import TABLES as TABLES
from setgrad.datasets._load_table import TableLoader as TableLoader
from setgrad.datasets._load_table import load_table as load_table
from setgrad.datasets._load_table import table_names as table_names
from setgrad.datasets._mil import MIL_DATASETS as MIL_DATASETS
from setgrad.datasets._mil import Bags as Bags
from setgrad.datasets._mil import bag_folds as bag_folds
from setgrad.datasets._mil import mil as mil
from setgrad.datasets._pair_sets import COMPOUND_PROTOCOLS as COMPOUND_PROTOCOLS
from setgrad.datasets._synthetic import gaussian as gaussian
from setgrad.datasets._synthetic import moons as moons
from setgrad.datasets._table_task import TableTask as TableTask
from setgrad.datasets._task import Task as Task
from setgrad.datasets._tokens import pair_tokens as pair_tokens

# Hidden from type checkers, so that they report unknown names.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from setgrad._deprecation import deprecated_name

        old_names = {"load": load_task, "names": task_names, "Loader": TaskLoader}
        return deprecated_name(__name__, name, old_names, removed_in="0.3.0")

"""Tasks to learn from: generators, a real task from bundled images, and loaders of public data."""

from setgrad.datasets._amazon import AMAZON_CATEGORIES as AMAZON_CATEGORIES
from setgrad.datasets._amazon import AMAZON_PROTOCOLS as AMAZON_PROTOCOLS
from setgrad.datasets._amazon import amazon as amazon
from setgrad.datasets._anomaly import ANOMALY_PICTURES as ANOMALY_PICTURES
from setgrad.datasets._anomaly import anomaly as anomaly
from setgrad.datasets._bayes import bayes_jaccard as bayes_jaccard
from setgrad.datasets._bindingdb import BINDINGDB_MEASURES as BINDINGDB_MEASURES
from setgrad.datasets._bindingdb import bindingdb as bindingdb
from setgrad.datasets._bundles import BUNDLE_CATEGORIES as BUNDLE_CATEGORIES
from setgrad.datasets._bundles import bundles as bundles
from setgrad.datasets._celeba import celeba as celeba
from setgrad.datasets._compounds import COMPOUND_DATASETS as COMPOUND_DATASETS
from setgrad.datasets._compounds import compounds as compounds
from setgrad.datasets._digits import digits as digits
from setgrad.datasets._folds import fold as fold
from setgrad.datasets._folds import folds as folds
from setgrad.datasets._load import LOADERS as LOADERS
from setgrad.datasets._load import Loader as Loader
from setgrad.datasets._load import Request as Request
from setgrad.datasets._load import load as load
from setgrad.datasets._load import names as names
from setgrad.datasets._pair_sets import COMPOUND_PROTOCOLS as COMPOUND_PROTOCOLS
from setgrad.datasets._synthetic import gaussian as gaussian
from setgrad.datasets._synthetic import moons as moons
from setgrad.datasets._task import Task as Task
from setgrad.datasets._tokens import pair_tokens as pair_tokens

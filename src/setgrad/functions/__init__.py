"""Set functions F(S, V), neural and classical, and their multilinear extension."""

from setgrad.functions._protocol import BoundSetFunction as BoundSetFunction
from setgrad.functions._protocol import FromCallable as FromCallable
from setgrad.functions._protocol import SetFunction as SetFunction
from setgrad.functions._protocol import as_set_function as as_set_function
from setgrad.functions.coverage import Coverage as Coverage
from setgrad.functions.deepset import DeepSet as DeepSet
from setgrad.functions.direct import Direct as Direct
from setgrad.functions.estimators import Bernoulli as Bernoulli
from setgrad.functions.estimators import Estimator as Estimator
from setgrad.functions.estimators import Exact as Exact
from setgrad.functions.estimators import Gaussian as Gaussian
from setgrad.functions.estimators import multilinear_gradient as multilinear_gradient
from setgrad.functions.estimators import multilinear_hessian_vector as multilinear_hessian_vector
from setgrad.functions.estimators import multilinear_value as multilinear_value
from setgrad.functions.facility import FacilityLocation as FacilityLocation
from setgrad.functions.graph_cut import GraphCut as GraphCut
from setgrad.functions.log_determinant import LogDeterminant as LogDeterminant
from setgrad.functions.modular import Modular as Modular
from setgrad.functions.noise import Fresh as Fresh
from setgrad.functions.noise import ItemNoise as ItemNoise
from setgrad.functions.noise import Noise as Noise
from setgrad.functions.similarity import rbf as rbf

"""Solvers of combinatorial problems, one kind in each file."""

from setgrad.discrete.solvers._pool import WorkerPool as WorkerPool
from setgrad.discrete.solvers.assignment import Assignment as Assignment
from setgrad.discrete.solvers.backends import Backend as Backend
from setgrad.discrete.solvers.backends import HiGHS as HiGHS
from setgrad.discrete.solvers.backends import ORTools as ORTools
from setgrad.discrete.solvers.backends import Program as Program
from setgrad.discrete.solvers.callable_solver import CallableSolver as CallableSolver
from setgrad.discrete.solvers.cardinality import CardinalityRange as CardinalityRange
from setgrad.discrete.solvers.graph_matching import GraphMatching as GraphMatching
from setgrad.discrete.solvers.graph_path import GraphPath as GraphPath
from setgrad.discrete.solvers.grid_path import GridPath as GridPath
from setgrad.discrete.solvers.integer_program import IntegerProgram as IntegerProgram
from setgrad.discrete.solvers.knapsack import Knapsack as Knapsack
from setgrad.discrete.solvers.matroid import Matroid as Matroid
from setgrad.discrete.solvers.matroid import PartitionMatroid as PartitionMatroid
from setgrad.discrete.solvers.pyepo import PyEPOSolver as PyEPOSolver
from setgrad.discrete.solvers.pyepo import to_pyepo as to_pyepo
from setgrad.discrete.solvers.ranking import Ranking as Ranking
from setgrad.discrete.solvers.spanning_tree import SpanningTree as SpanningTree
from setgrad.discrete.solvers.threshold import Threshold as Threshold
from setgrad.discrete.solvers.top_k import ArgMax as ArgMax
from setgrad.discrete.solvers.top_k import TopK as TopK
from setgrad.discrete.solvers.tsp import TSP as TSP

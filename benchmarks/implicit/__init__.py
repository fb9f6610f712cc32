"""Implicit differentiation: accuracy, memory and cost of its solvers."""

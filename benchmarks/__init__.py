"""Measurements behind what setgrad claims, one file for each: `python -m benchmarks NAME`."""

"""Scores of subset selectors on the tasks of `setgrad.datasets`."""

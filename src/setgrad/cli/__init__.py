"""The command `setgrad`: the estimator for those who have a table and a terminal."""

from setgrad.cli._main import main as main

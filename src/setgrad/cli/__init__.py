"""The command `setgrad`: fit, predict and evaluate from a table and a terminal."""

from setgrad.cli._main import main as main

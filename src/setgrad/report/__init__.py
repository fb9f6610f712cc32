"""Scores of a fitted selector, and one self-contained HTML page that shows what it learned."""

from setgrad.report._scores import Evaluation as Evaluation
from setgrad.report._scores import Scores as Scores
from setgrad.report._scores import chance_jaccard as chance_jaccard
from setgrad.report._scores import evaluate as evaluate
from setgrad.report._scores import score_grid as score_grid
from setgrad.report._scores import size_rule_grid as size_rule_grid
from setgrad.report._write import Section as Section
from setgrad.report._write import require_matplotlib as require_matplotlib
from setgrad.report._write import write_report as write_report

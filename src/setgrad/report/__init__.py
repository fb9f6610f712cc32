"""Scores of a fitted selector, and a self-contained HTML report about it."""

from setgrad.report._scores import Evaluation as Evaluation
from setgrad.report._scores import Scores as Scores
from setgrad.report._scores import chance_jaccard as chance_jaccard
from setgrad.report._scores import evaluate as evaluate
from setgrad.report._write import Section as Section
from setgrad.report._write import write_report as write_report

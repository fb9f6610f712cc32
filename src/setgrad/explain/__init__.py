"""Why items were chosen: gains, effects of columns, Shapley values, interactions, and what would change the choice."""

from setgrad.explain.explanation import Explanation as Explanation
from setgrad.explain.importance import Importance as Importance
from setgrad.explain.interactions import PairValues as PairValues
from setgrad.explain.interactions import second_differences as second_differences
from setgrad.explain.interactions import shapley_interactions as shapley_interactions
from setgrad.explain.shapley import ShapleyValues as ShapleyValues
from setgrad.explain.shapley import shapley_values as shapley_values
from setgrad.explain.steps import GainSteps as GainSteps
from setgrad.explain.steps import gain_steps as gain_steps

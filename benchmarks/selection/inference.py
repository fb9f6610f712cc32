"""Scores of a fitted selector: with its own inference, with one mean-field step, and with converged inference.

Table 7 of arXiv:2412.11239 compares the last two. A recognition network still provides the start. Models of Bernoulli
samples get Gaussian masks for converged inference, because their own map is not continuous and cannot converge.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from setgrad import SubsetSelector
from setgrad.functions import ItemNoise
from setgrad.functions.average import BoundAverage
from setgrad.selector import jaccard, pick_top
from setgrad.selector._batched_inference import map_batches
from setgrad.selector._model_config import ModelConfig
from setgrad.sets import Choices, Sets, subset_sizes

_MAX_STEPS = 50


def score_selector(selector: SubsetSelector, test: Choices) -> dict[str, float | None]:
    """Return all test scores in percent; None for inferences that a model does not have."""
    if selector.model_.config.options.method == "conditional":
        # Items are chosen one by one, so there is no mean field.
        own, given_size = selector.score(*test), selector.score_true_size(*test)
        return {"one_step": None, "converged": None, "true_size": 100 * given_size, "own_size": 100 * own}
    configs = inferences(selector.model_.config)
    sizes = subset_sizes(test.subsets)
    inferred: dict[ModelConfig, tuple[Sets, float | None]] = {}
    scores: dict[str, float | None] = {"one_step": None, "converged": None, "share_converged_test": None}
    for name, config in configs.items():
        if config not in inferred:
            inferred[config] = infer(selector, config, test.sets)
        logits, converged = inferred[config]
        score = 100 * float(jaccard(pick_top(logits.values, test.sets, sizes), test.subsets).mean())
        scores[name] = score
        if name == "converged":
            scores["share_converged_test"] = converged
    chosen = selector.predict(test.sets, scores=inferred[selector.model_.config][0])
    scores["own_size"] = 100 * float(jaccard(chosen, test.subsets).mean())
    return scores


def inferences(config: ModelConfig) -> dict[str, ModelConfig]:
    """Return the configuration of each inference by the name of its score; equal ones are equal."""
    if config.options.method == "direct":
        return {"true_size": config}
    single = config.options.steps == 1 and config.options.method != "implicit"
    smooth = "gaussian" if config.options.estimator == "bernoulli" else config.options.estimator
    return {
        "true_size": config,
        "one_step": config
        if single
        else config.with_options(method="one-step", steps=1, forward=None, backward=None, tol=None),
        "converged": config
        if config.options.method == "implicit"
        else config.with_options(method="implicit", steps=_MAX_STEPS, estimator=smooth),
    }


def infer(selector: SubsetSelector, config: ModelConfig, sets: Sets) -> tuple[Sets, float | None]:
    """Return the logits of `decision_function` for another configuration, and the share of converged sets."""
    # As in the selector: a copy in float64. Only the configuration differs, the weights are shared.
    model = copy.copy(selector._precise())
    model.config = config
    samples = config.options.resolved_predict_samples
    converged: list[Tensor] = []

    def work(bound: BoundAverage, batch: Sets, numbers: np.ndarray) -> Tensor:
        result = model.infer(bound, ItemNoise(batch, 0), samples=samples)
        converged.append(result.converged.double())
        return result.logits

    kind = sets.dtype if sets.dtype.is_floating_point else torch.get_default_dtype()
    logits = map_batches(model, sets, work).to(kind)
    iterated = config.options.method == "implicit"
    return sets.with_values(logits), float(torch.cat(converged).mean()) if iterated and converged else None

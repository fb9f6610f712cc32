"""`SubsetSelector`: learns from sets and the subset chosen from each, then chooses from new sets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.discrete import CombinatorialSolver
from setgrad.errors import NotFittedError, OptionError, ShapeError, unknown_name
from setgrad.functions import BoundSetFunction, SetFunction
from setgrad.selector import _files
from setgrad.selector._allowed import Allowed
from setgrad.selector._check import check_options, check_scores, constrained_cut
from setgrad.selector._fit import fit_selector, prediction_samples
from setgrad.selector._infer import finite_logits, infer_logits, map_batches
from setgrad.selector._model import ChoiceModel, Learned
from setgrad.selector.constraints import Constraint
from setgrad.selector.metrics import mean_jaccard, pick_top
from setgrad.selector.presets import PRESETS
from setgrad.selector.search import constrained_search, greedy, local_search
from setgrad.selector.sizes import given_sizes, probability, rule_to_json, sizes_above
from setgrad.sets import Choices, Sets, as_sets, subset_sizes

SEARCHES = ("greedy", "local")


@final
class SubsetSelector:
    """Learns what makes a subset good from examples, and picks subsets of new sets of any size.

    Args:
        method: How probabilities are inferred and differentiated: mean field "unrolled", "one-step" (the last step
            differentiated alone), "implicit" (settled, with its true gradient), started by a recognition network
            ("amortised", "copula", "free-copula"), or "direct", a plain score for each item.
        function: The form of F: "deepset", or its rivals "inset" and "horse".
        phi: What F sees of an item: "context" (attention over the whole set), "mlp", "paper" (linear), "image",
            "pixel-cnn", "pair" (of letters), or one of these and then attention, as "pixel-cnn+context"; or a module.
        dim: Number of features of phi.
        layers: Attention layers of the contextual phi.
        heads: Attention heads of the contextual phi.
        attention: "full", "induced" (linear cost) or "auto": induced when a training set has over 1024 items.
        hidden: Units of the layers of rho.
        relation: Rank of a part of F that compares each item with the mean of its set, 0 for none; None for 64 where F
            is a deepset of phi="context" with fewer than 800 training sets, which teach attention little, else for 0.
        members: Models that learn side by side, whose logits are averaged; None for 8 where they learn in one step (on
            a GPU, for phi "context", "mlp" or "paper" and sets of up to 1024 items), and else for 1.
        estimator: Expectation over subsets by "bernoulli" or "pathwise" samples, "gaussian" masks, or "exact"
            enumeration; None for "bernoulli", and "gaussian" where method="implicit" needs a smooth one.
        samples: Subsets drawn for each set and step in training.
        predict_samples: Subsets drawn in prediction; None for four times as many as in training.
        steps: Mean-field steps; None for 1, and at most 50 for method="implicit".
        scale: Scaling of the logits: None, "l2", a constant, or the paper's "frobenius-batch" and "nuclear-batch";
            scaled probabilities stay near 1/2.
        loss: Cross-entropy over "all" items, or over S* and as many "negatives".
        learning_rate: Step size of AdamW, after a short warm-up.
        weight_decay: Decay of the weights.
        batch_size: Sets in a training batch.
        max_epochs: Passes over the training sets, at most; None for 100, and up to 400 steps where there are few sets.
        patience: Epochs without a better validation score before training stops; None for 10, or 60 steps.
        clip: Largest norm of the gradient.
        average: Weights are averaged over time, forgetting at this rate; 0 for none.
        validation_fraction: Part of the sets held out when fit gets no validation sets.
        standardize: Whether features are brought to mean 0 and deviation 1 inside the model.
        checkpoint: File to keep the state of training in; a killed fit goes on from there.
        device: "cpu", "cuda", ...; None takes a GPU if there is one.
        random_state: Seed; the same seed gives the same result, bit for bit, on CPU with as many threads.
        verbose: 0 is silent, 1 shows a progress bar.

    Example:
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=40, n_validation=20, n_test=20)
        >>> sel = SubsetSelector(dim=16, max_epochs=2, random_state=0, verbose=0)
        >>> sel = sel.fit(*task.train, validation=task.validation)
        >>> picks = sel.predict(task.test.sets)
        >>> len(picks), picks[0].dtype
        (20, torch.bool)
    """

    model_: ChoiceModel

    def __init__(
        self,
        *,
        method: str = "unrolled",
        function: str = "deepset",
        phi: str | nn.Module = "context",
        dim: int = 128,
        layers: int = 2,
        heads: int = 4,
        attention: str = "auto",
        hidden: Sequence[int] = (512, 256),
        relation: int | None = None,
        members: int | None = None,
        estimator: str | None = None,
        samples: int = 5,
        predict_samples: int | None = None,
        steps: int | None = None,
        scale: str | float | None = None,
        loss: str = "all",
        learning_rate: float = 1e-3,
        weight_decay: float = 0.1,
        batch_size: int = 64,
        max_epochs: int | None = None,
        patience: int | None = None,
        clip: float = 1.0,
        average: float = 0.98,
        validation_fraction: float = 0.2,
        standardize: bool = True,
        checkpoint: str | Path | None = None,
        device: str | None = None,
        random_state: int | None = None,
        verbose: int = 1,
    ) -> None:
        self.method = method
        self.function = function
        self.phi = phi
        self.dim = dim
        self.layers = layers
        self.heads = heads
        self.attention = attention
        self.hidden = hidden
        self.relation = relation
        self.members = members
        self.estimator = estimator
        self.samples = samples
        self.predict_samples = predict_samples
        self.steps = steps
        self.scale = scale
        self.loss = loss
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.clip = clip
        self.average = average
        self.validation_fraction = validation_fraction
        self.standardize = standardize
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, name: str = "diffmf", **options: Any) -> SubsetSelector:
        """A published method: "diffmf", "idiffmf-2", "equivset-copula", ... (see `PRESETS`). Options override it.

        "idiffmf-2" and "idiffmf-nuclear" divide by a norm of the batch, so a set's batch mates change its prediction.
        """
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
        return cls(**{**PRESETS[name], **options})

    # ---- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name."""
        return {name: getattr(self, name) for name in _option_names()}

    def set_params(self, **params: Any) -> SubsetSelector:
        """Change options by name."""
        for name, value in params.items():
            if name not in _option_names():
                raise unknown_name("option", name, _option_names())
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(SubsetSelector).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if repr(v) != repr(defaults[k].default)]
        return f"SubsetSelector({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        tags = Tags(estimator_type=None, target_tags=TargetTags(required=True, multi_output=True))
        tags.input_tags = InputTags(two_d_array=False, three_d_array=True)
        return tags

    # ---- learning

    def fit(
        self,
        sets: Any,
        subsets: Any,
        *,
        validation: Any = None,
        sample_weight: Any = None,
        start: SubsetSelector | None = None,
        constraint: Constraint | CombinatorialSolver | None = None,
    ) -> SubsetSelector:
        """Learn from sets and the subset chosen from each.

        Args:
            sets: `Sets`, a list of arrays `(n_i, d)`, or an array `(b, n, d)`.
            subsets: The chosen items: a `Sets` of booleans, or a list of masks or of index lists.
            validation: Held-out `(sets, subsets)` for early stopping and for learning sizes; split off if None.
            sample_weight: How much each set `(b,)` or each item `(total,)` counts in the loss; only ratios matter.
            start: A fitted selector of the same make whose weights to begin with: what was learned on much data helps
                where there is little.
            constraint: What the subsets were chosen under, as in `predict`: the loss then asks that the best allowed
                subset be the chosen one. For validation sets of their own, `(sets, subsets, constraint)`.
        """
        if start is not None:
            if not isinstance(start, SubsetSelector):
                raise OptionError(
                    f"start must be a fitted SubsetSelector, not {type(start).__name__}; see setgrad.load"
                )
            start._check_fitted()
        model = None if start is None else start.model_
        fitted = fit_selector(self.get_params(), sets, subsets, validation, sample_weight, model, constraint)
        self.model_ = fitted.model
        self.size_rule_ = fitted.size_rule
        self.size_scores_ = fitted.size_scores
        self.min_size_ = fitted.min_size
        self.history_ = fitted.history
        self.best_epoch_ = fitted.best_epoch
        self.n_features_in_ = int(np.prod(fitted.model.config.item_shape))
        self._exact_model: ChoiceModel | None = None
        return self

    # ---- choosing

    def decision_function(self, sets: Any) -> Sets:
        """Logit of each item: its inferred marginal gain."""
        sets = self._check_sets(sets)
        samples = prediction_samples(self.get_params())
        # Decisions rest on the logits as users see them, and half precision would tie items that are not equal.
        least = torch.float32 if sets.dtype.is_floating_point else torch.get_default_dtype()
        logits = finite_logits(infer_logits(self._precise(), sets, samples=samples, warn=True), sets)
        return sets.with_values(logits.to(torch.promote_types(sets.dtype, least)))

    def predict_proba(self, sets: Any, *, scores: Sets | None = None) -> Sets:
        """Inferred probability of each item to be chosen; `scores` as in `predict`."""
        sets = self._check_sets(sets)
        return sets.with_values(probability(self._logits(sets, scores)))

    def predict(
        self,
        sets: Any,
        *,
        size: int | Sequence[int] | None = None,
        threshold: float | None = None,
        search: str | None = None,
        constraint: Constraint | CombinatorialSolver | None = None,
        scores: Sets | None = None,
    ) -> Sets:
        """Choose a subset of each set, as a `Sets` of booleans.

        Args:
            sets: The sets to choose from.
            size: How many items to choose, one number or one for each set; None lets the model decide.
            threshold: Choose the items whose probability exceeds this, instead of a size.
            search: "greedy" builds the subset on F item by item; "local" improves the choice on F by single moves.
            constraint: Choose the allowed subset with the largest sum of logits, so that an item is worth taking if
                its probability is above 1/2, or above `threshold`. `Budget`, `Groups`, `SizeRange`, `AllOf`, or any
                solver of `setgrad.discrete` over the items of a set. With search="local", improve it on F.
            scores: What `decision_function` gave for these sets, where it is at hand: saves computing it again.
        """
        sets = self._check_sets(sets)
        if size is not None and threshold is not None:
            raise OptionError("size and threshold both say how many items to choose; give one of them")
        if search is not None and search not in SEARCHES:
            raise unknown_name("search", search, SEARCHES)
        if constraint is not None:
            return self._constrained(sets, constraint, size, threshold, search, scores)
        # Greedy search asks F alone, but sets that are beyond the model are found and named here.
        logits = self._logits(sets, scores)
        if search == "greedy" and size is None and threshold is None:
            return sets.with_values(self._search(sets, lambda bound, *_: greedy(bound).values))
        sizes = self._sizes(sets, logits, size, threshold)
        start = pick_top(logits, sets, sizes)
        if search is None:
            return start
        fixed = size is not None or threshold is not None or search == "greedy"

        def work(bound: BoundSetFunction, _: Sets, numbers: np.ndarray) -> Tensor:
            if search == "greedy":
                return greedy(bound, sizes[torch.as_tensor(numbers)].to(bound.sets.device)).values
            begin = start.take(numbers).to(bound.sets.device)
            return local_search(bound, begin, keep_size=fixed).values

        return sets.with_values(self._search(sets, work))

    def score(self, sets: Any, subsets: Any, *, constraint: Constraint | CombinatorialSolver | None = None) -> float:
        """Mean Jaccard score of what `predict` chooses, with the size decided by the model: what a user gets."""
        choices = Choices.of(sets, subsets)
        return mean_jaccard(self.predict(choices.sets, constraint=constraint), choices.subsets)

    def score_true_size(self, sets: Any, subsets: Any) -> float:
        """Mean Jaccard score when the true size of each subset is given away, as the papers report."""
        choices = Choices.of(sets, subsets)
        picked = self.predict(choices.sets, size=subset_sizes(choices.subsets).tolist() if len(choices) else None)
        return mean_jaccard(picked, choices.subsets)

    @property
    def function_(self) -> SetFunction:
        """The learned F, on standardised features: ask `bind(sets)` of it for values and gains of any subset."""
        self._check_fitted()
        return Learned(self.model_, self._precise, self._check_sets)

    # ---- keeping

    def save(self, folder: str | Path) -> None:
        """Write the fitted selector to a folder: `config.json` and `weights.safetensors`."""
        self._check_fitted()
        # What `load` would refuse, options that were set since the fit may be, is refused here.
        check_options(self.get_params())
        # The phi that was fitted, which `set_params` may have exchanged since.
        params = {**self.get_params(), "phi": self.model_.config.phi, "checkpoint": None, "device": None}
        _files.write_model(
            folder,
            self.model_.state_dict(),
            {
                "params": params,
                "model": self.model_.config.to_json(),
                "size_rule": rule_to_json(self.size_rule_),
                "size_scores": self.size_scores_,
                "min_size": self.min_size_,
                "history": self.history_,
                "best_epoch": self.best_epoch_,
            },
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError("this SubsetSelector is not fitted yet; call fit(sets, subsets) first")

    def _check_sets(self, sets: Any) -> Sets:
        self._check_fitted()
        sets = as_sets(sets)
        shape = self.model_.config.item_shape
        if sets.layout.total == 0:
            # Sets without any item may not know the shape of items.
            return sets.with_values(sets.values.new_zeros(0, *shape))
        if tuple(sets.item_shape) != shape:
            raise ShapeError(
                f"the selector was fitted on items of shape {shape}, these have shape {tuple(sets.item_shape)}"
            )
        return sets

    def _logits(self, sets: Sets, scores: Sets | None) -> Tensor:
        if scores is None:
            return self.decision_function(sets).values
        check_scores(scores, sets)
        return scores.values

    def _precise(self) -> ChoiceModel:
        # In float64, rounding is far below what float32 results can show: batches make no difference.
        if self._exact_model is None:
            self._exact_model = copy.deepcopy(self.model_).eval().double()
        return self._exact_model

    def _search(self, sets: Sets, work: Callable[[BoundSetFunction, Sets, np.ndarray], Tensor]) -> Tensor:
        return map_batches(self._precise(), sets, work).bool()

    def _constrained(
        self,
        sets: Sets,
        constraint: Constraint | CombinatorialSolver,
        size: int | Sequence[int] | None,
        threshold: float | None,
        search: str | None,
        scores: Sets | None,
    ) -> Sets:
        cut = constrained_cut(size, threshold, search)
        allowed = Allowed.of(constraint, sets)
        start = allowed.choose(self._logits(sets, scores) - cut, sets)
        if search is None:
            return start

        def work(bound: BoundSetFunction, batch: Sets, numbers: np.ndarray) -> Tensor:
            part = allowed.take(numbers)
            begin = start.take(numbers).to(batch.device)
            return constrained_search(bound, begin, lambda worth: part.solve(worth, batch)).values

        return sets.with_values(self._search(sets, work))

    def _sizes(self, sets: Sets, logits: Tensor, size: int | Sequence[int] | None, threshold: float | None) -> Tensor:
        if threshold is not None:
            return sizes_above(threshold, logits, sets)
        if size is None:
            return self.size_rule_.sizes_from(self.min_size_, logits, sets)
        return given_sizes(size, sets)


def _option_names() -> list[str]:
    return list(inspect.signature(SubsetSelector).parameters)

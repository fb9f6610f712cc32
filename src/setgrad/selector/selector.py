"""`SubsetSelector`: learns from sets and the subset chosen from each, then chooses from new sets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor

from setgrad.columns._arguments import TableArguments
from setgrad.errors import OptionError, parameter, unknown_name
from setgrad.selector._choice_gradient import FENCHEL_YOUNG, make_gradient
from setgrad.selector._explaining import AbstractExplaining
from setgrad.selector._fit import FitResult
from setgrad.selector._learning import AbstractLearning
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_files import write_model
from setgrad.selector._monitor import Callback
from setgrad.selector._options import AbstractOptions, SelectorOptions
from setgrad.selector._origin import Origin
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._routing import AbstractConventions
from setgrad.selector._rows import group_choices
from setgrad.selector._set_state import AbstractEncoding
from setgrad.selector._stream_choice import check_streamed, is_streamed
from setgrad.selector._table_input import as_choices, is_table
from setgrad.selector._table_schema import TableSchema
from setgrad.selector._validation_input import read_validation
from setgrad.selector._writing import AbstractWriting
from setgrad.selector.choice_losses import ChoiceLoss
from setgrad.selector.constraints import AnyConstraint
from setgrad.selector.presets import PRESETS
from setgrad.selector.sizes import SizeRule, rule_to_json


@final
@dataclass(kw_only=True, eq=False, repr=False)
class SubsetSelector(
    AbstractOptions, AbstractLearning, AbstractExplaining, AbstractEncoding, AbstractWriting, AbstractConventions
):
    """Learns what makes a subset good from examples, and picks subsets of new sets of any size.

    The estimator follows the conventions of scikit-learn: the constructor stores the options and `fit` checks them.

    Args:
        method: How F is trained. "conditional", the default: at random parts of the chosen subset, so that the gain of
            an item is the log-odds that it is chosen too. By the probabilities of mean field: "unrolled" (through all
            steps), "one-step" (through the last step), "implicit" (at the solution, by the implicit function theorem),
            or started by a recognition network ("amortised", "copula", "free-copula"). "direct" is one score for each
            item.
        function: Form of the set function F: "deepset", "inset" or "horse".
        phi: Encoder of the items: "context" (attention over the whole set), "umbc" (the same for sets of any size,
            which may be read in chunks), "mlp", "paper" (one linear layer), "image", "pixel-cnn" or "pair" (pairs of
            sequences). "+context" adds attention, as in "mlp+context". Or a module.
        dim: Number of features that phi computes for an item.
        layers: Attention layers of the contextual phi.
        heads: Attention heads of the contextual phi; they must divide dim.
        attention: "full", "induced" (cost linear in the size of a set), or "auto": induced for sets above 1024 items.
        hidden: Units of the hidden layers that turn a subset into F. None is (512, 256), and (256, 128) for
            method="conditional" with phi="context" and items of fewer than 32 features.
        relation: Rank of the part of F that compares an item with the mean of its set; 0 for none. None is 64 for a
            deepset of phi="context" with method="conditional" or fewer than 800 training sets, and of
            phi="pixel-cnn+context" with method="conditional" and fewer than 4,000; else 0. With method="conditional",
            phi="context", fewer than 800 training sets and at least 30 for validation a second model without it and
            without pairs is trained too, and kept if it is clearly better on the validation sets.
        pairs: Whether F has a term for pairs of chosen items that are alike, or unlike. None is yes where
            method="conditional" has a relation by default, but for items of 4,096 numbers or more.
        half: Whether one of the subsets of a training step of method="conditional" is a random half of the set. None is
            yes with fewer than 800 training sets, where it keeps F from learning the subsets by heart.
        relative: Whether an item also has features relative to its set: ranks, distances from the mean, and how often
            its categories and words occur. None is yes for method="conditional" with phi="context", and items from a
            table or with at most 32 numbers.
        trees: Whether boosted trees give each item a first score, to which F is added. They are grown before training,
            on columns, features relative to the set, and mean labels of categories and of pairs of them, in five folds:
            a set is scored by trees that have not seen it. They also learn from validation sets, unless these are
            passed or there are weights. None is yes for method="conditional" with phi="context" on tables that have
            categories, texts or facts of a set, unless there is a constraint.
        members: Number of models that are trained side by side; their logits are averaged. None is 8 where one step
            trains all (on a GPU, with phi "context", "mlp" or "paper" and sets of at most 1024 items), else 1. With
            method="conditional" and fewer than 800 training sets, or 4,096 features, each is trained by itself.
        estimator: Estimator of the expectation over subsets: "bernoulli", "pathwise" or "gaussian" samples, "exact"
            enumeration, "relaxed", F at fractional masks in its place, or "second-difference": random subsets with an
            unbiased derivative, for small sets. None is "gaussian" for the implicit method, which needs a smooth one,
            else "bernoulli".
        samples: Subsets that are sampled for each set in a training step. None is 5; for method="conditional" it is 4,
            the empty one among them, 2 on a CPU with 2,000 training sets or more and fewer than 32 features, and 8 for
            items of 4,096 numbers or more.
        predict_samples: Subsets that are sampled for each set in prediction. None is four times as many as in training.
        chunk_size: With phi="umbc", a larger set is read in chunks of so many items, so that it need not fit into
            memory; with mean field the `dim` features of each item do. It changes results by rounding only. Method
            "conditional", "implicit", "unrolled" or "one-step".
        chunk_gradient: Gradient of a set that is read in chunks: "exact", or "sample", that of one random chunk of each
            pass, whose expectation is the exact one and which takes half of the time.
        steps: Mean-field steps. None is 1, and at most 50 for the implicit method.
        forward: Solver of the implicit method: "adaptive-picard" (None), "picard", "anderson", "newton" or "broyden".
        backward: Solver of its backward pass: "gmres" (None), "bicgstab", "normal-cg", "direct", "neumann", "one-step".
        tol: Relative tolerance of both passes of the implicit method. None is 1e-3.
        scale: Scaling of the logits: none, "l2", a constant, or the norms over a whole batch of Özcan et al. (2024),
            "frobenius-batch" and "nuclear-batch". Scaled probabilities stay near 1/2.
        loss: Cross-entropy over "all" items (None), or over the chosen items and as many sampled "negatives". For
            method="conditional": over "all" items, of the next item in a "list" with a stop, or "all+list" (None).
        learning_rate: Learning rate of AdamW after a short warm-up. None is 0.001, and 0.002 for method="conditional"
            with 2,000 training sets or more and fewer than 32 features on a CPU.
        weight_decay: Weight decay of AdamW.
        batch_size: Sets in a training batch. None is 64, and 32 for method="conditional" with fewer than 1,200 training
            sets, on a CPU fewer than 10,000.
        max_epochs: Largest number of epochs. None is 100, or as many as make 400 steps, whichever is more; 200 for
            method "conditional" with phi "pair" or "pair+context".
        max_time: Seconds that a fit may take, without the reading of a file; None for no limit. Steps become smaller
            towards the end, and the best model is kept. How many epochs fit into the time, and so the result, depends
            on the machine.
        patience: Epochs after which training stops if the validation score has not gained 0.1 points and the validation
            loss has not fallen by 0.5 %. None is 10, or as many as make 60 steps, whichever is more; with many steps in
            an epoch, 5 are enough for method="conditional", which waits 20 with phi "pair" or "pair+context". From a
            score of 99.5 on, a quarter of it is.
        clip: Largest norm of the gradient; a longer one is scaled down.
        average: Decay of the moving average of the weights; 0 for no average.
        validation_fraction: Share of the sets that is held out if there are no separate validation sets.
        standardize: Whether features are scaled to mean 0 and standard deviation 1; by quantiles, with a warning, where
            a few values are so far away that they would make the others equal.
        checkpoint: File for the state of training after every epoch. An interrupted fit resumes from it.
        checkpoint_minutes: Minutes after which the state is also saved inside a long epoch: between its parts, which
            have at most 512 steps.
        device: "cpu", "cuda" or "cuda:1". None is a GPU if there is one.
        random_state: Seed. The same seed gives the same result, bit for bit on a CPU with the same number of threads.
        verbose: 1 shows how far it is: a bar in a terminal, elsewhere a line every ten seconds. 2 writes a line after
            every epoch, 0 nothing. The lines also go to the logger "setgrad" of Python's logging, at level INFO.

    Attributes:
        options_: The options in use: each None is replaced by the value that fit chose for it.
        model_: The trained model.
        history_: One record for each epoch: loss, validation scores, share of sets on which inference converged, time.
            Of members that end apart it has the mean, where one that has ended counts with its best epoch.
        stopped_: Whether Ctrl-C or the callback ended the fit, so that more training may make the model better.
        best_epoch_: The epoch whose weights are used, counted from 1; of members that end apart, the last of theirs.
            0 if boosted trees alone were as good on the validation sets, and are used without the rest of F.
        validation_score_: The validation score of these weights, with the true size; with method="conditional" and no
            constraint the mean of two, from nothing and from one right item.
        size_rule_: The rule for the number of items, and `size_scores_` the validation scores of all rules.
        completion_rule_: The rule for sets with given items.
        min_size_: Size of the smallest subset in fitting; predictions are not smaller.
        recall_: The calibration of `predict(recall=...)`.
        stop_logit_: The logit of the end of a draw in `sample`, for method="conditional".
        start_weight_: The weight of the gains at the start in a choice item by item, 0, 0.5 or 1.
        origin_: Where the model comes from: date (UTC), versions, size and hash of the data; None for old models.
        n_features_in_: Number of features.
        table_: Columns of the table that it was fitted on, or None; feature_names_in_ are their features.

    Examples:
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=40, n_validation=20, n_test=20)
        >>> sel = SubsetSelector(dim=16, max_epochs=2, random_state=0, verbose=0).fit(*task.train)
        >>> sel.predict(task.test.sets)[0].dtype
        torch.bool
    """

    options_: SelectorOptions = field(init=False)
    model_: ChoiceModel = field(init=False)
    history_: list[dict[str, float]] = field(init=False)
    best_epoch_: int = field(init=False)
    validation_score_: float = field(init=False)
    size_rule_: SizeRule = field(init=False)
    completion_rule_: SizeRule = field(init=False)
    size_scores_: dict[str, float] = field(init=False)
    min_size_: int = field(init=False)
    recall_: RecallCalibration | None = field(init=False)
    stop_logit_: float = field(init=False)
    start_weight_: float = field(init=False)
    stopped_: bool = field(init=False)
    origin_: Origin | None = field(init=False)
    n_features_in_: int = field(init=False)
    table_: TableSchema | None = field(init=False)
    _validated: SelectorOptions | None = field(init=False, default=None)
    _exact_model: ChoiceModel | None = field(init=False, default=None)

    @classmethod
    def from_options(cls, options: SelectorOptions) -> SubsetSelector:
        """Return a selector with validated options.

        Examples:
            >>> SubsetSelector.from_options(SelectorOptions(dim=64))
            SubsetSelector(dim=64)
        """
        selector = cls(**options.get_params())
        selector._validated = options
        return selector

    @classmethod
    def preset(cls, name: str = "diffmf", **options: Any) -> SubsetSelector:
        """Return a selector with the options of a published method.

        "idiffmf-2" and "idiffmf-nuclear" divide by a norm of the whole batch, so the prediction for a set depends on
        the other sets of its batch.

        Args:
            name: One of `PRESETS`: "diffmf", "idiffmf-2", "equivset-copula", ...
            **options: Options that replace those of the preset.

        Raises:
            OptionError: If there is no such preset.

        Examples:
            >>> SubsetSelector.preset("diffmf", dim=64).method
            'one-step'
        """
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
        return cls(**{**PRESETS[name], **options})

    @classmethod
    def paper(cls, name: str = "diffmf", **options: Any) -> SubsetSelector:
        """Return `preset(name, **options)`; the old name, which will be removed."""
        warnings.warn(
            "SubsetSelector.paper is now SubsetSelector.preset; the old form will be removed in 0.3.0",
            DeprecationWarning,
            stacklevel=2,
        )
        return cls.preset(name, **options)

    # ---- learning

    def fit(
        self,
        sets: Any,
        subsets: Any = None,
        *,
        groups: Any = None,
        set_id: str | None = None,
        chosen: str | None = None,
        item_id: str | None = None,
        features: Iterable[str] | None = None,
        weight: str | None = None,
        columns: Mapping[str, str] | None = None,
        embed: Iterable[str] = (),
        validation: Any = None,
        sample_weight: Any = None,
        start: SubsetSelector | None = None,
        constraint: AnyConstraint | None = None,
        gradient: str = FENCHEL_YOUNG,
        choice_loss: str | ChoiceLoss | Callable[[Tensor, Tensor], Tensor] | None = None,
        stream: bool | None = None,
        callback: Callback | None = None,
        distributed: bool = False,
    ) -> SubsetSelector:
        """Learn from sets and the subset chosen from each.

        Args:
            sets: `Sets`, a list of arrays `(n_i, d)`, an array `(b, n, d)`, or `Choices`, which hold subsets too. Or a
                table with one row for each item, as `read_table` takes it: a data frame, a file, a folder. Or, with
                groups, an array `(rows, d)`.
            subsets: The chosen items: a `Sets` of booleans, or a list of masks or of index lists. Of a table or an
                array of rows, one boolean, or 0 or 1, for each row; `predict` then returns such an array too.
            groups: The set of each row of an array or a table, which may come in any order. With scikit-learn's
                metadata routing, `set_fit_request(groups=True)` asks for it.
            set_id: Column of the table with the set of a row.
            chosen: Column that says whether the item was chosen.
            item_id: Column with the id of the item.
            features: Columns with the features of an item; None for all that are understood and have no other role.
            weight: Column with the weight of the row in the loss.
            columns: Kinds of columns that differ from those that are found: "number", "boolean", "category", "id",
                "date", "text", "vector", or "ignore". See `setgrad.describe`.
            embed: Columns of ids to learn a vector of each id for, which may be that of the items.
            validation: Held-out `(sets, subsets)` for early stopping and for the rule of sizes, or a table of the same
                columns; `(X, y, groups)` as in a fit on rows, without groups if a column has them. None to split them
                off.
            sample_weight: Weight of each set `(b,)` or of each item `(total,)` in the loss; only ratios matter.
            start: A fitted selector of the same architecture, whose weights training starts from. This helps where
                there are few sets.
            constraint: The constraint under which the subsets were chosen, as in `predict`; the loss compares the best
                allowed subset with the chosen one. Separate validation sets are then `(sets, subsets, constraint)`.
            gradient: With a constraint, the "fenchel-young" loss, or the estimator of the gradient of `choice_loss`:
                "identity", "imle" or "aimle".
            choice_loss: Loss of the best feasible subset: "hamming" (None), "jaccard", a `ChoiceLoss` such as `Regret`,
                or a function from chosen and target, floats `(k, n)`, to `(k,)`.
            stream: Whether Parquet files are read block by block while training runs, so that the table may be larger
                than memory; the rows of a set must be together. None does so if the table would not fit, and for the
                address of an object store or a `pyarrow.dataset.Dataset`.
            callback: Is called after each epoch with its record, a dict as in `history_`, such as for a tracker of
                experiments. If it returns True, training ends, and the best model so far is kept. If it raises any
                error, the fit ends with that error, without a model; the checkpoint has the epoch already.
            distributed: Whether all processes of the process group fit this one model together, each on a share of
                every batch. All make the same call, with the same data; each gets the fitted selector. Under torchrun
                the group is started and ended here. The callback is called, and the checkpoint written, by rank 0.

        Returns:
            The fitted selector itself. Ctrl-C ends training, and the selector is fitted with the best model so far; a
            warning says so. A second Ctrl-C ends the fit at once, without a model.

        Raises:
            DataError: If the data cannot be used, or the constraint does not allow a chosen subset.
            FileFormatError: If the checkpoint belongs to another run.
            LostRankError: If another process of a distributed fit is lost or fails; start all of them again.
            NotFittedError: If `start` is not fitted.
            OptionError: If an option is not allowed.
            ShapeError: If shapes do not fit together.
            TrainingError: If training diverges.
        """
        if start is not None:
            if not isinstance(start, SubsetSelector):
                kind = type(start).__name__
                raise OptionError(f"{parameter('start')} must be a fitted SubsetSelector, not {kind}; see setgrad.load")
            start._check_fitted()
        arguments = TableArguments(set_id, chosen, item_id, features, weight, columns, embed)
        training = make_gradient(gradient, choice_loss, constrained=constraint is not None)
        with self.fitting_together() if distributed else nullcontext():
            if is_streamed(sets, stream, verbose=self.validate().verbose > 0):
                check_streamed(constraint, subsets=subsets, groups=groups, sample_weight=sample_weight)
                streamed = self.read_to_stream(sets, arguments, has_validation=validation is not None, start=start)
                return self.fit_streamed(streamed, validation, training, start, callback)
            if is_table(sets):
                read = self.read_to_fit(
                    sets, arguments, subsets, groups, sample_weight, has_validation=validation is not None, start=start
                )
                return self.fit_read(read, validation, constraint, training, start, callback)
            self.validate()
            arguments.check_no_table()
            if groups is None:
                sets, subsets, sample_weight = as_choices(sets, subsets, sample_weight)
            else:
                sets, subsets, sample_weight = group_choices(sets, subsets, groups, sample_weight)
            validation = read_validation(validation, None)
            seed = self._seed()
            return self._fit(
                sets, subsets, sample_weight, validation, constraint, training, start, seed, None, callback
            )

    # ---- saving

    def save(self, folder: str | Path) -> None:
        """Write the fitted selector to a folder: `config.json`, `weights.safetensors`, and `README.md` for people.

        A `README.md` that was changed by hand stays, and a warning says so.

        Raises:
            DataError: If the folder holds something else, or cannot be written.
            NotFittedError: If the selector is not fitted.
            OptionError: If options were changed since the fit to values that could not be loaded.
        """
        self._check_fitted()
        config = self.model_.config
        # The fitted phi, which `set_params` may have replaced. Paths and devices belong to this machine.
        local = {"phi": config.phi, "checkpoint": None, "device": None}
        write_model(
            folder,
            self.model_.state_dict() | ({} if self.recall_ is None else self.recall_.tensors()),
            {
                "options": self.validate().get_params() | local,
                "options_in_use": config.options.get_params() | local,
                "item_shape": config.item_shape,
                "slots": config.slots,
                "table": None if self.table_ is None else self.table_.to_json(),
                "size_rule": rule_to_json(self.size_rule_),
                "completion_rule": rule_to_json(self.completion_rule_),
                "size_scores": self.size_scores_,
                "min_size": self.min_size_,
                "stop_logit": self.stop_logit_,
                "start_weight": self.start_weight_,
                "history": self.history_,
                "best_epoch": self.best_epoch_,
                "validation_score": self.validation_score_,
                "origin": None if self.origin_ is None else asdict(self.origin_),
            },
        )

    def validate(self) -> SelectorOptions:
        """Return the validated options, or raise an OptionError; `fit` does this first."""
        params, valid = self.get_params(), self._validated
        # Validated again only if an attribute changed.
        if valid is None or any(getattr(valid, name) is not value for name, value in params.items()):
            valid = self._validated = SelectorOptions(**params)
        return valid

    def _set_fitted(self, result: FitResult) -> None:
        config = result.model.config
        self.model_, self.options_ = result.model, config.options
        self.history_, self.best_epoch_ = result.history, result.best_epoch
        self.validation_score_ = result.validation_score
        self.size_rule_, self.completion_rule_ = result.size_rule, result.completion_rule
        self.size_scores_, self.min_size_ = result.size_scores, result.min_size
        self.recall_, self.stop_logit_, self.start_weight_ = result.recall, result.stop_logit, result.start_weight
        self.stopped_, self.origin_ = result.stopped, result.origin
        self.n_features_in_ = int(np.prod(config.item_shape))
        self.table_, self._exact_model = None, None

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The features of the table that the selector was fitted on."""
        schema: TableSchema | None = getattr(self, "table_", None)
        if schema is None:
            raise AttributeError("feature_names_in_ is there after a fit on a table")
        return np.array(schema.features, dtype=object)

    @property
    def _predict_samples(self) -> int:
        return self.validate().resolved_predict_samples

"""What a fitted selector does: probabilities, subsets, draws, values and gains."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from setgrad._progress import showing
from setgrad.errors import NotFittedError, OptionError, parameter
from setgrad.functions import SetFunction
from setgrad.functions.average import BoundAverage
from setgrad.selector._batched_inference import (
    check_finite,
    evaluate,
    infer_logits,
    logit_dtype,
    map_batches,
)
from setgrad.selector._data import check_item_shape
from setgrad.selector._draws import DRAWS, closest_to_draws, draw_subsets
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._input import Input
from setgrad.selector._known import Known
from setgrad.selector._learned_function import LearnedSetFunction
from setgrad.selector._model import ChoiceModel
from setgrad.selector._picks import as_kind_of, check_carry, check_ids, picks_table
from setgrad.selector._prediction import Chooser, SubsetRequest, check_scores
from setgrad.selector._recall import RecallCalibration, recall_level
from setgrad.selector._rows import check_has_groups
from setgrad.selector._table_input import is_table
from setgrad.selector._table_schema import TableSchema
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.constraints import AnyConstraint
from setgrad.selector.metrics import mean_jaccard
from setgrad.selector.sizes import SizeRule, probability
from setgrad.sets import Choices, Sets, Table, as_sets, subset_sizes

if TYPE_CHECKING:
    import pyarrow as pa


class AbstractChoosing(abc.ABC):
    """The methods of a fitted selector that choose."""

    model_: ChoiceModel
    size_rule_: SizeRule
    completion_rule_: SizeRule
    min_size_: int
    recall_: RecallCalibration | None
    stop_logit_: float
    start_weight_: float
    table_: TableSchema | None
    verbose: int
    _exact_model: ChoiceModel | None

    @property
    @abc.abstractmethod
    def _predict_samples(self) -> int:
        """Samples of the estimator in prediction."""

    def decision_function(self, sets: Any, *, given: Any = None, excluded: Any = None, groups: Any = None) -> Any:
        """Return the logit of each item to be in the subset, given what is known; arguments are those of `predict`.

        The result is a `Sets`; with groups, an array with one number for each row.

        Raises:
            DataError: If the features are not finite or too large.
            NotFittedError: If the selector is not fitted.
            ShapeError: If items have another shape than in fitting.
        """
        asked = self._open(sets, groups)
        return asked.answer(self._infer(asked.sets, Known.of(*asked.masks(given, excluded), asked.sets)))

    def predict_proba(
        self, sets: Any, *, given: Any = None, excluded: Any = None, scores: Sets | None = None, groups: Any = None
    ) -> Any:
        """Return the probability of each item to be in the subset, given what is known.

        It is 1 for a given item and 0 for an excluded one. Arguments and errors are those of `predict`. The result is
        a `Sets`; with groups, or after `fit(X, y)`, an array with one number for each row.
        """
        asked = self._open(sets, groups, scores)
        known = Known.of(*asked.masks(given, excluded), asked.sets)
        return asked.answer(asked.sets.with_values(self._probabilities(asked.sets, known, scores)))

    def predict(
        self,
        sets: Any,
        *,
        given: Any = None,
        excluded: Any = None,
        size: int | Sequence[int] | None = None,
        threshold: float | None = None,
        search: str | None = None,
        constraint: AnyConstraint | None = None,
        decide: str | None = None,
        recall: float | None = None,
        scores: Sets | None = None,
        on_failure: str = "raise",
        carry: Iterable[str] = (),
        groups: Any = None,
    ) -> Any:
        """Choose a subset of each set.

        Args:
            sets: The sets to choose from; or, after a fit on a table, another table.
            given: Items that are in the subset already, as masks or index lists, or the name of a column of the table.
                The choice completes them; they count in every size, budget and group.
            excluded: Items that are known to be out of it.
            size: How many items to choose, one number or one for each set; all of a smaller set. None: the fitted rule.
            threshold: Choose the items whose probability exceeds this, instead of a number of items.
            search: "greedy" builds the subset on F item by item, which is what method="conditional" does anyway.
                "local" improves the choice on F by single moves. "completion" completes the subset from each of the
                best 32 first items and takes the likeliest: for sets in which one of several subsets is right.
            constraint: A constraint (`Budget`, `MustHave`, ...), a list of them, or a solver of `setgrad.discrete`. The
                choice stays if it is allowed; else the allowed subset with the largest sum of logits, less the cut
                between chosen and other items, is found exactly. On F (method="conditional", search="local") a search
                then goes on over allowed subsets; it is not exact.
            decide: "expected-jaccard" draws 64 subsets and takes the candidate with the best mean score with them.
            recall: Choose the fewest items that hold, on average over new sets, at least this share of what would be
                chosen; see `calibrate_recall`.
            scores: The result of `decision_function` for the same arguments, to avoid computing it again.
            on_failure: For a set without an allowed subset: "raise" an error, or "skip" it: warn and leave it empty.
            carry: Columns of the table to repeat in the result.
            groups: The set of each row, if `sets` is an array `(rows, d)` or a frame without a column that tells it.

        Returns:
            The chosen subsets, a `Sets` of booleans. Of a table, a frame of the same kind (pandas, polars, else Arrow)
            with its rows: set id, item id, chosen, probability, and the rank in the set, chosen items first. With
            groups, or after `fit(X, y)`, an array with one boolean for each row.

        Raises:
            DataError: If the features are not finite or too large, or an item is given and excluded.
            NotFittedError: If the selector is not fitted.
            OptionError: If arguments do not go together.
            ShapeError: If shapes do not fit together.
            SolverError: If a set has no allowed subset. The message names the set and the reason.
        """
        request = SubsetRequest(size, threshold, search, constraint, on_failure, decide, recall)
        if scores is not None and (is_table(sets) or groups is not None):
            passed = "a table was" if is_table(sets) else "rows were"
            raise OptionError(f"{parameter('scores')} belong to sets, but {passed} passed; leave them out")
        asked = self._open(sets, groups, scores)
        is_frame = asked.table is not None and not asked.answers_rows
        if not is_frame and (not isinstance(carry, tuple) or carry):
            passed = "sets were passed" if asked.table is None else "the result is an array with a boolean for each row"
            raise OptionError(f"{parameter('carry')} names columns of a table, but {passed}; leave it out")
        known = asked.masks(given, excluded)
        if is_frame:
            return as_kind_of(sets, self.choose_rows(asked, request, *known, carry)[1])
        name_of = None if asked.read is None else asked.name_of
        picks, _ = self._choose_scored(asked.sets, request, Known.of(*known, asked.sets), scores, name_of)
        return asked.answer(picks)

    def choose_rows(
        self, asked: Input, request: SubsetRequest, given: Any, excluded: Any, carry: Iterable[str] = ()
    ) -> tuple[Sets, pa.Table]:
        """Return the subsets chosen from a table, and its picks as an Arrow table; arguments are those of `predict`."""
        assert asked.table is not None and isinstance(asked.read, Table)
        check_ids(asked.table.schema)
        carried = check_carry(carry, asked.table)
        sets, known = asked.sets, Known.of(given, excluded, asked.sets)
        picks, scores = self._choose_scored(sets, request, known, None, asked.name_of, with_logits=True)
        probability = sets.with_values(self._probabilities(sets, known, scores))
        return picks, picks_table(asked.table, asked.read, picks=picks, probability=probability, carried=carried)

    def sample(
        self, sets: Any, n: int = 1, *, given: Any = None, excluded: Any = None, random_state: int = 0
    ) -> list[Sets]:
        """Draw whole subsets from what the model thinks possible.

        The conditional method draws item by item: the next item with a probability proportional to exp(gain), the end
        with one proportional to exp(`stop_logit_`), which is learned from the validation sets. So the items of a draw
        belong together. Other methods draw each item independently.

        Args:
            sets: The sets.
            n: Number of draws of each set.
            given: Items that are in the subset already, as in `predict`.
            excluded: Items that are known to be out of it.
            random_state: Seed. The draws of a set do not depend on the other sets.

        Returns:
            The draws, `n` times a `Sets` of booleans.

        Raises:
            OptionError: If `n` is not a whole number of at least 1; other errors are those of `predict`.
        """
        asked = self._open(sets, None)
        sets, known = asked.sets, asked.masks(given, excluded)
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
            raise OptionError(f"{parameter('n')} must be a whole number of at least 1, not {n!r}")
        draws = self._draw(sets, int(n), random_state, Known.of(*known, sets))
        return [sets.with_values(draw) for draw in draws]

    def value(self, sets: Any, subsets: Any) -> Tensor:
        """Return F of one subset of each set, `(b,)`.

        With method="conditional", a difference of two values is a sum of gains: how the log-odds change on the way from
        one subset to the other. A value alone has no meaning, and values of different sets cannot be compared.

        Args:
            sets: Anything that `fit` takes.
            subsets: Anything that `fit` takes.

        Raises:
            DataError: If F of a set is not finite.
            NotFittedError: If the selector is not fitted; other errors are those of `fit`.
        """
        choices = self._check_choices(sets, subsets)
        return evaluate(self._precise(), choices).to(choices.sets.device)

    def gains(self, sets: Any, subsets: Any) -> Sets:
        """Return the gain of each item at one subset of each set: F with the item minus F without it.

        With method="conditional", the gain of an item outside the subset is the log-odds that it is chosen too, given
        that the subset is part of the choice; at the empty subset it is the logit of `predict_proba`. The gain of an
        item inside is that at the subset without it. With other methods F is trained on average over random subsets,
        and its gains at a given one are not log-odds.

        Args:
            sets: Anything that `fit` takes.
            subsets: Anything that `fit` takes.

        Raises:
            NotFittedError: If the selector is not fitted; other errors are those of `fit`.
        """
        choices = self._check_choices(sets, subsets)

        def work(bound: BoundAverage, batch: Sets, rows: np.ndarray) -> Tensor:
            return bound.gains(choices.subsets.take(rows).values.to(batch.device)[None])[0]

        gains = map_batches(self._precise(), choices.sets, work)
        return choices.sets.with_values(check_finite(gains, choices.sets))

    def calibrate_recall(self, sets: Any, subsets: Any, *, scores: Sets | None = None) -> Self:
        """Calibrate `predict(recall=...)` on sets that the fit has not seen.

        `fit` calibrates it on its validation sets. These also chose the best epoch, and boosted trees may have learned
        from them, so the promise holds up to that small bias. With sets that played no part in the fit it holds
        exactly, for any number of them: if they and a new set are exchangeable, the expected recall on the new set is
        at least what was asked for, by conformal risk control. Sets of which nothing was chosen count as recalled.

        Args:
            sets: Anything that `fit` takes.
            subsets: Anything that `fit` takes.
            scores: The result of `decision_function` for these sets, to avoid computing it again.

        Returns:
            The selector itself.

        Raises:
            NotFittedError: If the selector is not fitted; other errors are those of `fit`.
        """
        choices = self._check_choices(sets, subsets)
        self.recall_ = RecallCalibration.of(self._logits(choices.sets, None, scores), choices.subsets)
        return self

    def score(
        self,
        sets: Any,
        subsets: Any = None,
        *,
        given: Any = None,
        constraint: AnyConstraint | None = None,
        on_failure: str = "raise",
        groups: Any = None,
    ) -> float:
        """Return the mean Jaccard score of `predict`, with the number of items chosen by the selector.

        Choices, and a table after a fit on a table, hold the subsets too. With groups, or after `fit(X, y)`, the
        subsets are one boolean for each row.

        Raises:
            DataError: If there are no sets; other errors are those of `predict`.
        """
        if groups is None:
            check_has_groups(sets, subsets)
        asked = self._open(sets, groups, chosen=subsets is None)
        (given, _), true = asked.masks(given), asked.chosen(subsets)
        request = SubsetRequest(constraint=constraint, on_failure=on_failure)
        name_of = None if asked.read is None else asked.name_of
        known = Known.of(given, None, asked.sets)
        return mean_jaccard(self._choose_scored(asked.sets, request, known, None, name_of)[0], true)

    def score_true_size(self, sets: Any, subsets: Any = None) -> float:
        """Return the mean Jaccard score for the true size of each subset, which is what papers report.

        Raises:
            DataError: If there are no sets; other errors are those of `predict`.
        """
        choices = self._check_choices(sets, subsets)
        sizes = subset_sizes(choices.subsets).tolist() if len(choices) else None
        return mean_jaccard(self._choose(choices.sets, SubsetRequest(size=sizes)), choices.subsets)

    @property
    def function_(self) -> SetFunction:
        """The learned set function F on raw features; `function_.bind(sets)` gives values and gains of any subset."""
        self._check_fitted()
        return LearnedSetFunction(self.model_, self._precise, self._check_sets)

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError("this SubsetSelector is not fitted yet; call fit(sets, subsets) first")

    def ask(self, table: FittedTable, read: Table | Choices) -> Input:
        """Return what was read from a table as an input, with its sets checked."""
        return Input.of_table(table, read).with_sets(self._check_sets(read.sets))

    def _open(self, data: Any, groups: Any, scores: Any = None, *, chosen: bool = False) -> Input:
        """Return what was passed in place of sets, with its sets checked."""
        self._check_fitted()
        with showing("reading", self.verbose > 0):
            asked = Input.of(data, self.table_, groups=groups, chosen=chosen)
        return asked.with_sets(self._check_sets(asked.sets, scores))

    def _check_sets(self, sets: Any, scores: Any = None) -> Sets:
        self._check_fitted()
        if is_table(sets):
            sets = Input.of(sets, self.table_).sets
        # The values of sets with scores were checked when the scores were computed.
        sets = sets if scores is not None and isinstance(sets, Sets) else as_sets(sets)
        return check_item_shape(sets, self.model_.config.item_shape)

    def _check_choices(self, sets: Any, subsets: Any) -> Choices:
        asked = self._open(sets, None, chosen=subsets is None)
        return Choices(asked.sets, asked.chosen(subsets))

    def _infer(self, sets: Sets, known: Known | None = None) -> Sets:
        with showing("computing logits", self.verbose > 0):
            more: dict[str, Any] = {"warn": True, "known": known, "fast_model": self.model_}
            logits = infer_logits(self._precise(), sets, samples=self._predict_samples, **more)
        return sets.with_values(check_finite(logits, sets).to(logit_dtype(sets)))

    def _logits(self, sets: Sets, known: Known | None, scores: Any) -> Tensor:
        return (self._infer(sets, known) if scores is None else check_scores(scores, sets)).values

    def _probabilities(self, sets: Sets, known: Known | None, scores: Any = None) -> Tensor:
        p = probability(self._logits(sets, known, scores))
        return p if known is None else known.fill(p, inside=1.0, outside=0.0)

    def _draw(self, sets: Sets, n: int, seed: int, known: Known | None) -> Tensor:
        # Only independent items are drawn by their probabilities.
        p = None if self.model_.config.options.method == CONDITIONAL else self._probabilities(sets, known)
        options: dict[str, Any] = {"count": n, "seed": seed, "stop_logit": self.stop_logit_, "known": known}
        with showing("drawing", self.verbose > 0):
            return draw_subsets(self._precise(), sets, p, **options)

    def _choose(self, sets: Sets, request: SubsetRequest, known: Known | None = None) -> Sets:
        return self._choose_scored(sets, request, known, None)[0]

    def _choose_scored(
        self,
        sets: Sets,
        request: SubsetRequest,
        known: Known | None,
        scores: Sets | None,
        name_of: Callable[[int], str] | None = None,
        *,
        with_logits: bool = False,
    ) -> tuple[Sets, Sets | None]:
        """Return the chosen subsets, and the logits of the items if the choice needed them, or they are wanted."""
        if scores is not None:
            check_scores(scores, sets)
        if request.recall is not None:
            level = recall_level(self.recall_, request.recall, is_known=known is not None)
            found = sets.with_values(self._logits(sets, None, scores))
            return sets.with_values(found.values.double() >= level), found
        chooser = Chooser(
            sets,
            lambda: self._logits(sets, known, scores),
            logit_dtype(sets),
            self._precise(),
            self.model_,
            self.size_rule_,
            self.completion_rule_,
            self.min_size_,
            self.start_weight_,
            known,
            name_of,
        )
        with showing("choosing", self.verbose > 0):
            picks, logits = chooser.choose(request, with_logits=with_logits)
        if request.decide is not None:
            draws = self._draw(sets, DRAWS, 0, known)
            picks = closest_to_draws(torch.cat([picks.values[None], draws]), draws, sets)
        return picks, None if logits is None else sets.with_values(logits)

    def _precise(self) -> ChoiceModel:
        # In float64, rounding is far below what float32 results can show, so batches make no difference.
        if self._exact_model is None:
            self._exact_model = copy.deepcopy(self.model_).eval().double()
        return self._exact_model

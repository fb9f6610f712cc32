"""The steps of a fit: reading a table, preparing the data, training."""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from setgrad._progress import showing
from setgrad._text_table import plain_table
from setgrad.columns._arguments import TableArguments
from setgrad.columns._describe import TableDescription
from setgrad.errors import OptionError, parameter
from setgrad.selector._choice_gradient import ChoiceGradient
from setgrad.selector._data import TrainingData, describe_trivial, prepare_data, split_sets
from setgrad.selector._fit import FitResult, fit_selector
from setgrad.selector._model import ChoiceModel
from setgrad.selector._monitor import Callback
from setgrad.selector._options import SelectorOptions
from setgrad.selector._processes import ALONE, Processes, own_device, together
from setgrad.selector._rows import add_choices
from setgrad.selector._stream_fit import StreamedTable, read_to_stream
from setgrad.selector._table_input import FitTable, as_choices, check_no_subsets, is_table, read_to_fit
from setgrad.selector._table_schema import TableSchema
from setgrad.selector._validation_input import read_validation
from setgrad.selector.constraints import AnyConstraint
from setgrad.sets import Choices


class AbstractLearning(abc.ABC):
    """What `SubsetSelector.fit` consists of."""

    model_: ChoiceModel
    table_: TableSchema | None
    random_state: Any
    device: Any
    verbose: int
    _processes: Processes = ALONE

    @abc.abstractmethod
    def validate(self) -> SelectorOptions:
        """Return the validated options."""

    @abc.abstractmethod
    def _set_fitted(self, result: FitResult) -> None:
        """Store the result of a fit."""

    @contextmanager
    def fitting_together(self) -> Iterator[Processes]:
        """Let all processes of the process group do the fits inside together; see `fit(distributed=True)`.

        Raises:
            LostRankError: If another process is lost or fails.
            OptionError: If there is no process group, and torchrun did not start this process.
        """
        before = (self.random_state, self.device, self.verbose)
        with together() as processes:
            self._processes = processes
            self.random_state = int(processes.send(str(self._seed()).encode()))
            if processes.count > 1:
                self.device = own_device(self.device)
            self.verbose = self.verbose if processes.is_first else 0
            try:
                yield processes
            finally:
                self._processes = ALONE
                self.random_state, self.device, self.verbose = before

    def _seed(self) -> int:
        seed = self.random_state
        return int(np.random.SeedSequence().generate_state(1)[0] if seed is None else seed)

    def read_to_fit(
        self,
        table: Any,
        arguments: TableArguments,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        *,
        has_validation: bool,
        start: AbstractLearning | None = None,
        keep_rows: bool = False,
    ) -> FitTable:
        """Read the table to fit on, for `fit_read`.

        Args:
            table: The table.
            arguments: The names of its columns.
            y: Whether each row was chosen, in place of a column.
            groups: The set of each row, in place of a column.
            sample_weight: The weight of each row, in place of a column.
            has_validation: Whether there are separate validation sets, so that all sets are trained on.
            start: The selector that training starts from; its columns are used.
            keep_rows: Whether the result has the rows of the table too.
        """
        options, seed = self.validate(), self._seed()
        added: tuple[str, ...] = ()
        if groups is not None or (y is not None and arguments.chosen is None):
            table, arguments, added = add_choices(table, y, groups, sample_weight, arguments)
        else:
            check_no_subsets(y, sample_weight)

        def split(lengths: np.ndarray) -> np.ndarray:
            is_training = np.ones(len(lengths), dtype=bool)
            if not has_validation:
                is_training[split_sets(lengths, options.validation_fraction, seed)[1]] = False
            return is_training

        fitted = None if start is None or start.table_ is None else start.table_.columns
        with showing("reading", self.verbose > 0):
            return read_to_fit(table, arguments, split, seed=seed, fitted=fitted, added=added, keep_rows=keep_rows)

    def fit_read(
        self,
        read: FitTable,
        validation: Any,
        constraint: AnyConstraint | None,
        training: ChoiceGradient,
        start: AbstractLearning | None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from a table that was read, and show first what was understood of it; arguments are those of `fit`."""
        self._show(read.description)
        with showing("reading", self.verbose > 0):
            validation = read_validation(validation, read.schema)
        sets, subsets, weight = as_choices(read.choices, None, None)
        return self._fit(
            sets, subsets, weight, validation, constraint, training, start, read.seed, read.schema, callback
        )

    def read_to_stream(
        self, table: Any, arguments: TableArguments, *, has_validation: bool, start: AbstractLearning | None = None
    ) -> StreamedTable:
        """Read what `fit_streamed` needs to know of Parquet files; the arguments are those of `read_to_fit`."""
        return read_to_stream(
            table,
            arguments,
            fraction=None if has_validation else self.validate().validation_fraction,
            seed=self._seed(),
            fitted=None if start is None or start.table_ is None else start.table_.columns,
            verbose=self.verbose > 0,
        )

    # A fit needs gradients, also if the caller is in inference mode.
    @torch.inference_mode(mode=False)
    def fit_streamed(
        self,
        read: StreamedTable,
        validation: Any,
        training: ChoiceGradient,
        start: AbstractLearning | None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from Parquet files that are read block by block; the arguments are those of `fit`."""
        self._show(read.description)
        held_out = self._separate(validation, read.schema) if read.validation is None else read.validation
        data = TrainingData(read.train, held_out, None, read.validation_indices, training, self._processes)
        return self._train(self.validate(), data, read.seed, start, read.schema, callback)

    def _separate(self, validation: Any, schema: TableSchema) -> Choices:
        """Return the validation sets that were passed to a fit on a streamed table."""
        if not is_table(validation):
            raise OptionError(f"{parameter('validation')} must be a table too, where the training sets are streamed")
        return Choices(*read_validation(validation, schema))

    def _show(self, description: TableDescription | None) -> None:
        if description is not None and self.verbose > 0:
            print(plain_table(description.text_table), file=sys.stderr)

    # A fit needs gradients, also if the caller is in inference mode.
    @torch.inference_mode(mode=False)
    def _fit(
        self,
        sets: Any,
        subsets: Any,
        sample_weight: Any,
        validation: Any,
        constraint: AnyConstraint | None,
        training: ChoiceGradient,
        start: AbstractLearning | None,
        seed: int,
        schema: TableSchema | None,
        callback: Callback | None = None,
    ) -> Self:
        options = self.validate()
        data = prepare_data(sets, subsets, validation, sample_weight, constraint, training, options, seed)
        data = replace(data, processes=self._processes)
        # What is wrong with a table was told when it was read.
        trivial = describe_trivial(data.train.layout.host_lengths, data.train.sizes) if schema is None else None
        if trivial is not None:
            warnings.warn(trivial, UserWarning, stacklevel=3)
        return self._train(options, data, seed, start, schema, callback)

    def _train(
        self,
        options: SelectorOptions,
        data: TrainingData,
        seed: int,
        start: AbstractLearning | None,
        schema: TableSchema | None,
        callback: Callback | None,
    ) -> Self:
        if callback is not None and not callable(callback):
            raise OptionError(f"{parameter('callback')} must be a function of the record of an epoch, not {callback!r}")
        parts = None if schema is None or schema.columns is None else schema.columns.parts
        names = None if schema is None else schema.number_names
        model = None if start is None else start.model_
        self._set_fitted(fit_selector(options, data, seed, model, parts, names, callback))
        self.table_ = schema
        return self

"""Logits of any number of sets, in batches that fit into memory, without an autograd graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad._progress import slow_bar
from setgrad.errors import DataError
from setgrad.functions import FreshNoise, ItemNoise
from setgrad.functions.average import BoundAverage
from setgrad.selector._known import Known
from setgrad.selector._model import ChoiceModel
from setgrad.selector._processes import ALONE, Processes
from setgrad.selector._rounds import LARGEST_WHOLE
from setgrad.selector._tables import CONDITIONAL
from setgrad.sets import Choices, Sets

# Padded items in one batch. A CPU is faster where intermediate results stay in its cache: with a narrow rho, of which
# there are fewer numbers for each item, a batch may have twice as many.
BATCH_ITEMS, _BATCH_ITEMS_ON_CPU, _NARROW = 2**15, 2**11, 256
# A warning is shown if the inference converges on a smaller share of the sets.
CONVERGED_SHARE = 0.9
_LOOK = "look for values far beyond those that the model was fitted on"


def batch_items(device: torch.device) -> int:
    """Return the padded items of a batch on a device."""
    return _BATCH_ITEMS_ON_CPU if device.type == "cpu" else BATCH_ITEMS


def plan_batches(sets: Sets, budget: int | None = None) -> Iterator[np.ndarray]:
    """Yield the indices of the sets of each batch.

    Sets of similar size share a batch. A batch has at most `budget` padded items, unless it is one larger set; None is
    the usual number for the device of the sets.
    """
    budget = batch_items(sets.device) if budget is None else budget
    lengths = sets.layout.host_lengths
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Sizes grow along the order, so the last set of a batch determines its padded size.
        sizes = np.maximum(lengths[order[start:]], 1) * np.arange(1, len(order) - start + 1)
        # A large set is a batch by itself on every device, so that its results depend on no other.
        sizes[1:][lengths[order[start + 1 :]] > LARGEST_WHOLE] = budget + 1
        count = max(1, int(np.searchsorted(sizes, budget, side="right")))
        yield order[start : start + count]
        start += count


def is_large(model: ChoiceModel, batch: Sets) -> bool:
    """Return whether a batch is one large set, which is predicted in single precision, and is not read in chunks."""
    is_conditional = model.config.options.method == CONDITIONAL
    return is_conditional and batch.layout.longest > LARGEST_WHOLE and not model.config.reads_in_chunks(batch)


def padded_items(sets: Sets, batches: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of items of each batch, with those that fill up its sets to one size."""
    lengths = sets.layout.host_lengths
    return np.array([len(indices) * int(lengths[indices].max()) for indices in batches], dtype=np.int64)


def map_batches(
    model: ChoiceModel,
    sets: Sets,
    work: Callable[[BoundAverage, Sets, np.ndarray], Tensor],
    processes: Processes = ALONE,
    columns: int = 0,
) -> Tensor:
    """Call `work` with F bound to each batch, the batch and the indices of its sets; see `map_sets`."""

    def bind(batch: Sets, indices: np.ndarray) -> Tensor:
        return work(model.bind(batch), batch, indices)

    return map_sets(model, sets, bind, processes=processes, columns=columns)


def map_sets(
    model: ChoiceModel,
    sets: Sets,
    work: Callable[[Sets, np.ndarray], Tensor],
    budget: int | None = None,
    processes: Processes = ALONE,
    columns: int = 0,
) -> Tensor:
    """Call `work` with each batch and the indices of its sets; return the results in the order of the items.

    Args:
        model: The model.
        sets: The sets.
        work: Returns one row for each item of a batch.
        budget: As in `plan_batches`.
        processes: The processes that share the batches; all get all results, which are then numbers in float64.
        columns: How many numbers a row has, where processes share the batches: a process may have none of them. 0 for
            one number without an axis.

    Returns:
        The results, `(total, ...)`.
    """
    device, layout = model.mean.device, sets.layout
    if budget is None:
        budget = batch_items(device) * (2 if device.type == "cpu" and max(model.config.hidden) <= _NARROW else 1)
    if processes.count > 1:
        return _map_together(model, sets, work, budget, processes, columns)
    out: Tensor | None = None
    done = 0
    with torch.no_grad(), slow_bar(len(sets), "sets") as progress:
        for indices in plan_batches(sets, budget):
            # One set is not copied, because it may be mapped from a file.
            alone = int(indices[0]) if len(indices) == 1 else None
            batch = (sets.take(indices) if alone is None else sets[alone : alone + 1]).to(device)
            result = work(batch, indices).to(sets.device)
            if out is None:
                out = result if len(sets) == 1 else result.new_zeros(layout.total, *result.shape[1:])
            if alone is not None:
                out[layout.host_offsets[alone] : layout.host_offsets[alone + 1]] = result
                done += 1
                progress.update(done)
                continue
            lengths = layout.host_lengths[indices]
            starts = np.repeat(layout.host_offsets[indices] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
            out[layout.to_device(starts + np.arange(lengths.sum()))] = result
            done += len(indices)
            progress.update(done)
    return out if out is not None else torch.zeros(layout.total, dtype=model.dtype, device=sets.device)


def _map_together(
    model: ChoiceModel,
    sets: Sets,
    work: Callable[[Sets, np.ndarray], Tensor],
    budget: int,
    processes: Processes,
    columns: int,
) -> Tensor:
    """Call `work` with the batches of this process, and return the results of all."""
    batches, shape = list(plan_batches(sets, budget)), (sets.layout.total, columns)
    out = torch.zeros(shape if columns else shape[:1], dtype=torch.float64, device=sets.device)
    items = sets.with_values(torch.arange(sets.layout.total, device=sets.device))
    with torch.no_grad():
        for number in processes.own(padded_items(sets, batches)).tolist():
            rows = batches[number]
            result = work(sets.take(rows).to(model.mean.device), rows)
            out[items.take(rows).values] = result.to(out)
    return processes.sum(out)


def infer_logits(
    model: ChoiceModel,
    sets: Sets,
    *,
    samples: int,
    seed: int = 0,
    warn: bool = False,
    known: Known | None = None,
    processes: Processes = ALONE,
    fast_model: ChoiceModel | None = None,
) -> Tensor:
    """Return the logits of all items `(total,)`.

    The sampling noise is a function of the item, so batches and the order of items make no difference.

    Args:
        model: The model.
        sets: The sets.
        samples: Samples of the estimator.
        seed: Seed of the noise.
        warn: Whether to warn if the inference did not converge on many of the sets.
        known: Items that are known to be in the subsets, or out of them.
        processes: The processes that share the batches.
        fast_model: The same model in single precision, for large sets; None to use `model`.
    """
    converged: list[Tensor] = []

    def work(batch: Sets, indices: np.ndarray) -> Tensor:
        own = fast_model if fast_model is not None and is_large(model, batch) else model
        bound = own.bind(batch, None if known is None else known.masks(indices, batch.device))
        # A method that reads a set in chunks uses no random numbers.
        noise = FreshNoise(seed) if bound.in_chunks else ItemNoise(batch, seed)
        result = own.infer(bound, noise, samples=samples)
        converged.append(result.converged)
        return result.logits.to(model.dtype)

    logits = map_sets(model, sets, work, processes=processes)
    if warn and converged and (share := float(torch.cat(converged).double().mean())) < CONVERGED_SHARE:
        warnings.warn(
            f"inference converged on {share:.0%} of the sets, and the probabilities of the others come from its last "
            "step; raise steps, or fit with method='unrolled'",
            RuntimeWarning,
            stacklevel=4,
        )
    return logits


@torch.no_grad()
def evaluate(model: ChoiceModel, choices: Choices) -> Tensor:
    """Return F of each subset, `(sets,)`, on the CPU.

    Raises:
        DataError: If F of a set is not finite.
    """
    values = torch.zeros(len(choices), dtype=torch.float64)
    for rows in plan_batches(choices.sets):
        part, mask = (x.take(rows).to(model.mean.device) for x in choices)
        values[torch.as_tensor(rows)] = model.bind(part).value(mask.values[None])[0].cpu()
    return check_values(values)


def check_values(values: Tensor) -> Tensor:
    """Return the values of F, one of each set, if all are finite.

    Raises:
        DataError: If one is not. The message names the set.
    """
    wrong = (~values.isfinite()).nonzero()
    if len(wrong):
        raise DataError(f"the features of set {int(wrong[0])} are so large that its F is not finite; {_LOOK}")
    return values


def check_finite(logits: Tensor, sets: Sets, name_of: Callable[[int], str] = "set {}".format) -> Tensor:
    """Return the logits if all are finite.

    Args:
        logits: Logits of all items `(total,)`.
        sets: The sets.
        name_of: Returns the name of a set for the message from its index.

    Raises:
        DataError: If the logits of a set are not finite. The message names the set.
    """
    wrong = ~logits.isfinite()
    if bool(wrong.any()):
        name = name_of(int(sets.layout.ids[wrong][0]))
        raise DataError(f"the features of {name} are so large that its logits are not finite; {_LOOK}")
    return logits


def logit_dtype(sets: Sets) -> torch.dtype:
    """Return the dtype of logits: at least float32, because half precision would give different items the same one."""
    return torch.promote_types(sets.dtype, torch.float32 if sets.dtype.is_floating_point else torch.get_default_dtype())

"""What a training step changes: the weights of all members, their moving average and the state of the optimiser."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction, FreshNoise
from setgrad.inference import PartialSubsetLoss, SubsetLoss
from setgrad.selector._batched_inference import infer_logits
from setgrad.selector._model import ChoiceModel, Member
from setgrad.selector._model_config import resolved
from setgrad.selector._parts import bind_in_chunks
from setgrad.selector._processes import ALONE, Processes
from setgrad.sets import Sets

Result = TypeVar("Result")


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """A training batch.

    Attributes:
        sets: The sets.
        subsets: The chosen subsets.
        weights: Weight of each item in the loss; None for equal weights.
        coordinates: Flat indices of the items whose logits the loss reads; None for all.
        loss: The loss.
        partial: Partial subsets at which the loss reads the gains, `(m, total)`; None for a loss of inferred logits.
    """

    sets: Sets
    subsets: Sets
    weights: Tensor | None
    coordinates: Tensor | None
    loss: SubsetLoss | PartialSubsetLoss
    partial: Tensor | None = None

    def counts(self) -> Tensor:
        """Return over how many parts of subsets the loss is the mean, and the number of sets, `(2,)`."""
        assert isinstance(self.loss, PartialSubsetLoss) and self.partial is not None
        parts = self.loss.counted(self.partial, self.subsets).sum()
        return torch.stack([parts, parts.new_tensor(len(self.sets))]).float()

    def value(self, logits: Tensor) -> Tensor:
        """Return the loss of logits."""
        if isinstance(self.loss, PartialSubsetLoss):
            assert self.partial is not None
            return self.loss(logits, self.partial, self.subsets, self.weights)
        return self.loss(logits, self.subsets, self.coordinates, self.weights)


class TrainableWeights(abc.ABC):
    """Weights in training. Members share batches and noise, and differ in their initial weights."""

    @abc.abstractmethod
    def step(self, batch: Batch, noise: FreshNoise, rate: float, decay: float) -> Tensor:
        """Take one step of the optimiser.

        Args:
            batch: The batch.
            noise: Source of the sampling noise.
            rate: Learning rate.
            decay: Share of the old value that the moving average keeps.

        Returns:
            The mean loss and the share of sets on which inference converged, `(2,)`.
        """

    @abc.abstractmethod
    def average(self) -> dict[str, Tensor]:
        """Return the moving average under the names of the model's state."""

    @abc.abstractmethod
    def evaluate(self, work: Callable[[ChoiceModel], Result]) -> Result:
        """Return the result of `work` for the model with the moving average of the weights."""

    @abc.abstractmethod
    def infer(self, sets: Sets) -> Tensor:
        """Return the logits of all items `(total,)` under the moving average of the weights."""

    @abc.abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return all tensors of the run. The names are the same for all subclasses."""

    @abc.abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the tensors that `state` returned."""


@final
class SeparateWeights(TrainableWeights):
    """Trains one member after the other, on the parameters of the model itself: for every kind of model."""

    def __init__(self, model: ChoiceModel, *, weight_decay: float, clip: float, processes: Processes = ALONE) -> None:
        self.model, self.clip, self.processes = model, clip, processes
        # Under all names, because a module may hold one parameter under two. Listed once, because a step is short.
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.optimiser = torch.optim.AdamW(model.parameters(), weight_decay=weight_decay, fused=True)
        self.mean = {name: value.detach().clone() for name, value in self.parameters.items()}

    def step(self, batch: Batch, noise: FreshNoise, rate: float, decay: float) -> Tensor:
        """Train the members one by one, so that one graph at a time is in memory."""
        members = self.model.each()
        # The items of a set that is read in chunks are standardised with each chunk.
        is_prepared = len(batch.sets) > 0 and not self.model.config.reads_in_chunks(batch.sets)
        items = self.model.prepare(batch.sets) if is_prepared else None
        results = [
            self._train_member(member, items, batch, source, rate)
            for member, source in zip(members, shared_noise(noise, len(members)), strict=True)
        ]
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.parameters.values()], 1 - decay)
        return torch.stack(results).mean(0)

    def _train_member(self, member: Member, items: Sets | None, batch: Batch, noise: FreshNoise, rate: float) -> Tensor:
        config = self.model.config
        if not len(batch.sets):
            # The other processes have sets.
            return self._descend_together(None, batch, rate)
        if items is None:
            generator = noise.generator(batch.sets.device)
            bound: BoundSetFunction = bind_in_chunks(self.model, member, batch.sets, generator)
        else:
            bound = member.bind(items)
        if member.recognition is not None:
            # First the recognition network learns from F, then F learns from where the inference ends.
            self._descend(member.recognition.loss(bound, noise, resolved(config.options.samples)), rate)
        result = member.infer(config, bound, noise, coordinates=batch.coordinates, partial=batch.partial)
        loss = batch.value(result.logits)
        means = torch.stack([loss, result.converged.to(loss).mean()])
        if self.processes.count > 1:
            return self._descend_together(means, batch, rate)
        self._descend(loss, rate)
        return means.detach()

    def _descend_together(self, means: Tensor | None, batch: Batch, rate: float) -> Tensor:
        """Step with the gradient of the loss over all processes, and return the means over all."""
        counts = batch.counts()
        self.optimiser.zero_grad(set_to_none=True)
        if means is None:
            means = torch.zeros_like(counts)
        else:
            (means[0] * counts[0]).backward()
        (group,) = self.optimiser.param_groups
        means = self.processes.mean_gradients(group["params"], means.detach(), counts)
        self._step(rate)
        return means

    def _descend(self, loss: Tensor, rate: float) -> None:
        """Step the parameters that the loss depends on; the others have no gradient and stay."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._step(rate)

    def _step(self, rate: float) -> None:
        (group,) = self.optimiser.param_groups
        torch.nn.utils.clip_grad_norm_(group["params"], self.clip)
        group["lr"] = rate
        self.optimiser.step()

    def average(self) -> dict[str, Tensor]:
        """Return the moving average; buffers, such as running statistics, are not averaged."""
        state = self.model.state_dict()
        return {name: (self.mean if name in self.parameters else state)[name].clone() for name in state}

    def evaluate(self, work: Callable[[ChoiceModel], Result]) -> Result:
        """Load the average into the model, call `work`, and load the weights again."""
        weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average())
        result = work(self.model)
        self.model.load_state_dict(weights)
        return result

    def infer(self, sets: Sets) -> Tensor:
        """Infer with the average."""
        samples = resolved(self.model.config.options.samples)
        return self.evaluate(lambda model: infer_logits(model, sets, samples=samples))

    def state(self) -> dict[str, Tensor]:
        """Return weights, average and optimiser state."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in state.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load weights, average and optimiser state on the device of the model."""
        check_tensors(self.model, tensors)
        self.model.load_state_dict(with_prefix(tensors, "model."))
        device = self.model.mean.device
        average = with_prefix(tensors, "average.")
        self.mean = {name: average[name].to(device) for name in self.parameters}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in with_prefix(tensors, "optimiser.").items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})


def shared_noise(noise: FreshNoise, count: int) -> list[FreshNoise]:
    """Return sources of noise for several members that all draw the same; the last is `noise` itself."""
    return [*(noise.clone() for _ in range(count - 1)), noise]


def check_tensors(model: ChoiceModel, tensors: dict[str, Tensor]) -> None:
    """Raise a ValueError if the tensors of a run are not those of this model: an optimiser reads them unchecked."""
    state, parameters = model.state_dict(), list(model.parameters())
    parts = ["model", "average", *(["best"] if any(name.startswith("best.") for name in tensors) else [])]
    expected = {f"{part}.{name}": value for part in parts for name, value in state.items()}
    optimiser = {name for name in tensors if name.startswith("optimiser.")}
    if optimiser:
        one = torch.zeros(())
        for index, weights in enumerate(parameters):
            of_one = {f"optimiser.{index}.{key}": weights for key in ("exp_avg", "exp_avg_sq")}
            # A parameter without a gradient has no state.
            if any(name in optimiser for name in of_one):
                expected |= {**of_one, f"optimiser.{index}.step": one}
    found = {name for name in tensors if name in expected} | optimiser
    if found != expected.keys():
        raise ValueError(f"{min(found ^ expected.keys())} is missing, or has no place")
    for name, value in expected.items():
        if tensors[name].shape != value.shape or tensors[name].dtype != value.dtype:
            raise ValueError(f"{name} has another shape or type")


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose name starts with a prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

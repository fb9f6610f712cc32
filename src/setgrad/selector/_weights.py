"""What a training step moves: the weights of all members, their running mean, and the memory of the optimiser."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.functions import FreshNoise
from setgrad.inference import SubsetLoss
from setgrad.selector._infer import infer_logits
from setgrad.selector._member import Member
from setgrad.selector._model import ChoiceModel
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Sets with their subsets and weights of items, the loss, and the items whose logits it reads."""

    sets: Sets
    subsets: Sets
    weights: Tensor | None
    coordinates: Tensor | None
    loss: SubsetLoss

    def value(self, logits: Tensor) -> Tensor:
        """The loss of logits."""
        return self.loss(logits, self.subsets, self.coordinates, self.weights)


@final
@dataclass(frozen=True)
class Descent:
    """What all steps share: decay of the weights, largest norm of a member's gradient."""

    decay: float
    clip: float


class Weights(abc.ABC):
    """Weights in training. Every member goes its own way: same batches, same draws, another start."""

    @abc.abstractmethod
    def step(self, batch: Batch, noise: FreshNoise, rate: float, keep: float) -> Tensor:
        """Descend once, let the running mean keep that much of itself; mean loss and share of settled sets, `(2,)`."""

    @abc.abstractmethod
    def average(self) -> dict[str, Tensor]:
        """The running mean, under the names of the model's state."""

    @abc.abstractmethod
    def infer(self, sets: Sets) -> Tensor:
        """Logits of all items, `(total,)`, with the running mean as weights."""

    @abc.abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All tensors of a run, under names that do not tell how they are kept."""

    @abc.abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""


@final
class OwnWeights(Weights):
    """The parameters of the model itself, one member after the other: for every kind of model."""

    def __init__(self, model: ChoiceModel, descent: Descent) -> None:
        self.model, self.descent = model, descent
        # By every name, because a phi may hold one weight under two. Once, because a step is short.
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.optimiser = torch.optim.AdamW(model.parameters(), weight_decay=descent.decay, fused=True)
        self.mean = {name: value.detach().clone() for name, value in self.parameters.items()}

    def step(self, batch: Batch, noise: FreshNoise, rate: float, keep: float) -> Tensor:
        """Loss by loss, so that one graph at a time is in memory."""
        items = self.model.standardised(batch.sets)
        members = self.model.each()
        found = [
            self._move(member, items, batch, source, rate)
            for member, source in zip(members, shared_noise(noise, len(members)), strict=True)
        ]
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.parameters.values()], 1 - keep)
        return torch.stack(found).mean(0)

    def _move(self, member: Member, items: Sets, batch: Batch, noise: FreshNoise, rate: float) -> Tensor:
        config = self.model.config
        bound = member.function.bind(items)
        if member.recognition is not None:
            # First the start of the iteration learns from F, then F from where the iteration, started there, ends.
            self._descend(member.recognition.loss(bound, noise, config.samples), rate)
        found = member.infer(config, bound, noise, coordinates=batch.coordinates)
        value = batch.value(found.logits)
        self._descend(value, rate)
        return torch.stack([value, found.converged.to(value).mean()]).detach()

    def _descend(self, value: Tensor, rate: float) -> None:
        """One step of the parameters that the value depends on; the others have no gradient and stay."""
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()
        (group,) = self.optimiser.param_groups
        torch.nn.utils.clip_grad_norm_(group["params"], self.descent.clip)
        group["lr"] = rate
        self.optimiser.step()

    def average(self) -> dict[str, Tensor]:
        """Buffers, such as the running statistics of a normalisation, are no weights: the last ones count."""
        state = self.model.state_dict()
        return {name: (self.mean if name in self.parameters else state)[name].clone() for name in state}

    def infer(self, sets: Sets) -> Tensor:
        """Put the mean into the model, and the weights back at the end."""
        raw = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average())
        logits = infer_logits(self.model, sets, samples=self.model.config.samples)
        self.model.load_state_dict(raw)
        return logits

    def state(self) -> dict[str, Tensor]:
        """By the names of the model and the numbers of its parameters."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in state.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """On the device of the model."""
        self.model.load_state_dict(part_of(tensors, "model."))
        device = self.model.mean.device
        average = part_of(tensors, "average.")
        self.mean = {name: average[name].to(device) for name in self.parameters}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in part_of(tensors, "optimiser.").items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})


def shared_noise(noise: FreshNoise, count: int) -> list[FreshNoise]:
    """Sources for so many members that all draw the same; noise itself is the last, and moves on once."""
    return [*(noise.clone() for _ in range(count - 1)), noise]


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name begins so, without that beginning."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}

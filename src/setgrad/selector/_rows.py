"""All members in one step: their weights lie in the rows of one matrix, and one call evaluates them together.

A step of a small model is a few hundred short operations, and on a GPU starting them takes longer than doing them.
Together, members start them once, and where batches look alike the GPU starts them by itself. On a CPU, where
arithmetic is what costs, nothing is gained.
"""

from __future__ import annotations

import copy
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from setgrad.functions import FreshNoise, ItemNoise, NoiseSource
from setgrad.inference import MeanField
from setgrad.selector._infer import in_batches
from setgrad.selector._member import Member, ModelConfig
from setgrad.selector._model import ChoiceModel
from setgrad.selector._replay import Replay
from setgrad.selector._weights import Batch, Descent, Weights, part_of, shared_noise
from setgrad.sets import Sets

# Methods whose inference is a plain chain of operations.
PLAIN_METHODS = ("direct", "one-step", "unrolled")
# Draws of items, over all members, above which members take turns: their graphs would fill the memory.
_TOGETHER = 2**19
_MOMENTS = ("exp_avg", "exp_avg_sq")


def can_be_rows(model: ChoiceModel) -> bool:
    """Whether members can be evaluated by one call."""
    # A module of the user's own may do anything, and buffers would have to be kept apart too.
    plain = model.config.method in PLAIN_METHODS and model.config.phi is not None
    return plain and not any(True for _ in model.members.buffers())


def together_pays(model: ChoiceModel, sets: Sets, loss: str) -> bool:
    """Whether that is quicker than one member after the other: for one alone, if its steps can be played again."""
    if model.mean.device.type != "cuda":
        return False
    return model.config.members > 1 or (_steady(model.config) and sets.layout.uniform and loss == "all")


def _steady(config: ModelConfig) -> bool:
    """Whether a step is known to do the same operations every time, without a look at the numbers."""
    # A nuclear norm needs eigenvalues, which the host waits for.
    return config.function == "deepset" and config.estimator != "exact" and config.scale != "nuclear-batch"


@final
class RowWeights(Weights):
    """The weights of each member as one row."""

    def __init__(self, model: ChoiceModel, descent: Descent) -> None:
        self.model, self.descent = model, descent
        first = model.each()[0]
        self.shapes = {name: value.shape for name, value in first.named_parameters()}
        self.rows = nn.Parameter(self._gather(dict(model.named_parameters())))
        self.mean = self.rows.detach().clone()
        # What changes from step to step lies on the device, or a step could not be played again.
        self.rate, self.pull = (torch.zeros((), device=self.rows.device) for _ in range(2))
        self.optimiser = torch.optim.AdamW(
            [self.rows], lr=self.rate, weight_decay=descent.decay, fused=True, capturable=self.rows.is_cuda
        )
        self.frame = _Frame(copy.deepcopy(first), model.config)
        self.replay = Replay()

    def step(self, batch: Batch, noise: FreshNoise, rate: float, keep: float) -> Tensor:
        """Recorded and played again where the model is known to do the same in every step."""
        self.rate.fill_(rate)
        self.pull.fill_(1 - keep)
        again = _steady(self.model.config) and self._fits(batch)
        return self.replay(self._move, batch, noise) if again else self._move(batch, noise)

    def _fits(self, batch: Batch) -> bool:
        config = self.model.config
        return config.members * config.samples * batch.sets.layout.total <= _TOGETHER

    def _move(self, batch: Batch, noise: FreshNoise) -> Tensor:
        """One graph for all members, or one for each of them where sets are large."""
        items = self.model.standardised(batch.sets)
        self.optimiser.zero_grad(set_to_none=True)
        found = (self._together if self._fits(batch) else self._in_turns)(items, batch, noise)
        gradient = self.rows.grad
        assert gradient is not None
        gradient.mul_((self.descent.clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
        self.optimiser.step()
        self.mean.lerp_(self.rows.detach(), self.pull.to(self.mean.dtype))
        return found.mean(0)

    def _together(self, items: Sets, batch: Batch, noise: FreshNoise) -> Tensor:
        """One graph for all members."""
        weights = {f"member.{name}": value for name, value in self._pieces(self.rows).items()}

        def work(weights: dict[str, Tensor]) -> Tensor:
            return _judged(functional_call(self.frame, weights, (items, noise, batch.coordinates)), batch)

        found = vmap(work, randomness="same")(weights)
        found[:, 0].sum().backward()
        return found.detach()

    def _in_turns(self, items: Sets, batch: Batch, noise: FreshNoise) -> Tensor:
        """A graph for each member, gone before the next begins."""
        pieces, found = self._pieces(self.rows.detach()), []
        own = dict(self.frame.member.named_parameters())
        self.rows.grad = torch.zeros_like(self.rows)
        sources = shared_noise(noise, len(self.rows))
        for number, (place, source) in enumerate(zip(self.rows.grad, sources, strict=True)):
            # Put there and not lent: what the backward pass computes again must find these weights.
            with torch.no_grad():
                for name, weight in own.items():
                    weight.copy_(pieces[name][number])
            one = _judged(self.frame(items, source, batch.coordinates), batch)
            gradients = torch.autograd.grad(one[0], list(own.values()), materialize_grads=True)
            torch.cat([gradient.flatten() for gradient in gradients], out=place)
            found.append(one.detach())
        return torch.stack(found)

    def average(self) -> dict[str, Tensor]:
        """The rows of the mean, cut up."""
        return self._spread(self.mean)

    def infer(self, sets: Sets) -> Tensor:
        """One call for all members, or one for each of them where a set is large."""
        samples, pieces = self.model.config.samples, self._pieces(self.mean)
        weights = {f"member.{name}": value for name, value in pieces.items()}
        budget = max(1, _TOGETHER // (len(self.mean) * samples))

        def work(batch: Sets, numbers: np.ndarray) -> Tensor:
            given = (self.model.standardised(batch), ItemNoise(batch))

            def ask(weights: dict[str, Tensor]) -> Tensor:
                return functional_call(self.frame, weights, given).logits

            if batch.layout.total <= budget:
                return vmap(ask, randomness="same")(weights).mean(0)
            members = [{name: value[number] for name, value in weights.items()} for number in range(len(self.mean))]
            return torch.stack([ask(member) for member in members]).mean(0)

        return in_batches(self.model, sets, work, budget)

    def state(self) -> dict[str, Tensor]:
        """As `OwnWeights` has it, so that a run may go on elsewhere."""
        tensors = {f"model.{name}": value for name, value in self._spread(self.rows.detach()).items()}
        tensors |= {f"average.{name}": value for name, value in self.average().items()}
        memory = self.optimiser.state[self.rows]
        moments = {key: self._spread(memory[key]) for key in _MOMENTS if key in memory}
        for index, (name, _) in enumerate(self.model.named_parameters()):
            tensors |= {f"optimiser.{index}.{key}": moment[name] for key, moment in moments.items()}
            if moments:
                tensors[f"optimiser.{index}.step"] = memory["step"]
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Into rows again. Recordings know the old places of the optimiser's memory."""
        self.replay = Replay()
        # Where the features lie was computed where the run began, and another device rounds otherwise.
        self.model.load_state_dict(part_of(tensors, "model."))
        self.rows.data.copy_(self._gather(part_of(tensors, "model.")))
        self.mean.copy_(self._gather(part_of(tensors, "average.")))
        names = [name for name, _ in self.model.named_parameters()]
        if "optimiser.0.step" not in tensors:
            return
        device = self.rows.device
        memory = {"step": tensors["optimiser.0.step"].to(device)}
        for key in _MOMENTS:
            moment = {name: tensors[f"optimiser.{index}.{key}"] for index, name in enumerate(names)}
            memory[key] = self._gather(moment).to(device)
        self.optimiser.state[self.rows] = memory

    def _pieces(self, rows: Tensor) -> dict[str, Tensor]:
        """For each parameter of a member those of all members, `(members, ...)`."""
        parts = rows.split([shape.numel() for shape in self.shapes.values()], 1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _spread(self, rows: Tensor) -> dict[str, Tensor]:
        """A state of the model with these rows as weights."""
        pieces = self._pieces(rows)
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return state | {
            f"members.{number}.{name}": value[number].clone()
            for name, value in pieces.items()
            for number in range(len(rows))
        }

    def _gather(self, state: dict[str, Tensor]) -> Tensor:
        """The inverse of `_spread`."""
        members = range(self.model.config.members)
        return torch.stack(
            [
                torch.cat([state[f"members.{number}.{name}"].detach().flatten() for name in self.shapes])
                for number in members
            ]
        )


@final
class _Frame(nn.Module):
    """A member that borrows its weights."""

    def __init__(self, member: Member, config: ModelConfig) -> None:
        super().__init__()
        self.member, self.config = member, config

    def forward(self, items: Sets, noise: NoiseSource, coordinates: Tensor | None = None) -> MeanField:
        return self.member.infer(self.config, self.member.function.bind(items), noise, coordinates=coordinates)


def _judged(found: MeanField, batch: Batch) -> Tensor:
    """Loss and share of settled sets, `(2,)`."""
    value = batch.value(found.logits)
    return torch.stack([value, found.converged.to(value).mean()])

"""All members in one step: their weights are the rows of one matrix, and one call evaluates them together.

A step of a small model is a few hundred short operations, and on a GPU launching them takes longer than computing them.
Stacked members launch them once. On a CPU, where the arithmetic dominates, stacking gains nothing.

Where all batches have the same shape, the steps are replayed as CUDA graphs: the GPU then launches the operations by
itself. A captured graph works for the shapes it was captured with.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from setgrad.functions import FreshNoise, ItemNoise, NoiseSource
from setgrad.inference import MeanField
from setgrad.selector._batched_inference import map_sets
from setgrad.selector._model import ChoiceModel, Member
from setgrad.selector._model_config import ModelConfig, resolved
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector._trainable_weights import (
    Batch,
    Result,
    TrainableWeights,
    check_tensors,
    shared_noise,
    with_prefix,
)
from setgrad.sets import Layout, Sets

_LOGGER = logging.getLogger("setgrad")
# Methods whose inference is a plain sequence of operations.
STACKABLE_METHODS = (CONDITIONAL, "direct", "one-step", "unrolled")
# Sampled items over all members above which the members take turns: the graphs of all would fill the memory.
_MAX_STACKED_ITEMS = 2**19
_MOMENTS = ("exp_avg", "exp_avg_sq")
# Steps that run normally before one is captured, because libraries initialise themselves in the first ones.
_WARM_UP = 3
# Largest number of graphs, each of which holds the memory of a whole step. Batches of sets of one size have two shapes.
_MAX_GRAPHS = 4


def can_be_stacked(model: ChoiceModel) -> bool:
    """Return whether one call can evaluate all members."""
    # A module of the user may do anything. Buffers that training changes would have to be stacked too; the scale of the
    # pair term is constant and the same for all members.
    is_plain = model.config.options.method in STACKABLE_METHODS and model.config.phi is not None
    return is_plain and all(name.endswith("pairs.scale") for name, _ in model.members.named_buffers())


def is_stacking_faster(model: ChoiceModel, layout: Layout, loss: str) -> bool:
    """Return whether a stacked step is faster; for one member, that is if its steps can be replayed as a CUDA graph."""
    if model.mean.device.type != "cuda":
        return False
    return model.config.members > 1 or (_is_static(model.config) and layout.uniform and loss != "negatives")


def _is_static(config: ModelConfig) -> bool:
    """Return whether every step runs the same operations, independent of the values."""
    # A nuclear norm needs eigenvalues, which the host waits for.
    options = config.options
    return options.function == "deepset" and options.estimator != "exact" and options.scale != "nuclear-batch"


@final
class StackedWeights(TrainableWeights):
    """Trains all members at once; the weights of a member are one row of a matrix."""

    def __init__(self, model: ChoiceModel, *, weight_decay: float, clip: float) -> None:
        self.model, self.clip = model, clip
        first = model.each()[0]
        self.shapes = {name: value.shape for name, value in first.named_parameters()}
        self.rows = nn.Parameter(self._stack(dict(model.named_parameters())))
        self.mean = self.rows.detach().clone()
        # What changes from step to step is on the device, because a CUDA graph cannot read from the host.
        self.rate, self.pull = (torch.zeros((), device=self.rows.device) for _ in range(2))
        self.optimiser = torch.optim.AdamW(
            [self.rows], lr=self.rate, weight_decay=weight_decay, fused=True, capturable=self.rows.is_cuda
        )
        self.template = _Template(copy.deepcopy(first), model.config)
        self.replay = CUDAGraphReplay()

    def step(self, batch: Batch, noise: FreshNoise, rate: float, decay: float) -> Tensor:
        """Take one step, replayed as a CUDA graph where every step runs the same operations."""
        self.rate.fill_(rate)
        self.pull.fill_(1 - decay)
        can_replay = _is_static(self.model.config) and self._fits(batch)
        return self.replay(self._train, batch, noise) if can_replay else self._train(batch, noise)

    def _fits(self, batch: Batch) -> bool:
        config = self.model.config
        return config.members * resolved(config.options.samples) * batch.sets.layout.total <= _MAX_STACKED_ITEMS

    def _train(self, batch: Batch, noise: FreshNoise) -> Tensor:
        items = self.model.prepare(batch.sets)
        self.optimiser.zero_grad(set_to_none=True)
        results = (self._all_at_once if self._fits(batch) else self._in_turns)(items, batch, noise)
        gradient = self.rows.grad
        assert gradient is not None
        gradient.mul_((self.clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
        self.optimiser.step()
        self.mean.lerp_(self.rows.detach(), self.pull.to(self.mean.dtype))
        return results.mean(0)

    def _all_at_once(self, items: Sets, batch: Batch, noise: FreshNoise) -> Tensor:
        """Compute the gradient with one graph for all members."""
        weights = {f"member.{name}": value for name, value in self._unstack(self.rows).items()}

        def evaluate(weights: dict[str, Tensor]) -> Tensor:
            arguments = (items, noise, batch.coordinates, batch.partial)
            return _loss_and_share(functional_call(self.template, weights, arguments), batch)

        results = vmap(evaluate, randomness="same")(weights)
        results[:, 0].sum().backward()
        return results.detach()

    def _in_turns(self, items: Sets, batch: Batch, noise: FreshNoise) -> Tensor:
        """Compute the gradient with one graph for each member, freed before the next."""
        stacked, results = self._unstack(self.rows.detach()), []
        parameters = dict(self.template.member.named_parameters())
        self.rows.grad = torch.zeros_like(self.rows)
        sources = shared_noise(noise, len(self.rows))
        for number, (out, source) in enumerate(zip(self.rows.grad, sources, strict=True)):
            # Copied into the module, because checkpointed operations read the weights again in the backward pass.
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(stacked[name][number])
            result = _loss_and_share(self.template(items, source, batch.coordinates, batch.partial), batch)
            gradients = torch.autograd.grad(result[0], list(parameters.values()), materialize_grads=True)
            torch.cat([gradient.flatten() for gradient in gradients], out=out)
            results.append(result.detach())
        return torch.stack(results)

    def average(self) -> dict[str, Tensor]:
        """Return the moving average as a state of the model."""
        return self._model_state(self.mean)

    def evaluate(self, work: Callable[[ChoiceModel], Result]) -> Result:
        """Load the average into the model, whose own weights training does not use, and call `work`."""
        self.model.load_state_dict(self._model_state(self.mean))
        return work(self.model)

    def infer(self, sets: Sets) -> Tensor:
        """Evaluate all members with one call, or with one call each where a set is large."""
        samples, stacked = resolved(self.model.config.options.samples), self._unstack(self.mean)
        weights = {f"member.{name}": value for name, value in stacked.items()}
        budget = max(1, _MAX_STACKED_ITEMS // (len(self.mean) * samples))

        def work(batch: Sets, indices: np.ndarray) -> Tensor:
            arguments = (self.model.prepare(batch), ItemNoise(batch))

            def logits(weights: dict[str, Tensor]) -> Tensor:
                return functional_call(self.template, weights, arguments).logits

            if batch.layout.total <= budget:
                return vmap(logits, randomness="same")(weights).mean(0)
            members = [{name: value[number] for name, value in weights.items()} for number in range(len(self.mean))]
            return torch.stack([logits(member) for member in members]).mean(0)

        return map_sets(self.model, sets, work, budget)

    def state(self) -> dict[str, Tensor]:
        """Return weights, average and optimiser state under the names of `SeparateWeights`."""
        tensors = {f"model.{name}": value for name, value in self._model_state(self.rows.detach()).items()}
        tensors |= {f"average.{name}": value for name, value in self.average().items()}
        optimiser = self.optimiser.state[self.rows]
        moments = {key: self._model_state(optimiser[key]) for key in _MOMENTS if key in optimiser}
        for index, (name, _) in enumerate(self.model.named_parameters()):
            tensors |= {f"optimiser.{index}.{key}": moment[name] for key, moment in moments.items()}
            if moments:
                tensors[f"optimiser.{index}.step"] = optimiser["step"]
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load weights, average and optimiser state."""
        check_tensors(self.model, tensors)
        # Captured graphs refer to the memory of the old optimiser state.
        self.replay = CUDAGraphReplay()
        # The scale of the features is restored too, because another device may round it differently.
        self.model.load_state_dict(with_prefix(tensors, "model."))
        self.rows.data.copy_(self._stack(with_prefix(tensors, "model.")))
        self.mean.copy_(self._stack(with_prefix(tensors, "average.")))
        names = [name for name, _ in self.model.named_parameters()]
        if "optimiser.0.step" not in tensors:
            return
        device = self.rows.device
        optimiser = {"step": tensors["optimiser.0.step"].to(device)}
        for key in _MOMENTS:
            moment = {name: tensors[f"optimiser.{index}.{key}"] for index, name in enumerate(names)}
            optimiser[key] = self._stack(moment).to(device)
        self.optimiser.state[self.rows] = optimiser

    def _unstack(self, rows: Tensor) -> dict[str, Tensor]:
        """Return each parameter of a member for all members, `(members, ...)`."""
        parts = rows.split([shape.numel() for shape in self.shapes.values()], 1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _model_state(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the state of the model with these rows as weights."""
        stacked = self._unstack(rows)
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return state | {
            f"members.{number}.{name}": value[number].clone()
            for name, value in stacked.items()
            for number in range(len(rows))
        }

    def _stack(self, state: dict[str, Tensor]) -> Tensor:
        """Return the rows of a state of the model; the inverse of `_model_state`."""
        members = range(self.model.config.members)
        return torch.stack(
            [
                torch.cat([state[f"members.{number}.{name}"].detach().flatten() for name in self.shapes])
                for number in members
            ]
        )


@final
class _Template(nn.Module):
    """A member whose weights `functional_call` replaces."""

    def __init__(self, member: Member, config: ModelConfig) -> None:
        super().__init__()
        self.member, self.config = member, config

    def forward(
        self, items: Sets, noise: NoiseSource, coordinates: Tensor | None = None, partial: Tensor | None = None
    ) -> MeanField:
        bound = self.member.bind(items)
        return self.member.infer(self.config, bound, noise, coordinates=coordinates, partial=partial)


def _loss_and_share(result: MeanField, batch: Batch) -> Tensor:
    """Return the loss and the share of sets on which inference converged, `(2,)`."""
    loss = batch.value(result.logits)
    return torch.stack([loss, result.converged.to(loss).mean()])


@final
class CUDAGraphReplay:
    """Calls a function on batches; on a GPU, after the first batches of a shape, by replaying it as a CUDA graph.

    The function must run the same operations every time, on tensors that stay in place, and draw random numbers from
    the noise only. Where the GPU refuses to capture, as for lack of memory, all batches are computed normally.

    Args:
        warm_up: Number of batches of a shape that are computed normally.
    """

    def __init__(self, warm_up: int = _WARM_UP) -> None:
        self.warm_up = warm_up
        self.counts: dict[tuple[int, int], int] = {}
        self.graphs: dict[tuple[int, int], _CapturedStep] = {}
        self.is_refused = False

    def __call__(self, work: Callable[[Batch, FreshNoise], Tensor], batch: Batch, noise: FreshNoise) -> Tensor:
        """Return the result of `work`."""
        layout = batch.sets.layout
        if self.is_refused or layout.device.type != "cuda" or not (layout.uniform and batch.coordinates is None):
            return work(batch, noise)
        shape = (len(layout), layout.longest)
        count = self.counts[shape] = self.counts.get(shape, 0) + 1
        if count <= self.warm_up or (shape not in self.graphs and len(self.graphs) == _MAX_GRAPHS):
            return work(batch, noise)
        if shape not in self.graphs:
            try:
                self.graphs[shape] = _CapturedStep(work, batch)
            except RuntimeError as error:
                self.is_refused = True
                _LOGGER.info("steps are not replayed as CUDA graphs, because none could be captured: %s", error)
                return work(batch, noise)
        return self.graphs[shape].replay(batch, noise)


@final
class _CapturedStep:
    """The captured graph for one shape of batch, with its input tensors and its random generator."""

    def __init__(self, work: Callable[[Batch, FreshNoise], Tensor], batch: Batch) -> None:
        layout = batch.sets.layout
        shared = Layout.from_equal_lengths(len(layout), layout.longest, layout.device)
        self.batch = replace(
            batch,
            sets=type(batch.sets)(batch.sets.values.clone(), shared),
            subsets=type(batch.subsets)(batch.subsets.values.clone(), shared),
            weights=None if batch.weights is None else batch.weights.clone(),
            partial=None if batch.partial is None else batch.partial.clone(),
        )
        noise = FreshNoise()
        self.generator = noise.generator(layout.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        stream = torch.cuda.current_stream(layout.device)
        try:
            # What other threads ask of the GPU, such as the next window of a streamed table, is no part of the graph.
            mode = "thread_local"
            with torch.cuda.device(layout.device), torch.cuda.graph(self.graph, capture_error_mode=mode):
                self.result = work(self.batch, noise)
        except RuntimeError:
            # A capture that fails leaves its own stream behind.
            torch.cuda.set_stream(stream)
            torch.cuda.synchronize(layout.device)
            raise

    def replay(self, batch: Batch, noise: FreshNoise) -> Tensor:
        """Copy the batch to the input tensors, replay the graph, and advance the noise."""
        self.batch.sets.values.copy_(batch.sets.values)
        self.batch.subsets.values.copy_(batch.subsets.values)
        if self.batch.weights is not None and batch.weights is not None:
            self.batch.weights.copy_(batch.weights)
        if self.batch.partial is not None and batch.partial is not None:
            self.batch.partial.copy_(batch.partial)
        source = noise.generator(batch.sets.device)
        self.generator.manual_seed(source.initial_seed())
        self.generator.set_offset(source.get_offset())
        self.graph.replay()
        source.set_offset(self.generator.get_offset())
        return self.result.clone()

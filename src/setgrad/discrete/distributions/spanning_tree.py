"""Spanning trees of a graph, with probability proportional to the product of their edge weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import SolverResult
from setgrad.discrete.distributions._base import (
    Distribution,
    check_logits,
    check_points,
    clamp_probabilities,
    gradient,
)
from setgrad.discrete.distributions._log_space import FLOOR
from setgrad.discrete.distributions._matrix_tree import connected, eliminate, sample_trees
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.spanning_tree import SpanningTree
from setgrad.errors import OptionError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class RandomSpanningTree(Distribution):
    """The distribution `p(z) = exp(<logits, z>) / Z` over adjacency matrices z of spanning trees of n nodes.

    As in `SpanningTree`, an edge {i, j} has a one at (i, j) and at (j, i), so its log-weight is the sum of the two
    logits, which need not be equal. Minus infinity at either place excludes the edge. The diagonal is ignored, but must
    not be NaN or plus infinity. Logits of any range keep their digits. Time and memory grow with n^3.

    Args:
        logits: (*batch, n, n).

    Raises:
        ShapeError: If the logits are not square.
        OptionError: If the edges that are not excluded do not connect all nodes.
        DataError: If the logits contain NaN or plus infinity.

    Examples:
        >>> trees = RandomSpanningTree(torch.zeros(4, 4))
        >>> trees.log_partition.exp()  # Cayley: 4^2 trees of 4 nodes
        tensor(16.)
        >>> trees.marginals[0]
        tensor([0.0000, 0.5000, 0.5000, 0.5000])
    """

    logits: Tensor

    def __post_init__(self) -> None:
        logits = check_logits(self.logits, 2, "RandomSpanningTree")
        if logits.shape[-1] != logits.shape[-2]:
            raise ShapeError(f"RandomSpanningTree takes logits of nodes by nodes, got shape {tuple(logits.shape)}")
        object.__setattr__(self, "logits", logits)
        if not bool(connected(self._edges)[..., 0, :].all()):
            raise OptionError(
                "the edges that are not excluded by a logit of minus infinity do not connect all nodes of an "
                "instance, so it has no spanning tree; allow more edges"
            )

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples of adjacency matrices, (samples, *batch, n, n)."""
        check_counts(0, samples=samples)
        if not self._steps:
            return self.logits.new_zeros((samples, *self.logits.shape))
        return sample_trees(self._steps, samples, generator).to(self.logits.dtype)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-probability of adjacency matrices; minus infinity if they are not trees."""
        z = check_points(z, self.logits, 2, "RandomSpanningTree")
        one = z == 1
        whole = ((z == 0) | (one & self._edges)).flatten(-2).all(-1) & (z == z.mT).flatten(-2).all(-1)
        # n - 1 edges that connect n nodes form a tree.
        tree = (one.sum((-2, -1)) == 2 * (z.shape[-1] - 1)) & connected(one)[..., 0, :].all(-1)
        score = torch.where(one & self._edges, self._scores(self.logits), 0).sum((-2, -1))
        return torch.where(whole & tree, score - self._log_sum(self.logits), -torch.inf)

    @property
    def log_partition(self) -> Tensor:
        """Log Z of each instance."""
        return self._log_sum(self.logits) + 2 * (self.logits.shape[-1] - 1) * self._largest[..., 0, 0]

    @property
    def marginals(self) -> Tensor:
        """The probability of each edge, at both of its places: the gradient of the log-partition."""
        # With a single node no edge depends on the logits, but autograd needs a path.
        return clamp_probabilities(gradient(self._log_sum, self.logits)) + 0 * self._scores(self.logits)

    def entropy(self) -> Tensor:
        """Return the entropy of each instance, in nats."""
        score = self.marginals * self._scores(self.logits)
        return self._log_sum(self.logits) - score.sum((-2, -1))

    def kl(self, other: RandomSpanningTree) -> Tensor:
        """Return KL(self || other) of each instance.

        Raises:
            ShapeError: If the numbers of nodes differ.
        """
        if other.logits.shape[-1] != self.logits.shape[-1]:
            raise ShapeError(
                f"no KL divergence between trees of {self.logits.shape[-1]} and of {other.logits.shape[-1]} "
                "nodes; both numbers must be the same"
            )
        # Every edge of a connected graph is part of a spanning tree.
        impossible = (self._edges & ~other._edges).flatten(-2).any(-1)
        score = self.marginals * (self._scores(self.logits) - other._scores(other.logits))
        value = score.sum((-2, -1)) - self._log_sum(self.logits) + other._log_sum(other.logits)
        return torch.where(impossible, torch.inf, value)

    @property
    def mode(self) -> Tensor:
        """The maximum spanning tree."""
        result = SpanningTree().solve(torch.where(self._edges, self.logits.detach(), -torch.inf))
        return result.value if isinstance(result, SolverResult) else result

    @property
    def _edges(self) -> Tensor:
        """A mask of the edges that exist, at both of their places."""
        allowed = self.logits.detach() > -torch.inf
        return allowed & allowed.mT & ~torch.eye(allowed.shape[-1], dtype=torch.bool, device=allowed.device)

    @cached_property
    def _steps(self) -> list[tuple[Tensor, Tensor]]:
        """The elimination steps in double precision, for sampling; cached because samples need no graph."""
        with torch.no_grad():
            return eliminate(self._log_weights(self.logits).double())[1]

    @property
    def _largest(self) -> Tensor:
        """The largest logit of each instance, (*batch, 1, 1), without gradient; 0 where there are no edges."""
        largest = torch.where(self._edges, self.logits.detach(), -torch.inf).amax((-2, -1), keepdim=True)
        return torch.where(largest > -torch.inf, largest, 0)

    def _scores(self, logits: Tensor) -> Tensor:
        """Return logits minus the largest, which changes no probability, because all trees have n - 1 edges; else 0."""
        return torch.where(self._edges, torch.where(self._edges, logits, 0) - self._largest, 0)

    def _log_weights(self, logits: Tensor) -> Tensor:
        known = self._scores(logits)
        return torch.where(self._edges, known + known.mT, FLOOR)

    def _log_sum(self, logits: Tensor) -> Tensor:
        """Return the log-partition of the scores."""
        total, _ = eliminate(self._log_weights(logits))
        # With a single node the sum does not depend on the logits, but autograd needs a path.
        return total + 0 * self._scores(logits).sum((-2, -1))

"""A plain baseline: an encoder over V and a score for each item, as a modular set function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.functions._neural import make_item_encoder, make_relation
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.functions.modular import BoundModular
from setgrad.sets import Sets


@final
class ItemScores(nn.Module, SetFunction):
    """F(S, V) = sum over S of a linear score of phi.

    One step of mean field gives the exact probabilities sigmoid(score). With the contextual phi this is a set
    transformer with one logit per item.

    Args:
        in_dim: Number of features, or shape, of an item.
        phi: A preset ("context", "mlp", "paper", ...), an `ItemEncoder`, or any module from items `(total, ...)` to
            features `(total, dim)`.
        dim: Number of features that a preset returns; None for the preset's default.
        relation: Rank of a bilinear score of the item and the mean of V, which is added; 0 for none.

    Raises:
        OptionError: If phi is unknown, or a size is not positive.

    Examples:
        >>> import torch, setgrad as sg
        >>> F = ItemScores(2, phi="mlp", dim=8)
        >>> F.gains(sg.Sets.from_list([[[0.0, 1.0]]]), torch.tensor([[True]])).shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: str | nn.Module = "context",
        *,
        dim: int | None = None,
        relation: int = 0,
    ) -> None:
        super().__init__()
        self.phi = make_item_encoder(in_dim, phi, dim)
        self.score = nn.Linear(self.phi.out_dim, 1)
        self.relation = make_relation(in_dim, relation)

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with every item scored once."""
        scores: Tensor = self.score(self.phi(sets)).squeeze(1)
        return BoundModular(sets, scores if self.relation is None else scores + self.relation(sets))

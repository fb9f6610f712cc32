"""Marginals of a linear-chain CRF as attention weights, differentiated by the theorem (Chiu 2021, section 7).

Belief propagation asks for messages that agree with their neighbours: m = update(m, potentials), a fixed point. On a
chain of T nodes the iteration ends after T - 1 steps, because a message depends only on those nearer to its end. For
the same reason the Jacobian J of the update is nilpotent, J^(T-1) = 0: the series I + J + J^2 + ... ends, so
`Neumann(T - 1)`, elsewhere an approximation, is exact here. The iterates are not kept in either case.
"""

# %%
import torch
from torch import Tensor

from setgrad.implicit import LinearSolver, Neumann, fixed_point


def update(messages: Tensor, unary: Tensor, pair: Tensor) -> Tensor:
    """All log messages at once, `(*batch, 2 (T - 1) K)`: those to the right, then those to the left."""
    right, left = messages.unflatten(-1, (2, unary.shape[-2] - 1, -1)).unbind(-3)
    # What arrives at the sender from its other side; nothing arrives at the two ends.
    silence = torch.zeros_like(right[..., :1, :])
    to_right = unary[..., :-1, :] + torch.cat([silence, right[..., :-1, :]], -2)
    to_left = unary[..., 1:, :] + torch.cat([left[..., 1:, :], silence], -2)
    new_right = (to_right[..., :, None] + pair).logsumexp(-2)
    new_left = (to_left[..., None, :] + pair).logsumexp(-1)
    return torch.stack([new_right, new_left], -3).flatten(-3)


def marginals(unary: Tensor, pair: Tensor, *, adjoint: LinearSolver | None = None) -> Tensor:
    """P(state of node t = k), `(*batch, T, K)`, from unary scores of that shape and shared pair scores `(K, K)`."""
    nodes, states = unary.shape[-2:]
    start = unary.new_zeros(*unary.shape[:-2], 2 * (nodes - 1) * states)
    messages = fixed_point(update, start, unary, pair, adjoint=adjoint, tol=1e-13).value
    right, left = messages.unflatten(-1, (2, nodes - 1, states)).unbind(-3)
    silence = torch.zeros_like(right[..., :1, :])
    return (unary + torch.cat([silence, right], -2) + torch.cat([left, silence], -2)).softmax(-1)


# %%
def log_partition(unary: Tensor, pair: Tensor) -> Tensor:
    """The forward recursion, written out."""
    alpha = unary[..., 0, :]
    for t in range(1, unary.shape[-2]):
        alpha = (alpha[..., :, None] + pair).logsumexp(-2) + unary[..., t, :]
    return alpha.logsumexp(-1)


def forward_backward(unary: Tensor, pair: Tensor) -> Tensor:
    """The marginals as the gradient of log Z, by autograd through the recursion."""
    return torch.func.grad(lambda u: log_partition(u, pair).sum())(unary)


# %%
def main() -> dict[str, float]:
    """Attend to a sequence with P(state 1) as weights, and compare values and gradients with forward-backward."""
    generator = torch.Generator().manual_seed(0)
    batch, nodes, states, width = 3, 9, 3, 5
    unary = torch.randn(batch, nodes, states, dtype=torch.float64, generator=generator, requires_grad=True)
    pair = torch.randn(states, states, dtype=torch.float64, generator=generator, requires_grad=True)
    items = torch.randn(batch, nodes, width, dtype=torch.float64, generator=generator)

    def loss(belief: Tensor) -> Tensor:
        context = (belief[..., 1, None] * items).sum(-2)
        return (context**2).sum()

    belief, truth = marginals(unary, pair), forward_backward(unary, pair)
    wanted = torch.autograd.grad(loss(truth), (unary, pair))
    dense = torch.autograd.grad(loss(belief), (unary, pair))
    series = torch.autograd.grad(loss(marginals(unary, pair, adjoint=Neumann(nodes - 1))), (unary, pair))
    short = torch.autograd.grad(loss(marginals(unary, pair, adjoint=Neumann(2))), (unary, pair))

    def error(found: tuple[Tensor, ...]) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))

    start = unary.new_zeros(batch, 2 * (nodes - 1) * states)
    steps = fixed_point(update, start, unary, pair, tol=1e-13).steps
    return {
        "steps of the iteration": float(steps.max()),
        "marginals: error": float((belief - truth).detach().abs().max()),
        "gradient: largest entry": max(float(g.abs().max()) for g in wanted),
        "gradient: error, dense adjoint": error(dense),
        "gradient: error, series of T - 1 terms": error(series),
        "gradient: error, series of 2 terms": error(short),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:40} {number: .3g}")

"""Marginals of a linear-chain CRF as attention weights, differentiated implicitly (Chiu, 2021, section 7).

Belief propagation looks for messages that are consistent with their neighbours: m = update(m, potentials), a fixed
point. On a chain of T nodes the iteration ends after T - 1 steps, because a message depends only on messages closer to
its end of the chain. For the same reason the Jacobian J of the update is nilpotent, J^(T-1) = 0: the series
I + J + J^2 + ... ends, so `Neumann(T - 1)`, in general an approximation, is exact. No iterate is stored.
"""

# %%
import torch
from torch import Tensor

from setgrad.implicit import LinearSolver, Neumann, fixed_point


def update(messages: Tensor, unary: Tensor, pair: Tensor) -> Tensor:
    """Return all new log messages, `(*batch, 2 (T - 1) K)`: those to the right, then those to the left."""
    right, left = messages.unflatten(-1, (2, unary.shape[-2] - 1, -1)).unbind(-3)
    # Messages that reach the sender from its other side; the two ends receive none.
    empty = torch.zeros_like(right[..., :1, :])
    to_right = unary[..., :-1, :] + torch.cat([empty, right[..., :-1, :]], -2)
    to_left = unary[..., 1:, :] + torch.cat([left[..., 1:, :], empty], -2)
    new_right = (to_right[..., :, None] + pair).logsumexp(-2)
    new_left = (to_left[..., None, :] + pair).logsumexp(-1)
    return torch.stack([new_right, new_left], -3).flatten(-3)


def marginals(unary: Tensor, pair: Tensor, *, adjoint: LinearSolver | None = None) -> Tensor:
    """Return P(node t has state k), `(*batch, T, K)`, from unary scores of that shape and pair scores `(K, K)`."""
    nodes, states = unary.shape[-2:]
    start = unary.new_zeros(*unary.shape[:-2], 2 * (nodes - 1) * states)
    messages = fixed_point(update, start, unary, pair, adjoint=adjoint, tol=1e-13).value
    right, left = messages.unflatten(-1, (2, nodes - 1, states)).unbind(-3)
    empty = torch.zeros_like(right[..., :1, :])
    return (unary + torch.cat([empty, right], -2) + torch.cat([left, empty], -2)).softmax(-1)


# %%
def log_partition(unary: Tensor, pair: Tensor) -> Tensor:
    """Return log Z by the forward recursion."""
    alpha = unary[..., 0, :]
    for t in range(1, unary.shape[-2]):
        alpha = (alpha[..., :, None] + pair).logsumexp(-2) + unary[..., t, :]
    return alpha.logsumexp(-1)


def forward_backward(unary: Tensor, pair: Tensor) -> Tensor:
    """Return the marginals as the gradient of log Z, by autograd through the recursion."""
    return torch.func.grad(lambda u: log_partition(u, pair).sum())(unary)


# %%
def main() -> dict[str, float]:
    """Attend to a sequence with P(state 1) as weights, and compare values and gradients with forward-backward."""
    generator = torch.Generator().manual_seed(0)
    batch, nodes, states, dim = 3, 9, 3, 5
    unary = torch.randn(batch, nodes, states, dtype=torch.float64, generator=generator, requires_grad=True)
    pair = torch.randn(states, states, dtype=torch.float64, generator=generator, requires_grad=True)
    items = torch.randn(batch, nodes, dim, dtype=torch.float64, generator=generator)

    def loss(belief: Tensor) -> Tensor:
        context = (belief[..., 1, None] * items).sum(-2)
        return (context**2).sum()

    belief, expected = marginals(unary, pair), forward_backward(unary, pair)
    expected_gradient = torch.autograd.grad(loss(expected), (unary, pair))
    dense = torch.autograd.grad(loss(belief), (unary, pair))
    series = torch.autograd.grad(loss(marginals(unary, pair, adjoint=Neumann(nodes - 1))), (unary, pair))
    short = torch.autograd.grad(loss(marginals(unary, pair, adjoint=Neumann(2))), (unary, pair))

    def error(gradient: tuple[Tensor, ...]) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(gradient, expected_gradient, strict=True))

    start = unary.new_zeros(batch, 2 * (nodes - 1) * states)
    steps = fixed_point(update, start, unary, pair, tol=1e-13).steps
    return {
        "steps of the iteration": float(steps.max()),
        "marginals: error": float((belief - expected).detach().abs().max()),
        "gradient: largest entry": max(float(g.abs().max()) for g in expected_gradient),
        "gradient: error, dense adjoint": error(dense),
        "gradient: error, series of T - 1 terms": error(series),
        "gradient: error, series of 2 terms": error(short),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:40} {number: .3g}")

"""Automatic differentiation as a Schur complement (Chiu, 2021, section 4.3).

A program computes v_1, v_2, ..., v_T, each from the inputs and from earlier ones: v = phi(v, x). As a system of
equations, v - phi(v, x) = 0, it has a Jacobian I - L that is lower triangular with ones on the diagonal, and the
derivative of the output v_T is the Schur complement of that block in the extended Jacobian

    M = [ I - L   B ]        dv_T/dx = 0 - (-e_T') (I - L)^-1 B,    B = dphi/dx
        [ -e_T'   0 ]

Eliminating the variables from the first to the last is forward mode, from the last to the first reverse mode. Both give
the same numbers; they differ in how many zeros they fill, and so in their multiplications. For the product of n inputs
reverse mode needs 2 n - 4, forward mode (n - 2)(n + 1) / 2, whereas a dense inverse would take about n^3.

`--picture FILE` draws M half-way through both; it needs Matplotlib.
"""

# %%
import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from setgrad.implicit import Neumann, fixed_point


def phi(v: Tensor, x: Tensor) -> Tensor:
    """Return the variables of the program v_1 = x_1 x_2, v_2 = v_1 x_3, ..., `(n - 1,)`, from those before them."""
    return torch.cat([x[..., :1], v[..., :-1]], -1) * x[..., 1:]


def extended_jacobian(x: Tensor) -> Tensor:
    """Return M for inputs `(n,)`, `(n, 2 n - 1)`: a row for each variable, and the row -e_T' of the output."""
    v = x.cumprod(-1)[1:]
    by_variables, by_inputs = torch.func.jacrev(phi, argnums=(0, 1))(v, x)
    one = torch.eye(len(v)).to(x)
    return torch.cat([torch.cat([one - by_variables, by_inputs], 1), torch.cat([-one[-1], torch.zeros_like(x)])[None]])


def eliminate(matrix: Tensor, pivots: Iterable[int]) -> tuple[Tensor, int]:
    """Eliminate pivots, which are 1, from all other rows that are left; return the matrix and the multiplications."""
    m, count, left = matrix.clone(), 0, set(range(len(matrix)))
    for k in pivots:
        left.remove(k)
        columns = [j for j in m[k].nonzero()[:, 0].tolist() if j != k]
        for i in sorted(left):
            if m[i, k]:
                m[i, columns] -= m[i, k] * m[k, columns]
                # Multiplying by the -1 of the output row is free.
                count += len(columns) if abs(float(m[i, k])) != 1 else 0
                m[i, k] = 0
    return m, count


# %%
def main() -> dict[str, float]:
    """Differentiate the product of ten inputs in four ways; the truth is the product over each input."""
    n = 10
    x = 0.5 + torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth, matrix, variables = x.prod() / x, extended_jacobian(x), range(n - 1)
    forward, forward_count = eliminate(matrix, variables)
    reverse, reverse_count = eliminate(matrix, reversed(variables))
    leaf = x.clone().requires_grad_()
    # On a program the series ends: L^(n - 1) = 0.
    trace = fixed_point(phi, torch.zeros_like(x[1:]), leaf, adjoint=Neumann(n - 1), tol=1e-14)
    (implicit,) = torch.autograd.grad(trace.value[-1], leaf)
    inverse = torch.linalg.solve(matrix[:-1, : n - 1], matrix[:-1, n - 1 :])[-1]

    ways = {"first to last": forward[-1, n - 1 :], "last to first": reverse[-1, n - 1 :]}
    ways |= {"dense inverse": inverse, "implicit function theorem": implicit}
    return {
        **{f"{name}: error": float((gradient - truth).abs().max()) for name, gradient in ways.items()},
        "first to last: multiplications": forward_count,
        "last to first: multiplications": reverse_count,
        "steps of the fixed point": float(trace.steps),
    }


def draw(path: str) -> None:
    """Draw the nonzero entries of M at the start and half-way through both orders."""
    from matplotlib.figure import Figure

    matrix, order = extended_jacobian(torch.linspace(0.5, 1.5, 10, dtype=torch.float64)), range(9)
    parts = {"start": (), "first to last, half-way": order[:4], "last to first, half-way": order[:4:-1]}
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    for axes, (title, pivots) in zip(figure.subplots(1, 3), parts.items(), strict=True):
        axes.spy(eliminate(matrix, pivots)[0].numpy(), markersize=4)
        axes.set(title=title, xticks=[], yticks=[])
    figure.savefig(path)


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:36} {number: .3g}")
    if "--picture" in sys.argv:
        draw(sys.argv[sys.argv.index("--picture") + 1])

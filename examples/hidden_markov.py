"""A hidden Markov model: beliefs, mean parameters, and the derivative of a fitted model (Chiu, 2021, appendix A).

Transitions S and emissions O are rows of probabilities. As in every exponential family, the expected counts given a
sequence, the mean parameters, are the derivative of its log-probability by the log-parameters. Fitting inverts that
map: Baum-Welch repeats "set the rows to the expected counts plus a" until nothing changes. The theorem differentiates
this fixed point, so that held-out sequences say whether to smooth more, with a larger pseudo-count a.

`--picture FILE` draws the beliefs of one sequence; it needs Matplotlib.
"""

# %%
import math
import sys

import torch
from torch import Tensor

from setgrad.implicit import Anderson, fixed_point

STATES, SYMBOLS = SIZES = [2, 3]


def forward(log_s: Tensor, log_emitted: Tensor) -> Tensor:
    """Return log p(x) from the log-probability of each symbol in each state `(batch, T, STATES)`; z_1 is uniform."""
    alpha = log_emitted[:, 0] - math.log(STATES)
    for emitted in log_emitted.unbind(1)[1:]:
        alpha = (alpha[:, :, None] + log_s).logsumexp(1) + emitted
    return alpha.logsumexp(1)


def expected_counts(table: Tensor, x: Tensor) -> Tensor:
    """Return how often each transition and each symbol is expected, summed over the sequences; for log S | log O."""
    return torch.func.grad(lambda t: forward(t[:, :STATES], t[:, STATES:].mT[x]).sum())(table)


def fit(x: Tensor, a: Tensor) -> Tensor:
    """Return log S | log O at the fixed point of Baum-Welch with the pseudo-count a."""

    def step(y: Tensor, a: Tensor) -> Tensor:
        counts = expected_counts(y.view(STATES, -1), x)
        return torch.cat([(part + a).log().log_softmax(1) for part in counts.split(SIZES, 1)], 1).flatten()

    # Different rows, because a start with equal states would never leave them.
    start = torch.tensor([0.8, 0.2, 0.6, 0.3, 0.1, 0.3, 0.7, 0.1, 0.3, 0.6], dtype=torch.float64).log()
    return fixed_point(step, start, a, solver=Anderson(), tol=1e-10, max_steps=1000).value.view(STATES, -1)


# %%
def sample(count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return sequences and their hidden states, from a model whose states last."""
    generator = torch.Generator().manual_seed(seed)
    s, o = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    z = torch.randint(STATES, (count, 1), generator=generator)
    for _ in range(length - 1):
        z = torch.cat([z, torch.multinomial(s[z[:, -1]], 1, generator=generator)], 1)
    return torch.multinomial(o[z.flatten()], 1, generator=generator).view_as(z), z


def main() -> dict[str, float]:
    """Fit to 20 sequences of 20 symbols, and differentiate by the pseudo-count; compare with finite differences."""
    x, held_out = sample(20, 20, 0)[0], sample(20, 20, 1)[0]

    def score(a: Tensor) -> Tensor:
        log_s, log_o = fit(x, a).split(SIZES, 1)
        return forward(log_s, log_o.mT[held_out]).mean() / 20

    a = torch.tensor(0.5, dtype=torch.float64)
    gradient, value = torch.func.grad_and_value(score)(a)
    difference = (score(a + 1e-5) - score(a - 1e-5)) / 2e-5
    counts = expected_counts(fit(x, a), x)
    return {
        "expected transitions": float(counts[:, :STATES].sum()),
        "expected symbols": float(counts[:, STATES:].sum()),
        "fitted chance to stay in a state": float(fit(x, a).exp().diagonal().mean()),
        "held-out log-probability of a symbol": float(value),
        "its derivative by the pseudo-count": float(gradient),
        "relative error to finite differences": float(abs(gradient - difference) / abs(difference)),
    }


def draw(path: str) -> None:
    """Draw the belief in the second state of a new sequence, the derivative of log p(x) by what that state emits."""
    from matplotlib.figure import Figure

    x, z = sample(1, 60, 2)
    log_s, log_o = fit(sample(20, 20, 0)[0], torch.tensor(0.5, dtype=torch.float64)).split(SIZES, 1)
    belief = torch.func.grad(lambda e: forward(log_s, e).sum())(log_o.mT[x])[0, :, 1]
    axes = (figure := Figure(figsize=(6, 2), layout="constrained")).subplots()
    axes.fill_between(range(60), z[0].numpy(), step="mid", alpha=0.2)
    axes.plot(belief.numpy())
    axes.set(xlabel="time", ylabel="second state")
    figure.savefig(path)


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:40} {number: .4g}")
    if "--picture" in sys.argv:
        draw(sys.argv[sys.argv.index("--picture") + 1])

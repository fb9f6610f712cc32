"""Semi-amortised variational inference: an arg min inside the loss (Chiu, 2021, section 9).

Counts with a Gaussian code: z ~ N(0, I), x_d ~ Poisson(exp(w_d'z)), and q(z) = N(m, diag(s^2)) for each x. The negative
ELBO has a closed form, convex in (m, log s). An encoder proposes a start and L-BFGS finishes, because full Newton steps
can overshoot an exponential.

Where does the implicit gradient matter? If the outer loss is the negative ELBO itself, nowhere: its derivative with
respect to (m, s) vanishes at the arg min (the envelope theorem). And the arg min does not depend on the start, so
Chiu's dz*/dz0 is 0: after a complete search no gradient reaches the encoder, which must learn in another way, in this
script by predicting the arg min. So the outer loss must differ from the inner objective: infer the code from half of
the counts, then score the other half (document completion).
"""

# %%
import torch
from torch import Tensor

from setgrad.implicit import LBFGS, argmin

CODE = 2


def misfit(q: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return -E_q log p(x | z) without log x!, `(*batch,)`, from q = (m, log s) `(*batch, 2 CODE)`."""
    mean, log_std = q.split(CODE, -1)
    log_rate = mean @ weight.mT
    return ((log_rate + 0.5 * (2 * log_std).exp() @ (weight**2).mT).exp() - x * log_rate).sum(-1)


def negative_elbo(q: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return `misfit` plus the divergence from the prior, without constants."""
    mean, log_std = q.split(CODE, -1)
    return misfit(q, x, weight) + 0.5 * (mean**2 + (2 * log_std).exp() - 2 * log_std).sum(-1)


def infer(start: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the best q for each x."""
    return argmin(negative_elbo, start, x, weight, solver=LBFGS(), tol=1e-11).value


def unrolled(q: Tensor, x: Tensor, weight: Tensor, *, steps: int) -> Tensor:
    """Run gradient descent and keep every step for the backward pass: the memory that the theorem saves."""
    for _ in range(steps):
        q = q - 0.03 * torch.func.grad(lambda q: negative_elbo(q, x, weight).sum())(q)
    return q


# %%
def main() -> dict[str, float]:
    """Check the gradient of the completion loss (errors relative), then train decoder and encoder for a few steps."""
    generator = torch.Generator().manual_seed(0)
    codes, true_weight, weight, direction = (
        torch.randn(rows, CODE, dtype=torch.float64, generator=generator) for rows in (40, 12, 12, 12)
    )
    counts = torch.poisson((codes @ true_weight.mT).clamp(max=3).exp(), generator)
    known, hidden, cold = counts[:, ::2], counts[:, 1::2], torch.zeros(40, 2 * CODE, dtype=torch.float64)
    weight.mul_(0.5).requires_grad_()

    def completion(q: Tensor, weight: Tensor) -> Tensor:
        return misfit(q, hidden, weight[1::2]).mean()

    def slope(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, weight, retain_graph=True)[0]

    best = infer(cold, known, weight[::2])
    implicit, partial = slope(completion(best, weight)), slope(completion(best.detach(), weight))
    short, long = (slope(completion(unrolled(cold, known, weight[::2], steps=k), weight)) for k in (20, 1000))
    with torch.no_grad():
        ahead, behind = (weight + h * direction for h in (1e-5, -1e-5))
        rise = sum(sign * completion(infer(cold, known, w[::2]), w) for sign, w in ((1, ahead), (-1, behind)))
        other_start = infer(cold + 0.1, known, weight[::2])
    elbo, elbo_partial = (slope(negative_elbo(q, known, weight[::2]).mean()) for q in (best, best.detach()))
    numbers = {
        "gradient: part due to the arg min": float((implicit - partial).norm() / implicit.norm()),
        "gradient: error of 20 unrolled steps": float((short - implicit).norm() / implicit.norm()),
        "gradient: error of 1000 unrolled steps": float((long - implicit).norm() / implicit.norm()),
        "gradient: error of finite differences": float((rise / 2e-5 / (implicit * direction).sum() - 1).abs()),
        "gradient of the ELBO: part due to the arg min": float((elbo - elbo_partial).norm() / elbo.norm()),
        "arg min: change with the start": float((other_start - best).detach().abs().max()),
    }
    features = torch.nn.functional.pad(known.log1p(), (0, 1), value=1.0)
    encoder = torch.zeros(7, 2 * CODE, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weight, encoder], lr=0.1)
    for step in range(31):
        start = features @ encoder
        q = infer(start, known, weight[::2])
        loss, encoder_error = completion(q, weight), ((start - q.detach()) ** 2).mean()
        if step % 30 == 0:
            numbers[f"completion loss after {step} steps"] = float(loss.detach())
            numbers[f"error of the encoder after {step} steps"] = float(encoder_error.detach())
        optimiser.zero_grad()
        (loss + encoder_error).backward()
        optimiser.step()
    return numbers


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:50} {number: .3g}")

"""Published methods as options of `SubsetSelector`; each preset holds what differs from the defaults.

Sizes and rates are those of the published code, except for one: it stops after 6 epochs without progress, and the
presets wait for 20, because with 6 training often ends on a plateau, which would make these baselines too weak.

- `diffmf`, `equivset-*`: Ou et al., 2022, arXiv:2203.01693. `diffmf-5` is algorithm 1 of Özcan et al. to the letter:
  five steps, and a derivative through all of them.
- `idiffmf-*`: Özcan et al., 2024, arXiv:2412.11239, with Gaussian masks, which are fast. `idiffmf-*-pathwise` and
  `idiffmf-*-differences` are its algorithm 2 to the letter: random subsets, solved to 1e-6 by fixed-point steps, and
  differentiated along the relaxed masks, or by the second differences of its corollary E.1. Its other solvers are
  `forward="anderson"` and `backward="gmres"`.
- `learned-relaxation`: "Advancing Optimal Subset Oracle via Learning Relaxation of Neural Set Functions", ICLR 2026.
  Only its abstract was at hand: see the comment below.
- `inset`: Xie et al., ICLR 2024, arXiv:2402.03139. `horse`: Xie et al., NeurIPS 2024.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "phi": "paper",
    "dim": 256,
    "hidden": (500, 500),
    "members": 1,
    "predict_samples": 5,
    "loss": "negatives",
    "learning_rate": 1e-4,
    "weight_decay": 1e-5,
    "batch_size": 128,
    "max_epochs": 100,
    "patience": 20,
    "clip": 10.0,
    "average": 0.0,
    "standardize": False,
}

# The scales of the gradient by the names of the published variants.
_SCALES: dict[str, float | str] = {"c": 100.0, "2": "frobenius-batch", "nuclear": "nuclear-batch"}
_IMPLICIT: dict[str, Any] = {**_COMMON, "method": "implicit"}
_ALGORITHM_2: dict[str, Any] = {**_IMPLICIT, "forward": "picard", "backward": "normal-cg", "tol": 1e-6, "steps": 100}

PRESETS: dict[str, dict[str, Any]] = {
    # Özcan et al. use 5 steps, their code 1 by default; 1 is better on Amazon, and faster.
    "diffmf": {**_COMMON, "method": "one-step", "steps": 1},
    "diffmf-5": {**_COMMON, "method": "unrolled", "estimator": "pathwise", "steps": 5},
    **{f"idiffmf-{name}": {**_IMPLICIT, "scale": scale} for name, scale in _SCALES.items()},
    **{
        f"idiffmf-{name}-{word}": {**_ALGORITHM_2, "scale": scale, "estimator": estimator}
        for word, estimator in (("pathwise", "pathwise"), ("differences", "second-difference"))
        for name, scale in _SCALES.items()
    },
    "equivset-ind": {**_COMMON, "method": "amortised"},
    "equivset-copula": {**_COMMON, "method": "copula"},
    # What the published code computes: its normal variables have any variance.
    "equivset-copula-free": {**_COMMON, "method": "free-copula"},
    "inset": {**_COMMON, "method": "copula", "function": "inset"},
    # The abstract says that a surrogate of the evidence lower bound is learned, so that its gradient is known at every
    # point without sampling. Guessed: the surrogate is F at the fractional mask psi plus the entropy of psi, F is the
    # network of the other presets, and five steps of mean field are unrolled and trained by cross-entropy.
    "learned-relaxation": {**_COMMON, "method": "unrolled", "estimator": "relaxed", "steps": 5},
    "horse": {**_COMMON, "method": "copula", "function": "horse"},
}

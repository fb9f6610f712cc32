"""Published methods as options of `SubsetSelector`: what they change of the defaults.

Sizes and rates are those of the papers' code. Where it stops after 6 epochs without progress these wait for 20, because
with 6 they often end on a plateau, which would make rivals too weak.
"""

from __future__ import annotations

from typing import Any

# What the methods of Özcan et al. and of Ou et al. share.
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

PRESETS: dict[str, dict[str, Any]] = {
    # Özcan et al. take 5 steps where the published code takes 1 by default; with 1 it is better on Amazon, and quicker.
    "diffmf": {**_COMMON, "method": "one-step", "steps": 1},
    "idiffmf-c": {**_COMMON, "method": "implicit", "scale": 100.0},
    "idiffmf-2": {**_COMMON, "method": "implicit", "scale": "frobenius-batch"},
    "idiffmf-nuclear": {**_COMMON, "method": "implicit", "scale": "nuclear-batch"},
    "equivset-ind": {**_COMMON, "method": "amortised"},
    "equivset-copula": {**_COMMON, "method": "copula"},
    # What the published code computes: its normals have any variance.
    "equivset-copula-free": {**_COMMON, "method": "free-copula"},
    "inset": {**_COMMON, "method": "copula", "function": "inset"},
    "horse": {**_COMMON, "method": "copula", "function": "horse"},
}

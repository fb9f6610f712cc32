"""Models that differ in how they are trained, for the benchmarks of completion and of the learned F."""

from __future__ import annotations

from benchmarks.selection.models import Options, options_of

# The model of the tables, and what is changed. Eight members as on a GPU, or one as on a CPU.
VARIANTS: dict[str, tuple[str, Options]] = {
    "default": ("default", {}),
    "single": ("single", {}),
    "implicit": ("single", {"method": "implicit"}),
    "unrolled": ("single", {"method": "unrolled"}),
    "conditional": ("default", {"method": "conditional"}),
    # The term for pairs compares items before any training. Each way of training with and without it tells what the
    # training adds.
    "pairs": ("default", {"pairs": True}),
    "no-pairs": ("default", {"pairs": False}),
    "conditional-pairs": ("default", {"method": "conditional", "pairs": True}),
    "conditional-no-pairs": ("default", {"method": "conditional", "pairs": False}),
    "conditional-single": ("single", {"method": "conditional"}),
    "conditional-single-no-pairs": ("single", {"method": "conditional", "pairs": False}),
}


def variant_options(name: str, task: str, *, quick: bool) -> Options:
    """Return all options of a variant on a task.

    Examples:
        >>> variant_options("implicit", "moons", quick=False)
        {'members': 1, 'method': 'implicit'}
    """
    model, changes = VARIANTS[name]
    return options_of(model, task, quick=quick, tuned=changes)
